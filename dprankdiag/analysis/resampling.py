"""Draw the steps of a recording anew, as if another stretch of the same deployment had been recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dprankdiag.analysis.grid import FEWEST_STEPS
from dprankdiag.analysis.observations import BatchSeries, Observations
from dprankdiag.analysis.statistics import block_length

IntArray = np.ndarray[Any, np.dtype[np.int64]]


def draw_in_order(n: int, draws: int, drawn: int | None = None, seed: int = 0) -> IntArray:
    """Draw block-bootstrap samples of step indices whose blocks stay in the order of time, `(draws, drawn)`.

    What begins or ends within a recording still does so: causes that are told by when they act need that.

    Args:
        drawn: steps of a sample; as many as there are if not given.

    Source: moving blocks as `statistics.draw_blocks` draws them, here sorted by where they start.
    """
    length = block_length(n)
    drawn = n if drawn is None else drawn
    blocks = -(-drawn // length)
    starts = np.sort(np.random.default_rng(seed).integers(0, n - length + 1, (draws, blocks)), axis=1)
    index = starts[:, :, None] + np.arange(length)[None, None, :]
    return index.reshape(draws, -1)[:, :drawn]


def take_steps(seen: Observations, index: IntArray) -> Observations:
    """Return the observations of some steps, each as often as it is named, laid end to end.

    Kinds of steps that are too few to compare are left out, as when a recording is read. What is not told by step
    (probes over the whole recording, abilities, a reference) stays as it is; what only serves as evidence is left out.

    Args:
        index: `(n,)` steps by their number in order of time.
    """
    count = np.bincount(seen.grid_of[index], minlength=len(seen.grids))
    kept = np.flatnonzero(count >= min(FEWEST_STEPS, int(count.max())))
    index = index[np.isin(seen.grid_of[index], kept)]
    grid_of = seen.grid_of[index]
    grids = []
    row_of = np.empty(len(index), np.int64)
    for grid_id in kept.tolist():
        mine = grid_of == grid_id
        grids.append(seen.grids[grid_id].take(seen.row_of[index[mine]]))
        row_of[mine] = np.arange(int(mine.sum()))
    length = seen.duration_ns[index]
    end = seen.start_ns[0] + np.cumsum(length)
    start = end - length
    return replace(
        seen,
        grids=tuple(grids),
        grid_of=np.searchsorted(kept, grid_of),
        row_of=row_of,
        start_ns=start,
        end_ns=end,
        sums={name: values[index] for name, values in seen.sums.items()},
        batches=tuple(_take_batches(seen, series, index, start) for series in seen.batches),
        os_calls=None,
        ranges=None,
        prefill=None if seen.prefill is None else seen.prefill[index],
        host_come=None if seen.host_come is None else seen.host_come[index],
    )


def _take_batches(seen: Observations, series: BatchSeries, index: IntArray, start_ns: IntArray) -> BatchSeries:
    """Take the annotations of the steps, as far after each step's start as they were."""
    step = seen.find_step(series.start_ns)
    inside = np.flatnonzero(step < seen.n_steps)
    inside = inside[series.start_ns[inside] >= seen.start_ns[step[inside]]]
    inside = inside[np.argsort(step[inside], kind="stable")]
    first, stop = (np.searchsorted(step[inside], index, side=side) for side in ("left", "right"))
    count = stop - first
    ordinal = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    rows = inside[np.repeat(first, count) + ordinal]
    moved = np.repeat(start_ns - seen.start_ns[index], count)
    return BatchSeries(
        series.start_ns[rows] + moved, series.requests[rows], series.held_tokens[rows], series.prefill_tokens[rows]
    )
