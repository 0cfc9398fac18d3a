"""Any step of a lockstep group in full: its meetings, and the kernels between them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.kernel_record import KernelRecord
from dprankdiag.analysis.last_arrivals import find_awaited, find_last
from dprankdiag.analysis.observations import Observations
from dprankdiag.model.results import STEP_KERNELS, WORK, WORST_MEETINGS
from dprankdiag.model.schema import ABSENT_ID, Columns, join_rows, take_rows

IntArray = np.ndarray[Any, np.dtype[np.int64]]

MOST_KERNELS = 100_000
"""Rows of a group's worst step that a bundle keeps: those of 64 ranks with 1,500 kernels each, about a megabyte."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What is known of the steps of a lockstep group while its recording is open.

    Attributes:
        number: ordinal of the group among all.
        packed: kernels of its ranks; None if the recording holds none.
    """

    number: int
    seen: Observations
    packed: KernelRecord | None = None

    def list_meetings(self, step: int) -> Columns:
        """Lay a step out: every rank leaves the step before, and each meeting follows the segment before it.

        Returns:
            Rows of `model.results.WORST_MEETINGS`.
        """
        ranks = np.array([rank.rank for rank in self.seen.ranks], np.int32)
        grid = self._take_grid(step)
        segment, wait, transfer = grid.segment[0], grid.wait[0], grid.own_transfer[0]
        length = segment + wait + transfer
        end = grid.start_ns[0] + grid.entry[0] + np.cumsum(length, axis=0)
        start = end - length
        work = np.minimum(sum(grid.components[name][0] for name in WORK), np.maximum(segment, 0))
        n_positions, n_ranks = segment.shape
        awaited, place = find_awaited(grid), find_last(grid)[0]
        last = np.where(place >= 0, ranks[place], ABSENT_ID)
        return WORST_MEETINGS.check(
            {
                "group": np.full(segment.size, self.number, np.int16),
                "position": np.repeat(np.arange(n_positions, dtype=np.int32), n_ranks),
                "rank": np.tile(ranks, n_positions),
                "start_ns": start.ravel(),
                "arrival_ns": (start + segment).ravel(),
                "wait_ns": wait.ravel(),
                "end_ns": end.ravel(),
                "work_ns": np.asarray(work, np.int64).ravel(),
                "last_rank": last.astype(np.int32).ravel(),
                "awaited": np.repeat(awaited, n_ranks).astype(np.int32),
            }
        )

    def list_kernels(self, step: int) -> Columns:
        """List the kernels that each rank begins in its own step, from its leaving the step before.

        Returns:
            Rows of `model.results.STEP_KERNELS`; none if the recording holds no kernels.
        """
        if self.packed is None:
            return STEP_KERNELS.empty()
        grid = self._take_grid(step)
        begin = grid.start_ns[0] + grid.entry[0]
        end = begin + (grid.segment[0] + grid.wait[0] + grid.own_transfer[0]).sum(axis=0)
        parts = []
        for rank, low, high in zip(self.seen.ranks, begin.tolist(), end.tolist(), strict=True):
            rows = self.packed.take(rank, low, high)
            n = len(rows["start_ns"])
            ids = {"group": np.full(n, self.number), "step": np.full(n, step), "rank": np.full(n, rank.rank)}
            parts.append(STEP_KERNELS.check(rows | ids))
        return join_rows(STEP_KERNELS, parts)

    def _take_grid(self, step: int) -> StepGrid:
        """Take a step as a grid of that step alone."""
        grid: StepGrid = self.seen.grids[int(self.seen.grid_of[step])]
        return grid.take(np.array([self.seen.row_of[step]]))


def find_worst(seen: Observations) -> int:
    """Find the step in which the ranks wait longest against the median length of its kind; the first of equals."""
    median = np.array([max(median_length(grid), 1) for grid in seen.grids])
    return int(np.argmax(seen.sums["wait"].mean(axis=1) / median[seen.grid_of]))


def median_length(grid: StepGrid) -> int:
    """Return the median length of a kind of step, ns."""
    return round(float(np.median(grid.duration_ns)))


def keep_kernels(kernels: Columns, meetings: Columns, named: Collection[int], most: int = MOST_KERNELS) -> Columns:
    """Keep the kernels of as many ranks as there is room for.

    Those that findings name come first, then who comes last most often, then who waits longest; always one at least.

    Args:
        kernels, meetings: rows of STEP_KERNELS and WORST_MEETINGS of one step.
        named: ranks that findings name.
    """
    last = {rank: int((meetings["last_rank"] == rank).sum()) for rank in np.unique(meetings["rank"]).tolist()}
    wait = {rank: int(meetings["wait_ns"][meetings["rank"] == rank].sum()) for rank in last}
    order = sorted(last, key=lambda rank: (rank not in named, -last[rank], -wait[rank], rank))
    counts = np.array([int((kernels["rank"] == rank).sum()) for rank in order], np.int64)
    fitting = max(int(np.searchsorted(np.cumsum(counts), most, side="right")), 1)
    return take_rows(kernels, np.isin(kernels["rank"], order[:fitting]))
