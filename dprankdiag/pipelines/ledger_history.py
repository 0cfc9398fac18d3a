"""What each rank told over time, for those who look at a recording: the numbers of every moment's window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dprankdiag.model.ledger_results import LEDGER_HISTORY, LEDGER_RANKS
from dprankdiag.model.ledgers import Ledger
from dprankdiag.model.schema import Columns, join_rows
from dprankdiag.pipelines.ledger_tables import tabulate_ledgers
from dprankdiag.pipelines.tracking import find_window_s, is_series, view_moment
from dprankdiag.units import NS_PER_S

MOST_MOMENTS = 600
MOST_ROWS = 50_000
"""Of a longer recording, or of one of very many ranks, every n-th moment is kept."""


def tabulate_history(ledgers: Sequence[Ledger], expect_ranks: int | None = None) -> dict[str, Columns]:
    """Make the table of what ledgers tell over time; none of ledgers without moments, or without times of day."""
    parts = [part for ledger in ledgers for part in _follow(ledger, expect_ranks)]
    return {LEDGER_HISTORY.name: join_rows(LEDGER_HISTORY, parts)} if parts else {}


def tabulate_moment(ranks: Columns, at_ns: int) -> Columns:
    """Make the rows of one moment from the table of what each rank told then."""
    rows = {column.name: ranks[column.name] for column in LEDGER_HISTORY.columns if column.name != "at_ns"}
    return LEDGER_HISTORY.check({**rows, "at_ns": np.full(len(ranks["rank"]), at_ns, np.int64)})


def _follow(ledger: Ledger, expect_ranks: int | None) -> Iterator[Columns]:
    if ledger.seconds is None or ledger.start_ns is None or not is_series(ledger):
        return
    room = max(min(MOST_MOMENTS, MOST_ROWS // max(len(ledger.ranks), 1)), 1)
    apart = -(-ledger.n_moments // room)
    window_s = find_window_s(ledger)
    for place in range(apart, ledger.n_moments, apart):
        seen = view_moment(ledger, place, window_s, expect_ranks)
        tables = tabulate_ledgers([seen])
        if tables:
            at_ns = ledger.start_ns + round(float(ledger.seconds[place]) * NS_PER_S)
            yield tabulate_moment(tables[LEDGER_RANKS.name], at_ns)
