"""Describe what a group's steps consist of, in words that another recording can be held against."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.observations import BatchSeries, KernelUse, Observations
from dprankdiag.analysis.segments import KeyTimes
from dprankdiag.analysis.statistics import FloatArray
from dprankdiag.catalog.kernels import FAMILIES
from dprankdiag.model.sources import Names

IntArray = np.ndarray[Any, np.dtype[np.int64]]

MOST_KERNELS = 96
"""Kernels kept, by time; what is beyond takes little of it."""

BATCH_FIELDS = ("requests", "held_tokens", "prefill_tokens")


def list_kernel_uses(keys: Sequence[KeyTimes], equal_work: IntArray, names: Names) -> tuple[KernelUse, ...]:
    """List the kernels that take the group longest.

    Args:
        keys: key times of the group's ranks.
        equal_work: sorted keys of equal work on every rank.
    """
    if not names.kernel_names or not names.shapes:
        return ()
    every = np.unique(np.concatenate([item.key for item in keys]))
    calls, total = (np.zeros((len(every), len(keys)), np.int64) for _ in range(2))
    family = np.zeros(len(every), np.int64)
    for rank, item in enumerate(keys):
        where = np.searchsorted(every, item.key)
        calls[where, rank], total[where, rank], family[where] = item.count, item.total_ns, item.family
    longest = np.argsort(-total.sum(axis=1), kind="stable")[:MOST_KERNELS]
    n_shapes = len(names.shapes)
    return tuple(
        KernelUse(
            names.kernel_names[int(every[k]) // n_shapes].demangled,
            names.shapes[int(every[k]) % n_shapes],
            FAMILIES[family[k]],
            bool(np.isin(every[k], equal_work)),
            calls[k],
            total[k],
        )
        for k in longest
    )


def count_members(grid: StepGrid) -> IntArray:
    """Count the ranks that meet the first rank at each position, `(n_positions,)`."""
    return np.asarray((grid.group == grid.group[:, :1]).sum(axis=1))


def digest_order(grid: StepGrid) -> str:
    """Digest which operations a step meets in, and how many ranks each joins; equal for steps that may be compared.

    Where work stands still for a call beside it depends on who is late, and makes no other kind of step.
    """
    members = count_members(grid)
    order = [f"{grid.operation[k]}/{members[k]}" for k in grid.meetings]
    return blake2b(" ".join(order).encode(), digest_size=8).hexdigest()


def sum_transfers(grid: StepGrid) -> dict[tuple[str, int], tuple[int, FloatArray]]:
    """Sum the transfers of a step by operation and number of members.

    Returns:
        Calls a step, and `(n_steps,)` ns a step, the mean over the ranks.
    """
    sizes = count_members(grid).tolist()
    places: dict[tuple[str, int], list[int]] = {}
    for position in grid.meetings:
        places.setdefault((grid.operation[position], sizes[position]), []).append(position)
    return {
        pair: (len(chosen), grid.transfer[:, chosen].mean(axis=2).sum(axis=1).astype(np.float64))
        for pair, chosen in sorted(places.items())
    }


def average_batch(seen: Observations, grid_id: int) -> dict[str, float]:
    """Average what the batch annotations of a kind of step say of all ranks together; NaN where any rank is silent."""
    mine = np.flatnonzero(seen.grid_of == grid_id)
    found = {}
    for field in BATCH_FIELDS:
        means = [_average(seen, series, field, mine) for series in seen.batches]
        found[field] = float(np.sum(means)) if means else float("nan")
    return found


def _average(seen: Observations, series: BatchSeries, field: str, steps: IntArray) -> float:
    # An annotation begins with the launches of its step, so it lies before the step's end on the GPU.
    step = np.searchsorted(seen.end_ns, series.start_ns, side="right")
    values = getattr(series, field)[np.isin(step, steps)]
    return float(values.mean()) if len(values) else float("nan")
