"""Find work of GPUs that a recording shows only from beside: its kernels, or their names, are not in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.model.sources import Trace

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Unseen:
    """What a recording lacks although its own other rows show that it was there.

    Attributes:
        bare: positions of ranks without a kernel, graph replay or digest of them, although their own GPU copied or
            waited, or other ranks have kernels.
        unnamed_ratio: share of the kernels' time whose names are gone.
    """

    bare: tuple[int, ...] = ()
    unnamed_ratio: float = 0.0


def find_unseen(trace: Trace) -> Unseen:
    """Compare the tables of a trace, of which none is taken over."""
    n_ranks = len(trace.ranks)
    held, used = (
        np.sum([_count_rows(trace.tables[name]["rank"], n_ranks) for name in names], axis=0)
        for names in (("kernels", "graph_replays"), ("copies", "syncs"))
    )
    if trace.digests:
        held = held + np.array([bool(tables) for tables in trace.digests])
    missing = np.array([name.is_missing for name in trace.names.kernel_names], bool)
    ratio = 0.0
    if missing.any():
        kernels = trace.tables["kernels"]
        busy_ns = np.bincount(kernels["name_id"], kernels["end_ns"] - kernels["start_ns"], len(missing))
        ratio = float(busy_ns[missing].sum() / max(busy_ns.sum(), 1.0))
    return Unseen(tuple(np.flatnonzero((held == 0) & ((used > 0) | held.any())).tolist()), ratio)


def _count_rows(rank: IntArray, n_ranks: int) -> IntArray:
    """Count the rows of each rank in a table sorted by it; nothing as long as the table is held for it."""
    counts: IntArray = np.diff(np.searchsorted(rank, np.arange(n_ranks + 1, dtype=rank.dtype)))
    return counts
