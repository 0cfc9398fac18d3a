"""Load numbers that cannot be right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.classifiers.base import name_numbers
from dprankdiag.classifiers.ledgers import who_of
from dprankdiag.model.claims import UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Evidence
from dprankdiag.model.ledgers import BoolArray, FloatArray

ROUNDING = 0.02
"""Shares are told to two digits."""

_PAIRS = (
    ("used_tokens", "capacity_tokens"),
    ("load_used_tokens", "load_capacity_tokens"),
    ("load_running_requests", "load_capacity_requests"),
)
"""A number, and the other of the same answer that it cannot be above."""

_SHARES = ("kv_usage_ratio", "load_kv_usage_ratio", "cache_hit_ratio")


class LedgerInconsistent:
    """Load numbers that cannot be right.

    *What you see*: a rank shows more KV tokens than its pool holds, a share above one, or a negative number.

    *Why it happens*: series of dead processes are added to those of living ones, scraping drops or rewrites rank labels
    and adds ranks up, or the engine counts wrongly.

    *How we tell it apart*: only numbers of one answer are held against each other. Views that differ because they were
    taken at different moments are no contradiction, and neither is a gauge left over on an idle rank.

    *What to do*: compare /metrics, /v1/loads and the log of that rank at one moment; clean the directory of metric
    files between starts; check relabelling.
    """

    cause = "ledger.inconsistent"

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Claim ranks that show an impossible number."""
        bounded = list(_list_bounded(seen))
        if not bounded and seen.reason is None:
            yield Abstention(self.cause, "nothing is told that bounds what the ranks say of themselves", (), None)
        for name, values, most in bounded:
            with np.errstate(invalid="ignore"):
                wrong = (values > most * (1 + ROUNDING)) | (values < 0)
            if wrong.any():
                yield self._claim(seen, name, values, most, np.asarray(wrong))
                return

    def _claim(
        self, seen: LedgerView, name: str, values: FloatArray, most: FloatArray, wrong: BoolArray
    ) -> UntimedClaim:
        ranks = seen.names_of(wrong)
        place = int(np.flatnonzero(wrong)[0])
        text = f"{name} is {values[place]:.6g}, which lies outside 0 to {most[place]:.6g}"
        return UntimedClaim(
            self.cause,
            ranks,
            who_of(wrong),
            f"{name_numbers(ranks)}: numbers that cannot be right: {text}",
            (Evidence("impossible_value", float(values[place]), "count", text, float(most[place])),),
            (),
            0.8,
            seen.window.span_ns,
        )


def _list_bounded(seen: LedgerView) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    values = seen.window.ledger.values
    last = seen.window.last
    for name, limit in _PAIRS:
        if name in values and limit in values:
            bound = values[limit][last]
            yield name, values[name][last], np.where(bound > 0, bound, np.nan)
    for name in _SHARES:
        if name in values:
            yield name, values[name][last], np.ones(seen.window.n_ranks)
