"""Turn how often a verdict comes back when steps are drawn anew into how often such verdicts are right."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from dprankdiag.catalog.rules import read_catalog
from dprankdiag.errors import TableError

_WHERE = "catalogue confidence.toml"


@dataclass(frozen=True, slots=True)
class Knot:
    """A point of the table.

    Attributes:
        same_ratio: share of the draws of steps that give the same cause and ranks.
        right_ratio: share of findings with such a share that were right.
        findings: how many these were.
    """

    same_ratio: float
    right_ratio: float
    findings: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """One monotone table, and by how much a replayed price may be off.

    Attributes:
        knots: ascending in both columns; between them the line, beyond them the end.
        model_error_ratio: share of a loss that the replay may be off by what it leaves out (a standard deviation).
    """

    knots: tuple[Knot, ...]
    model_error_ratio: float

    def confide(self, same_ratio: float) -> float:
        """Say how sure a verdict is that comes back in such a share of the draws."""
        place = bisect_right([knot.same_ratio for knot in self.knots], same_ratio)
        if place in (0, len(self.knots)):
            return self.knots[min(place, len(self.knots) - 1)].right_ratio
        low, high = self.knots[place - 1 : place + 1]
        part = (same_ratio - low.same_ratio) / (high.same_ratio - low.same_ratio)
        return low.right_ratio + part * (high.right_ratio - low.right_ratio)


def make_calibration(knots: Sequence[Knot], model_error_ratio: float) -> Calibration:
    """Check a table.

    Raises:
        ValueError: it does not ascend, or holds what is no share.
    """
    if not knots:
        raise ValueError("no knots")
    for low, high in pairwise(knots):
        if low.same_ratio >= high.same_ratio or low.right_ratio > high.right_ratio:
            raise ValueError(f"{high} does not ascend from {low}")
    for knot in knots:
        if not (0 <= knot.same_ratio <= 1 and 0 < knot.right_ratio < 1 and knot.findings > 0):
            raise ValueError(f"{knot} holds what is no share or no count")
    if not 0 < model_error_ratio < 1:
        raise ValueError(f"model_error_ratio {model_error_ratio} is no share")
    return Calibration(tuple(knots), model_error_ratio)


@lru_cache(maxsize=1)
def load_calibration() -> Calibration:
    """Load the table that is shipped with the package."""
    rows = read_catalog("confidence.toml")
    try:
        return make_calibration([Knot(**row) for row in rows["knots"]], float(rows["model_error_ratio"]))
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(str(error), where=_WHERE) from error
