"""All that a classifier may look at: the steps of one lockstep group, and what the recording could not show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.statistics import BoolArray, FloatArray
from dprankdiag.model.ranks import Rank
from dprankdiag.model.reference import Reference
from dprankdiag.model.results import COMPONENTS
from dprankdiag.model.sources import Shape

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class ProbeTimes:
    """Kernels of equal work on all ranks, from the whole recording.

    Attributes:
        mean_ns: `(n_keys, n_ranks)` mean time of one such kernel.
        weight_ns: `(n_keys,)` time spent in it.
        family: `(n_keys,)` family name of each.
    """

    mean_ns: FloatArray
    weight_ns: FloatArray
    family: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelUse:
    """How often the members ran a kernel (name and launch shape), and how long.

    Attributes:
        is_equal_work: the kernel does equal work on every member.
        calls, total_ns: `(n_ranks,)`.
    """

    name: str
    shape: Shape
    family: str
    is_equal_work: bool
    calls: IntArray
    total_ns: IntArray


@dataclass(frozen=True, slots=True)
class BatchSeries:
    """One rank's batch annotations, in order of time; arrays `(n,)`, NaN where an annotation does not say.

    Attributes:
        start_ns: when the GPU began the batch; where no launches are known, when the annotation began.
    """

    start_ns: IntArray
    requests: FloatArray
    held_tokens: FloatArray
    prefill_tokens: FloatArray


@dataclass(frozen=True, slots=True)
class NamedSpans:
    """What the members' threads were in, columns `(n,)`; `rank` is the position among the members."""

    rank: IntArray
    start_ns: IntArray
    end_ns: IntArray
    name: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the recording carries.

    Attributes:
        has_kernels: GPU kernels were traced; otherwise annotated ranges of CPU processes stand for work.
        has_launches: launch calls were traced, so that host lateness is measured and not bounded.
        whole_graphs: CUDA graphs were recorded as one row a replay; what is inside is invisible.
        uneven: why the ranks were not profiled alike; None if they were.
        missing_ranks: members of the deployment without a recording.
        clock_bound_ns: exit lateness below this is not claimed.
        unplaced_ratio: share of the time in which work stood still for calls that ran beside it, at places that differ
            from step to step, so that no replay knows of it.
        clock_doubt_ratio: share of the time that late exits would cost which cannot be told from the clocks.
        clocks: members (positions) whose clocks agree without being fitted.
        clock_doubt: whose they would be (positions among the members) and how late out of a meeting, ns.
    """

    has_kernels: bool
    has_launches: bool
    whole_graphs: bool
    uneven: str | None
    missing_ranks: tuple[int, ...]
    clock_bound_ns: int
    unplaced_ratio: float = 0.0
    clock_doubt_ratio: float = 0.0
    clock_doubt: tuple[tuple[int, ...], int] = ((), 0)
    clocks: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Observations:
    """The steps of one lockstep group of ranks.

    Attributes:
        ranks: the members, in order of the `rank` axis of every array.
        grids: the steps by kind.
        grid_of, row_of: `(n_steps,)` where each step, in order of time, lies in the grids.
        start_ns, end_ns: `(n_steps,)`.
        basis: how the steps were cut (see `analysis.steps.Cut`).
        sums: `(n_steps, n_ranks)` of every component, summed over the step; also "exit", "wait" and "transfer", and
            "inherited", the part of "host" in which the hosts of others were waited for.
        teams: ranks that share one DP rank's requests (attention tensor parallel), as positions.
        row_ratio: `(n_ranks,)` rows of the local batch against the peers' median, from the grids of kernels whose
            launch shape follows the rows; None where no shape does.
        prefill_share: `(n_ranks,)` share of segments in which the rank ran prefill attention.
        batches: what each rank's batch annotations say, one a rank; empty if no rank has any.
        os_calls: the system calls of the hosts' threads; None if they were not recorded.
        ranges: annotated ranges of processes without kernels, for evidence of host claims; None if there are kernels.
        kernels: what the members ran longest, whole recording.
        reference: another recording of the group; None where none was given.
        prefill: `(n_steps, n_ranks)` whether the rank ran prefill attention in the step; None if that is not known.
        row_blocks: launch sizes that all ranks used for kernels that run once a row (see `analysis.probes`); None if
            no kernels were recorded.
        host_come: `(n_steps, n_ranks)` when each host came to the hosts' meeting, ns since the step's start (see
            `analysis.host_meetings`); None if no range shows one.
    """

    ranks: tuple[Rank, ...]
    grids: tuple[StepGrid, ...]
    grid_of: IntArray
    row_of: IntArray
    start_ns: IntArray
    end_ns: IntArray
    basis: str
    sums: dict[str, FloatArray]
    probes: ProbeTimes
    abilities: Abilities
    teams: tuple[tuple[int, ...], ...]
    row_ratio: FloatArray | None
    prefill_share: FloatArray
    batches: tuple[BatchSeries, ...] = ()
    os_calls: NamedSpans | None = None
    ranges: NamedSpans | None = None
    kernels: tuple[KernelUse, ...] = ()
    reference: Reference | None = None
    prefill: BoolArray | None = None
    row_blocks: IntArray | None = None
    host_come: FloatArray | None = None

    @property
    def engine(self) -> str:
        """Name the engine of the members."""
        return self.ranks[0].engine

    @property
    def n_steps(self) -> int:
        """Count the steps."""
        return len(self.start_ns)

    @property
    def n_ranks(self) -> int:
        """Count the members."""
        return len(self.ranks)

    @property
    def homes(self) -> dict[str, BoolArray]:
        """Mark the members on each host, `(n_ranks,)`; empty if a member's host is unknown."""
        hosts = [rank.host for rank in self.ranks]
        known = sorted({host for host in hosts if host is not None})
        return {} if None in hosts else {host: np.array([other == host for other in hosts]) for host in known}

    @property
    def duration_ns(self) -> IntArray:
        """Wall time of each step, `(n_steps,)`."""
        return np.asarray(self.end_ns - self.start_ns)

    @property
    def median_step_ns(self) -> float:
        """Median wall time of a step."""
        return float(np.median(self.duration_ns)) if self.n_steps else 0.0

    def spread_factor(self, factor: FloatArray) -> tuple[FloatArray, ...]:
        """Turn a factor by step and rank `(n_steps, n_ranks)` into one array a grid."""
        return tuple(factor[np.flatnonzero(self.grid_of == grid_id)][:, None, :] for grid_id in range(len(self.grids)))

    def select(self, grid_id: int, steps: BoolArray) -> BoolArray:
        """Return which rows of a grid are among the given steps."""
        return np.asarray(steps[self.grid_of == grid_id])

    def find_step(self, begun_ns: IntArray) -> IntArray:
        """Find the step of what began at the given times, `(n,)`; `n_steps` for what lies behind the last.

        A batch begins before its step's end on the GPU, and after the end of the step before.
        """
        return np.searchsorted(self.end_ns, begun_ns, side="right")

    def name_of(self, position: int) -> str:
        """Name a member for people; an assumed rank is named by its process."""
        rank = self.ranks[position]
        if rank.grade == "assumed" and rank.pid is not None:
            return f"process {rank.pid} (rank {rank.rank} assumed)"
        return f"rank {rank.rank}"

    def names_of(self, positions: Sequence[int]) -> str:
        """Name several members for people."""
        return ", ".join(self.name_of(position) for position in positions)


def sum_steps(grids: Sequence[StepGrid]) -> tuple[IntArray, IntArray, dict[str, FloatArray]]:
    """Order the steps of all grids by time and sum their components.

    Returns:
        grid_of, row_of and sums of `Observations`.
    """
    grid_of = np.concatenate([np.full(len(grid.number), grid_id) for grid_id, grid in enumerate(grids)])
    row_of = np.concatenate([np.arange(len(grid.number)) for grid in grids])
    order = np.argsort(np.concatenate([grid.start_ns for grid in grids]), kind="stable")
    sums: dict[str, FloatArray] = {}
    for name in (*COMPONENTS, "wait", "exit", "transfer"):
        parts = []
        for grid in grids:
            values = grid.components[name] if name in COMPONENTS else getattr(grid, name)
            parts.append(values.sum(axis=1))
        sums[name] = np.concatenate(parts)[order].astype(np.float64)
    sums["inherited"] = np.concatenate([grid.inherited_ns for grid in grids])[order].astype(np.float64)
    # Within one grid the rows are in order of time already, so sorting all keeps them in order.
    return grid_of[order], row_of[order], sums


def order_steps(seen: Observations, parts: Sequence[np.ndarray[Any, Any]]) -> FloatArray:
    """Put per-grid rows into the order of the recording's steps."""
    result = np.empty((seen.n_steps, *parts[0].shape[1:]))
    for grid_id, part in enumerate(parts):
        result[seen.grid_of == grid_id] = part
    return result


def mark_next(seen: Observations, marks: BoolArray) -> BoolArray:
    """Mark the steps that follow at once on those marked; `(n_steps,)` or with more axes behind."""
    number = order_steps(seen, [grid.number for grid in seen.grids])
    follows = (np.diff(number) == 1).reshape(-1, *(1,) * (marks.ndim - 1))
    after = np.zeros(marks.shape, bool)
    after[1:] = marks[:-1] & follows
    return after
