"""Play a world: when every host call, kernel and meeting begins and ends.

A meeting ends, for every member, when the last has arrived and the transfer is done; a host launches in order; a kernel
starts when it is launched and its predecessor has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dprankdiag.harness import physics, queueing, roofline
from dprankdiag.harness.activity import host_delays
from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.durations import Batches, Durations, Lane
from dprankdiag.harness.events import Array
from dprankdiag.harness.program import Operation
from dprankdiag.harness.world import Physics, World

START_NS = 20_000_000
"""True time at which the first step begins."""

_RECENT = 4

_COMPUTE: dict[Physics, Callable[[World], Durations]] = {
    "fixed": physics.compute_durations,
    "roofline": roofline.compute_durations,
    "queueing": queueing.compute_durations,
}


@dataclass(frozen=True, slots=True)
class LaneTimes:
    """When the operations of a lane happen: `(steps, operations, ranks)`, calls `(steps, calls, ranks)`.

    Attributes:
        call_of: `(operations,)` the call that launches each operation.
        is_graph_call: `(calls,)` the call launches the step's graph.
    """

    start_ns: Array
    end_ns: Array
    call_start_ns: Array
    call_end_ns: Array
    call_of: Array
    is_graph_call: Array


@dataclass(frozen=True, slots=True)
class HostTimes:
    """What the hosts do around a step: `(steps, ranks)` each."""

    gather_start_ns: Array
    gather_end_ns: Array
    launch_start_ns: Array
    sync_start_ns: Array
    sync_end_ns: Array


@dataclass(frozen=True, slots=True)
class Timeline:
    """A played world.

    Attributes:
        hidden: elements of a row of activations.
        step_end_ns: `(steps,)` end of each step's last operation on any rank.
    """

    world: World
    lanes: tuple[Lane, ...]
    times: tuple[LaneTimes, ...]
    hosts: HostTimes
    batches: Batches
    hidden: int
    step_end_ns: Array

    def wall_ns(self) -> int:
        """Measure the time of all steps that are recorded whole, with the end of the step before.

        When a step begins shows only by how the one before ended: the first of a recording cannot be judged.
        """
        full = self.world.full_steps
        return int(self.step_end_ns[full.stop - 1] - self.step_end_ns[max(full.start, 1) - 1])


def play(world: World) -> Timeline:
    """Play all steps in order."""
    return _Player(world, _COMPUTE[world.physics](world)).run()


class _Player:
    """Hosts and GPUs of all ranks, moved on step by step."""

    def __init__(self, world: World, durations: Durations) -> None:
        self.world, self.durations = world, durations
        self.lanes, self.costs = durations.lanes, durations.hosts
        self.before, self.after, self.burst = host_delays(world)
        self.burst_place = open_stream(world.seed, "burst-place").random((world.run_steps, world.ranks))
        self.host = np.full(world.ranks, START_NS, np.int64)
        self.free = {name: np.full(world.ranks, START_NS, np.int64) for name in ("compute", "comm")}
        self.copied = np.full(world.ranks, START_NS, np.int64)
        self.times = [_empty_times(world, lane) for lane in self.lanes]
        self.marks = {
            name: np.zeros((world.run_steps, world.ranks), np.int64) for name in HostTimes.__dataclass_fields__
        }

    def run(self) -> Timeline:
        ends = np.zeros(self.world.run_steps, np.int64)
        order = sorted(
            (int(step), lane, row) for lane, it in enumerate(self.lanes) for row, step in enumerate(it.steps)
        )
        for step, lane, row in order:
            self._meet_hosts(step)
            self._launch(step, lane, row)
            self._run_stream(lane, row)
            self._synchronise(step, lane, row)
            ends[step] = self.times[lane].end_ns[row].max()
        hosts = HostTimes(**self.marks)
        batches, hidden = self.durations.batches, self.durations.hidden
        return Timeline(self.world, self.lanes, tuple(self.times), hosts, batches, hidden, ends)

    def _meet_hosts(self, step: int) -> None:
        self.host = self.host + self.costs.gap_ns[step] + self.before[step]
        self.marks["gather_start_ns"][step] = self.host
        if self.world.metadata_gather:
            self.host = self.host.max() + self.costs.metadata_ns[step]
        self.marks["gather_end_ns"][step] = self.host

    def _launch(self, step: int, lane: int, row: int) -> None:
        """Place the launch calls; a stall holds up one of them and all that follow."""
        times = self.times[lane]
        self.marks["launch_start_ns"][step] = self.host
        first = self.host + self.costs.prepare_ns + self.after[step]
        calls = len(times.is_graph_call)
        leads = np.asarray([int(np.argmax(times.call_of == call)) for call in range(calls)])
        cost = self.lanes[lane].call_ns[row, leads]
        spent = cost + self.costs.between_calls_ns
        if (present := self.lanes[lane].present) is not None:
            cost, spent = cost * present[row, leads], spent * present[row, leads]
        start = first + np.cumsum(spent, axis=0) - spent
        places = 1 if self.world.graph else calls
        stalled_call = np.floor(self.burst_place[step] * places).astype(np.int64)
        start += np.where(np.arange(calls)[:, None] >= stalled_call, self.burst[step], 0)
        times.call_start_ns[row], times.call_end_ns[row] = start, start + cost

    def _run_stream(self, lane: int, row: int) -> None:
        """Run the operations of a step on all ranks' streams, in the order of their launch.

        A collective on its own stream waits for the last own work before it, so that own work launched earlier never
        shares the GPU with it.
        """
        it, times = self.lanes[lane], self.times[lane]
        starts, ends, call_end = times.start_ns[row], times.end_ns[row], times.call_end_ns[row]
        group = self.world.attention_tp
        previous: dict[str, int] = {}
        beside: list[tuple[Array, Array]] = []
        for position, op in enumerate(it.operations):
            ready = call_end[times.call_of[position]] + self.costs.launch_ns
            free = self.free[op.stream]
            for earlier in op.waits_for:
                free = np.maximum(free, ends[earlier])
            begin = np.maximum(free + it.gap_ns[row, position], ready)
            shown = begin
            if op.stream in previous and self._starts_early(op):
                lead = np.minimum(self.costs.dependent_lead_ns, (free - starts[previous[op.stream]]) // 2)
                shown = np.maximum(free - lead, ready)
                begin = np.maximum(free, shown)
            if op.act == "meet":
                arrival = starts[position - op.sent_by] if op.sent_by else begin
                last = _last_arrival(arrival, group if op.among == "group" else self.world.ranks)
                end = np.maximum(last + it.transfer_ns[row, position], begin + 900) + it.work_ns[row, position]
            else:
                end = _stretch(begin, it.work_ns[row, position], beside, self.world.contention)
            if it.present is not None:
                here = it.present[row, position]
                shown, end = np.where(here, shown, free), np.where(here, end, free)
            starts[position], ends[position] = shown, end
            self.free[op.stream], previous[op.stream] = end, position
            if op.stream == "comm":
                beside.append((shown, end))
            if op.host_waits:
                self._hold_host(times, row, position, end)

    def _starts_early(self, op: Operation) -> bool:
        """Tell whether a kernel may start before its predecessor ends; NCCL and DeepEP kernels never do."""
        if op.waits_for:
            return False
        return self.world.dependent_launch and (op.act == "work" or op.kernel_key.startswith("custom_reduce"))

    def _hold_host(self, times: LaneTimes, row: int, position: int, end: Array) -> None:
        """Move the calls after an operation whose result the host needs."""
        later = int(times.call_of[position]) + 1
        held = np.maximum(end + self.costs.react_ns - times.call_start_ns[row, later], 0)
        times.call_start_ns[row, later:] += held
        times.call_end_ns[row, later:] += held

    def _synchronise(self, step: int, lane: int, row: int) -> None:
        """Wait for this step's result, or with overlap for the last step's."""
        times = self.times[lane]
        done = times.end_ns[row, -1]
        begin = times.call_end_ns[row, -1] + 2_000
        end = np.maximum(begin, self.copied if self.world.overlap else done) + self.costs.react_ns
        self.marks["sync_start_ns"][step], self.marks["sync_end_ns"][step] = begin, end
        self.copied = done
        self.host = end


def _stretch(begin: Array, work_ns: Array, beside: list[tuple[Array, Array]], contention: float) -> Array:
    """Find when work ends that is slower by `contention` while collectives, in order of time, run beside it."""
    now, left = begin.astype(float), work_ns.astype(float)
    for start, end in beside[-_RECENT:] if contention else ():
        alone = np.clip(start - now, 0, left)
        now, left = now + alone, left - alone
        shared = np.minimum(left, np.maximum(end - now, 0) / (1 + contention))
        now, left = now + shared * (1 + contention), left - shared
    ended: Array = np.rint(now + left).astype(np.int64)
    return ended


def _last_arrival(arrival: Array, size: int) -> Array:
    last: Array = np.repeat(arrival.reshape(-1, size).max(axis=1), size)
    return last


def _empty_times(world: World, lane: Lane) -> LaneTimes:
    """Number the launch calls of a step: the graph has one, every other operation its own."""
    call_of: list[int] = []
    is_graph: list[bool] = []
    for position, op in enumerate(lane.operations):
        if not (op.in_graph and position and lane.operations[position - 1].in_graph):
            is_graph.append(op.in_graph)
        call_of.append(len(is_graph) - 1)
    shape = (len(lane.steps), len(lane.operations), world.ranks)
    calls = (len(lane.steps), len(is_graph), world.ranks)
    return LaneTimes(
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.zeros(calls, np.int64),
        np.zeros(calls, np.int64),
        np.asarray(call_of, np.int64),
        np.asarray(is_graph, bool),
    )
