"""Find work of GPUs that a recording shows only from beside: its kernels, or their names, are not in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.model.sources import Trace


@dataclass(frozen=True, slots=True)
class Unseen:
    """What a recording lacks although its own other rows show that it was there.

    Attributes:
        bare: positions of ranks without a kernel or graph replay, although their own GPU copied or waited, or other
            ranks have kernels.
        unnamed_ratio: share of the kernels' time whose names are gone.
    """

    bare: tuple[int, ...] = ()
    unnamed_ratio: float = 0.0


def find_unseen(trace: Trace) -> Unseen:
    """Compare the tables of a trace, of which none is taken over."""
    n_ranks = len(trace.ranks)
    held, used = (
        np.sum([np.bincount(trace.tables[name]["rank"], minlength=n_ranks) for name in names], axis=0)
        for names in (("kernels", "graph_replays"), ("copies", "syncs"))
    )
    missing = np.array([name.is_missing for name in trace.names.kernel_names], bool)
    ratio = 0.0
    if missing.any():
        kernels = trace.tables["kernels"]
        busy_ns = np.bincount(kernels["name_id"], kernels["end_ns"] - kernels["start_ns"], len(missing))
        ratio = float(busy_ns[missing].sum() / max(busy_ns.sum(), 1.0))
    return Unseen(tuple(np.flatnonzero((held == 0) & ((used > 0) | held.any())).tolist()), ratio)
