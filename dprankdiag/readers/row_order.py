"""Put the rows of a trace table in the order (rank, start)."""

from __future__ import annotations

import numpy as np

from dprankdiag.model.schema import Columns
from dprankdiag.readers.base import Array


def sort_rows(columns: Columns) -> Columns:
    """Sort rows by (rank, start_ns), equal ones in file order.

    Takes the columns over: they are replaced one by one, so that a long table is never held twice.
    """
    rank = columns["rank"]
    if not _is_sorted(rank):
        order = np.argsort(rank, kind="stable")
        if len(order) < 2**31:
            order = order.astype(np.int32)
        for name in list(columns):
            columns[name] = columns[name][order]
    for rows in split_ranks(columns, int(columns["rank"][-1]) + 1 if len(rank) else 0):
        start = columns["start_ns"][rows]
        if not _is_sorted(start):
            order = np.argsort(start, kind="stable")
            for values in columns.values():
                values[rows] = values[rows][order]
    return columns


def split_ranks(columns: Columns, n_ranks: int) -> list[slice]:
    """Return the rows of each rank in a sorted table."""
    edges = np.searchsorted(columns["rank"], np.arange(n_ranks + 1))
    return [slice(int(edges[rank]), int(edges[rank + 1])) for rank in range(n_ranks)]


def _is_sorted(values: Array) -> bool:
    return bool((values[1:] >= values[:-1]).all())
