"""Tell which ranks a ledger should speak of and does not, or does not any more."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from dprankdiag.analysis.ledger_window import LedgerWindow
from dprankdiag.model.ledgers import Ledger

MOST_RANKS = 4096
"""Ranks are not looked for beyond: a label may hold any number."""

LAST_MOMENTS = 3
"""A rank that tells nothing at so many moments on end is gone; one poll may fail."""


def find_missing(ledger: Ledger, expect_ranks: int | None = None) -> tuple[int, ...]:
    """List ranks that should be there and are not: by what the user or the engine says, else gaps in the numbers."""
    told = expect_ranks or ledger.facts.get("num_dp_ranks")
    count = int(told) if isinstance(told, (int, float)) and told else 0
    return list_gaps(ledger.ranks, count, min(ledger.ranks, default=0) if not told else 0)


def list_gaps(ranks: Collection[int], count: int, first: int = 0) -> tuple[int, ...]:
    """List the numbers that are not among ranks, from the first up to a count or the highest rank."""
    end = min(max(count, max(ranks, default=-1) + 1), MOST_RANKS)
    return tuple(rank for rank in range(first, end) if rank not in ranks)


def find_gone(window: LedgerWindow) -> tuple[int, ...]:
    """List ranks that told something earlier in the window, and nothing at its end although others did."""
    tables = window.ledger.values.values()
    if not tables or not window.has_growth:
        return ()
    told = np.zeros((window.last - window.first + 1, window.n_ranks), bool)
    for table in tables:
        told |= ~np.isnan(table[window.first : window.last + 1])
    late = np.asarray(told[-min(LAST_MOMENTS, len(told) // 2) :].any(axis=0))
    gone = np.asarray(told.any(axis=0) & ~late)
    return tuple(rank for rank, away in zip(window.ledger.ranks, gone, strict=True) if away) if late.any() else ()
