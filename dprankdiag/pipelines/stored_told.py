"""Remember what servers stored of engines: each sample once, for as long as a window reaches back."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from dprankdiag.model.ledgers import LedgerAnswer
from dprankdiag.pipelines.tracking import WINDOW_MOMENTS
from dprankdiag.units import NS_PER_S

_KEPT_WINDOWS = 2.0

Key = tuple[str, str, str | None, str | None]
"""Address, interface, model and role."""


@dataclass(slots=True)
class StoredTold:
    """What is kept of what servers told, newest last."""

    _kept: dict[Key, dict[int, LedgerAnswer]] = field(default_factory=dict)

    def keep(self, answers: Iterable[LedgerAnswer], window_s: float) -> list[LedgerAnswer]:
        """Take in answers, some of them for the second time; return those that windows still reach."""
        for answer in answers:
            self._kept.setdefault(_key_of(answer), {})[answer.taken_ns or 0] = answer
        newest = max((stamp for kept in self._kept.values() for stamp in kept), default=0)
        for key, kept in list(self._kept.items()):
            reach_s = _KEPT_WINDOWS * max(window_s, WINDOW_MOMENTS * _find_gap_s(kept))
            limit = newest - round(reach_s * NS_PER_S)
            self._kept[key] = {stamp: kept[stamp] for stamp in sorted(kept) if stamp >= limit}
            if not self._kept[key]:
                del self._kept[key]
        return [answer for kept in self._kept.values() for answer in kept.values()]


def _find_gap_s(stamps: Iterable[int]) -> float:
    ordered = sorted(stamps)
    gaps = [later - earlier for earlier, later in itertools.pairwise(ordered)]
    return statistics.median(gaps) / NS_PER_S if gaps else 0.0


def _key_of(answer: LedgerAnswer) -> Key:
    return answer.where, answer.interface, answer.model, answer.role
