"""Replay the measured step graph with claims undone, and share the lost time among them.

The graph is max-plus: a collective ends at the group's last arrival plus its transfer, a rank leaves it with the exit
lateness it was measured to have, and reaches its next meeting after its own segment. Where the hosts meet between
steps, nobody goes on before the last has come there. Where a collective runs beside the rank's work, the rank goes on
at once and stands still only where its work needs the result.

Source: a collective that ends at max(start) + transfer, as in Lin et al., "Understanding Stragglers in Large Model
Training Using What-if Analysis" (OSDI 2025); sharing by Shapley, "A Value for n-Person Games" (1953).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial
from typing import Any

import numpy as np

from dprankdiag.analysis.borders import Border
from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.participations import FORK, FULL, JOIN
from dprankdiag.model.claims import BoolArray, Claim, Undo

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]

NOTIFY = "notify"
"""Family of the exchanges that hosts wait for (DESIGN 2.1, rule 6)."""

EXACT_CLAIMS = 8
PERMUTATIONS = 48
FEWEST_PREDICTED = 5


@dataclass(frozen=True, slots=True)
class Shares:
    """What each claim costs, step by step.

    Attributes:
        measured: `(n_steps,)` replayed wall time as it was, steps ordered by grid and row.
        balanced: `(n_steps,)` with every claim undone.
        lost: `(n_claims, n_steps)`; its sum over claims is measured - balanced.
        even: `(n_steps,)` balanced, and every segment at its mean: what noise costs is balanced - even.
    """

    measured: FloatArray
    balanced: FloatArray
    lost: FloatArray
    even: FloatArray


def replay(grid: StepGrid, undos: Sequence[tuple[str, FloatArray]], begun: FloatArray | None = None) -> FloatArray:
    """Replay the steps of a grid with components scaled.

    Args:
        undos: (component, factor) with factors broadcastable to `(n_steps, n_positions, n_ranks)`.
        begun: what `find_begun` finds of the grid, so that it is found once for many replays.

    Returns:
        `(n_steps,)` wall time of each step, ns.
    """
    exit_ns = grid.exit.astype(np.float64)
    transfer = grid.transfer.astype(np.float64)
    entry = grid.entry.astype(np.float64)
    scale = _join_factors(undos)
    if "exit" in scale:
        exit_ns, entry = _scale_exit(grid, exit_ns, entry, scale["exit"])
    if "transfer" in scale:
        transfer = transfer * scale["transfer"]
    segment = np.maximum(_scale_segment(grid, scale), 0.0)
    launches = _take_launches(grid, scale, find_begun(grid) if begun is None else begun)
    return run_steps(grid, segment, transfer, exit_ns, entry, _scale_tail(grid, scale), launches)


def _join_factors(undos: Sequence[tuple[str, FloatArray]]) -> dict[str, FloatArray]:
    """Multiply the factors that several undos put on one component."""
    scale: dict[str, FloatArray] = {}
    for component, factor in undos:
        scale[component] = scale[component] * factor if component in scale else np.asarray(factor, np.float64)
    return scale


def _scale_segment(grid: StepGrid, scale: Mapping[str, FloatArray]) -> FloatArray:
    """Scale the components of the segments; `(n_steps, n_positions, n_ranks)`, ns, not yet cut off at zero."""
    segment = grid.segment.astype(np.float64)
    for component, factor in scale.items():
        if component not in ("exit", "transfer", "launch"):
            segment = segment + grid.components[component] * (factor - 1.0)
    return segment


TAIL = ("probe", "other")
"""What ranks are busy with after the last meeting of a step; attention and experts lie between meetings."""


def _scale_tail(grid: StepGrid, scale: Mapping[str, FloatArray]) -> FloatArray | None:
    """Scale what ranks do before the hosts meet as such work of the first segment, `(n_steps, n_ranks)`.

    Hosts that stall before they meet hold up all others there: what a factor takes off their idle time comes off the
    time before first, as far as that is longer than the others'.
    """
    if grid.border is None:
        return None
    work, change = np.zeros(grid.border.tail.shape), np.zeros(grid.border.tail.shape)
    for name in TAIL:
        own = grid.components[name][:, 0]
        work += own
        if name in scale:
            change += own * (np.broadcast_to(scale[name], grid.segment.shape)[:, 0] - 1.0)
    tail = grid.border.tail * np.maximum(1.0 + change / np.maximum(work, 1.0), 0.0)
    if "host" in scale:
        idle = grid.components["host"][:, 0]
        before = _typical_excess(np.maximum(idle - grid.border.idle, 0))
        taken = idle * (1.0 - np.broadcast_to(scale["host"], grid.segment.shape)[:, 0])
        tail = tail - np.clip(taken, 0.0, before)
    return np.asarray(tail)


def _typical_excess(values: IntArray) -> IntArray:
    """Return by how much each rank exceeds the lower quarter of the ranks, `(n_steps, n_ranks)`; half may be ill."""
    quarter = np.sort(values, axis=1)[:, (values.shape[1] - 1) // 4, None]
    return np.asarray(np.maximum(values - quarter, 0))


@dataclass(frozen=True, slots=True)
class Launches:
    """When hosts launch: at moments of their own, whatever the GPUs do meanwhile.

    Attributes:
        idle: `(n_steps, n_positions, n_ranks)` how long a segment stands idle for launches; negative where they lead.
        ready: `(n_steps, n_positions, n_ranks)` when the segment began as measured, since the start of the step.
    """

    idle: FloatArray
    ready: FloatArray


def find_begun(grid: StepGrid) -> FloatArray | None:
    """Find when every segment began as measured (see `Launches.ready`); None where launches are not replayed."""
    if grid.ahead is None or grid.beside is not None:
        return None
    stay = grid.segment + grid.wait + grid.own_transfer
    return np.asarray(grid.entry[:, None, :] + np.cumsum(stay, axis=1) - stay, np.float64)


def _take_launches(grid: StepGrid, scale: Mapping[str, FloatArray], begun: FloatArray | None) -> Launches | None:
    """Take when launches came, those that a factor on `host` makes earlier with it; 0 on `launch` lets none be late."""
    if grid.ahead is None or begun is None:
        return None
    idle = -grid.ahead.astype(np.float64)
    if "host" in scale:
        # A host that is late with one launch is late with all that follow in the step.
        idle = idle + np.cumsum(grid.components["host"] * (scale["host"] - 1.0), axis=1)
    if "launch" in scale:
        idle = np.where(np.broadcast_to(scale["launch"], idle.shape) > 0, idle, -np.inf)
    return Launches(idle, begun)


def _scale_exit(
    grid: StepGrid, exit_ns: FloatArray, entry: FloatArray, factor: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Scale late exits; a rank enters a step as late as it left the last meeting of the step before."""
    full = np.broadcast_to(factor, exit_ns.shape)
    before = np.minimum(np.searchsorted(grid.number, grid.number - 1), len(grid.number) - 1)
    known = grid.number[before] == grid.number - 1
    return exit_ns * full, entry * np.where(known[:, None], full[before, -1, :], full[:, -1, :])


def run_steps(
    grid: StepGrid,
    segment: FloatArray,
    transfer: FloatArray,
    exit_ns: FloatArray,
    entry: FloatArray,
    tail: FloatArray | None = None,
    launches: Launches | None = None,
) -> FloatArray:
    """Run the max-plus recursion over the positions of a grid.

    Args:
        segment, transfer, exit_ns: `(n_steps, n_positions, n_ranks)`.
        entry: `(n_steps, n_ranks)`.
        tail: what each rank does before the hosts meet, `(n_steps, n_ranks)`, where they do: as measured if not given.
        launches: when hosts launch; if not given, a segment stands idle for them as long as it did.
    """
    ready = entry
    earlier = _move_hosts(grid, entry, tail)
    end = ready
    ends: dict[int, FloatArray] = {}
    running: FloatArray | None = None
    beside = grid.beside
    for position in range(segment.shape[1]):
        here = segment[:, position]
        if beside is not None and running is not None:
            # Calls that run beside the work for shorter cost it less.
            change = np.clip(running - ready, 0, here) - beside.beside_ns[:, position]
            here = np.maximum(here + change * beside.burden[:, position], 0.0)
        if launches is not None and position > 0:
            idle = launches.idle[:, position]
            here = here + np.maximum(idle + launches.ready[:, position] - ready + earlier, 0.0) - np.maximum(idle, 0.0)
        reach = ready + here
        if position == 0 and grid.border is not None:
            reach = _pass_border(grid.border, reach, entry + (grid.border.tail if tail is None else tail))
        event = FULL if beside is None else int(beside.event[position])
        if beside is not None and event == JOIN:
            partner = int(beside.partner[position])
            needed = ends[partner] if partner >= 0 else beside.outer_end[:, position, None]
            ready = np.maximum(reach, needed) + exit_ns[:, position]
            continue
        arrival = reach
        if beside is not None and event == FORK:
            previous = int(beside.previous[position])
            arrival = (np.maximum(reach, ends[previous]) if previous >= 0 else reach) + beside.lag[:, position]
        end = _find_last(arrival, grid.group[position]) + transfer[:, position]
        ends[position] = end + exit_ns[:, position]
        if event == FORK:
            running = ends[position] if running is None else np.maximum(running, ends[position])
        stands = grid.waits[:, position]
        ready = np.where(stands, end + exit_ns[:, position], reach + grid.own_transfer[:, position])
        if launches is not None and grid.family[position] == NOTIFY and position + 1 < segment.shape[1]:
            # The host goes on when its GPU has the counts.
            earlier = ready - launches.ready[:, position + 1]
    return np.asarray(end.max(axis=1))


def _move_hosts(grid: StepGrid, entry: FloatArray, tail: FloatArray | None) -> FloatArray:
    """Return how much later than measured each host begins the step, `(n_steps, n_ranks)`."""
    if grid.border is None:
        return entry - grid.entry
    done = entry + (grid.border.tail if tail is None else tail)
    return np.asarray(done.max(axis=1, keepdims=True) - (grid.entry + grid.border.tail).max(axis=1, keepdims=True))


def _pass_border(border: Border, reach: FloatArray, done: FloatArray) -> FloatArray:
    """Let every rank stand idle at the border of steps until the last has come there."""
    slack = done.max(axis=1, keepdims=True) - done
    return np.asarray(reach + slack - border.slack)


def _find_last(arrival: FloatArray, group: IntArray) -> FloatArray:
    """Return the last arrival of every rank's group, `(n_steps, n_ranks)` or `(n_steps, 1)`."""
    if (group == group[0]).all():
        return np.asarray(arrival.max(axis=1, keepdims=True))
    last = np.empty_like(arrival)
    for member_group in np.unique(group):
        members = group == member_group
        last[:, members] = arrival[:, members].max(axis=1, keepdims=True)
    return last


def share_losses(grids: Sequence[StepGrid], claims: Sequence[Claim]) -> Shares:
    """Share the time that the claims cost among them by Shapley value.

    Exact up to `EXACT_CLAIMS` claims, else over seeded permutations.
    """
    cache: dict[frozenset[int], FloatArray] = {}
    begun = [find_begun(grid) for grid in grids]

    def wall(undone: frozenset[int]) -> FloatArray:
        if undone not in cache:
            undos = [undo for index in sorted(undone) for undo in claims[index].undo]
            cache[undone] = _replay_all(grids, undos, begun)
        return cache[undone]

    everything = frozenset(range(len(claims)))
    measured, balanced = wall(frozenset()), wall(everything)
    exact = len(claims) <= EXACT_CLAIMS
    lost = _shapley_exact(len(claims), wall) if exact else _shapley_sampled(len(claims), wall)
    even = _replay_even(grids, [undo for claim in claims for undo in claim.undo])
    return Shares(measured, balanced, lost.reshape(len(claims), len(measured)), even)


def _shapley_exact(n: int, wall: Callable[[frozenset[int]], FloatArray]) -> FloatArray:
    lost = []
    for index in range(n):
        others = [other for other in range(n) if other != index]
        share = np.zeros_like(wall(frozenset()))
        for size in range(n):
            weight = factorial(size) * factorial(n - size - 1) / factorial(n)
            for chosen in combinations(others, size):
                before = frozenset(chosen)
                share += weight * (wall(before) - wall(before | {index}))
        lost.append(share)
    return np.array(lost) if lost else np.empty((0, len(wall(frozenset()))))


def _shapley_sampled(n: int, wall: Callable[[frozenset[int]], FloatArray]) -> FloatArray:
    random = np.random.default_rng(0)
    lost = np.zeros((n, len(wall(frozenset()))))
    for _ in range(PERMUTATIONS):
        undone: frozenset[int] = frozenset()
        for index in random.permutation(n):
            after = undone | {int(index)}
            lost[index] += (wall(undone) - wall(after)) / PERMUTATIONS
            undone = after
    return lost


def replay_with(grids: Sequence[StepGrid], undos: Sequence[Undo]) -> FloatArray:
    """Replay all grids with the given undos; steps ordered by grid and row."""
    return _replay_all(grids, undos, [None] * len(grids))


def _replay_all(grids: Sequence[StepGrid], undos: Sequence[Undo], begun: Sequence[FloatArray | None]) -> FloatArray:
    pairs = zip(grids, begun, strict=True)
    return np.concatenate([replay(grid, _of_grid(undos, index), own) for index, (grid, own) in enumerate(pairs)])


def _of_grid(undos: Sequence[Undo], index: int) -> list[tuple[str, FloatArray]]:
    return [(undo.component, undo.factors[index]) for undo in undos]


def _replay_even(grids: Sequence[StepGrid], undos: Sequence[Undo]) -> FloatArray:
    """Replay with the claims undone and every segment at its mean over the steps of its kind."""
    walls = []
    for index, grid in enumerate(grids):
        segment = _scale_segment(grid, _join_factors(_of_grid(undos, index)))
        mean = np.broadcast_to(segment.mean(axis=0, keepdims=True).clip(0), segment.shape)
        transfer = np.broadcast_to(grid.transfer.mean(axis=0, keepdims=True), segment.shape)
        exit_ns = np.broadcast_to(grid.exit.mean(axis=0, keepdims=True), segment.shape)
        entry = np.broadcast_to(grid.entry.mean(axis=0, keepdims=True), grid.entry.shape)
        walls.append(run_steps(grid, mean, transfer, exit_ns, entry))
    return np.concatenate(walls)


def measure_hidden(grids: Sequence[StepGrid], undos: Sequence[Undo]) -> float:
    """Measure what systematic differences among the ranks still cost once the undos are done.

    Replays with every rank at the mean segment of its position, in place of its own median, and with every rank
    leaving meetings when the earlier ones do.

    Returns:
        Sum over all steps, ns; at least 0.
    """
    saved = 0.0
    for index, grid in enumerate(grids):
        scale = _join_factors(_of_grid(undos, index))
        segment = _scale_segment(grid, scale)
        typical = np.median(segment, axis=0)
        shift = typical - typical.mean(axis=1, keepdims=True)
        exit_ns, entry = grid.exit.astype(np.float64), grid.entry.astype(np.float64)
        if "exit" in scale:
            exit_ns, entry = _scale_exit(grid, exit_ns, entry, scale["exit"])
        transfer = grid.transfer.astype(np.float64)
        whole = float(run_steps(grid, np.maximum(segment, 0.0), transfer, exit_ns, entry).sum())
        saved += whole - float(run_steps(grid, np.maximum(segment - shift, 0.0), transfer, exit_ns, entry).sum())
        on_time, begun = exit_ns - _typical_lateness(exit_ns), entry - _typical_lateness(entry)
        saved += max(whole - float(run_steps(grid, np.maximum(segment, 0.0), transfer, on_time, begun).sum()), 0.0)
    return max(saved, 0.0)


def _typical_lateness(exit_ns: FloatArray) -> FloatArray:
    """Return by how much each rank usually leaves later than the earlier ones do, shape as `exit_ns` without steps.

    The earlier quarter, not the median, tells what is on time: half of the ranks may be late.
    """
    typical = np.median(exit_ns, axis=0)
    early = np.sort(typical, axis=-1)[..., (typical.shape[-1] - 1) // 4, None]
    return np.asarray(np.maximum(typical - early, 0.0))


def measure_replay_error(grids: Sequence[StepGrid], events: Sequence[BoolArray]) -> float | None:
    """Predict every step from its neighbours: replay their segments, compare the walls.

    Steps in which a claim sees an event are left out: no neighbour can foretell a stall.

    Args:
        events: one a grid, `(n_steps,)`.

    Returns:
        |median of (predicted − measured) / measured|; None with too few steps.
    """
    errors = []
    for grid, event in zip(grids, events, strict=True):
        calm = np.flatnonzero(~event)
        if len(calm) < FEWEST_PREDICTED + 2:
            continue
        wall = replay(grid, [])[calm]
        predicted = (wall[:-2] + wall[2:]) / 2
        measured = grid.duration_ns[calm][1:-1]
        errors.append((predicted - measured) / np.maximum(measured, 1))
    return abs(float(np.median(np.concatenate(errors)))) if errors else None
