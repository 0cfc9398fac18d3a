"""The calls of a step, and the waits between streams among them: an event recorded on one, waited for on another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.durations import Lane
from dprankdiag.harness.events import SYNC_STREAM_WAIT, Array, CallRows, EventRows, SyncRows
from dprankdiag.harness.timeline import LaneTimes

STREAMS = {"compute": 7, "comm": 21}

_FIRST_EVENT = 40
_MOST_WAITS = 100_000


@dataclass(frozen=True, slots=True)
class StepCalls:
    """The calls of a step of one kind, numbered in order; and the waits between streams that are calls.

    Attributes:
        waits: `(waits,)` the operation waited for, and the one that waits.
        launch, record, wait: number of each launch call; of the calls around each wait.
        count: of all calls.
    """

    waits: tuple[tuple[int, int], ...]
    launch: Array
    record: Array
    wait: Array
    count: int


def number_calls(lane: Lane, times: LaneTimes) -> StepCalls:
    """Number the calls of a step; inside a graph a wait is an edge of the graph and no call."""
    waits = tuple(
        (earlier, position)
        for position, op in enumerate(lane.operations)
        for earlier in op.waits_for
        if not op.in_graph
    )
    recorded = {int(times.call_of[earlier]) for earlier, _ in waits}
    waiting = {int(times.call_of[later]) for _, later in waits}
    launch = np.zeros(len(times.is_graph_call), np.int64)
    number = 0
    for call in range(len(launch)):
        launch[call] = number + (call in waiting)
        number = int(launch[call]) + 1 + (call in recorded)
    first, last = np.asarray(waits, np.int64).reshape(-1, 2).T
    return StepCalls(waits, launch, launch[times.call_of[first]] + 1, launch[times.call_of[last]] - 1, number)


def record_events(lane: Lane, times: LaneTimes, rank: int, numbers: StepCalls, first: Array) -> EventRows:
    """Record an event right after the launch of what is waited for."""
    sources = [earlier for earlier, _ in numbers.waits]
    done = times.call_end_ns[:, times.call_of[sources], rank].ravel()
    streams = [STREAMS[lane.operations[earlier].stream] for earlier in sources]
    return EventRows(
        start_ns=done + 150,
        end_ns=done + 600,
        stream=np.tile(np.asarray(streams, np.int64), len(lane.steps)),
        event=np.tile(_FIRST_EVENT + np.arange(len(sources)), len(lane.steps)),
        record=_number_recordings(lane, len(sources)),
        call=(first + numbers.record).ravel(),
    )


def record_stream_waits(lane: Lane, times: LaneTimes, rank: int, numbers: StepCalls, first: Array) -> SyncRows:
    """Let a stream wait right before the launch of what waits."""
    targets = [later for _, later in numbers.waits]
    begin = times.call_start_ns[:, times.call_of[targets], rank].ravel()
    streams = [STREAMS[lane.operations[later].stream] for later in targets]
    return SyncRows(
        start_ns=begin - 680,
        end_ns=begin - 320,
        stream=np.tile(np.asarray(streams, np.int64), len(lane.steps)),
        kind=np.full(len(begin), SYNC_STREAM_WAIT),
        call=(first + numbers.wait).ravel(),
        event=np.tile(_FIRST_EVENT + np.arange(len(targets)), len(lane.steps)),
        record=_number_recordings(lane, len(targets)),
    )


def _number_recordings(lane: Lane, waits: int) -> Array:
    numbers: Array = (1 + lane.steps[:, None] * _MOST_WAITS + np.arange(waits)).ravel()
    return numbers


def record_wait_calls(events: EventRows, waits: SyncRows, record_name: int, wait_name: int) -> list[CallRows]:
    """Give the calls that record events and that let streams wait."""
    count = len(events.call)
    return [
        CallRows(events.start_ns, events.end_ns, np.full(count, record_name), events.call),
        CallRows(waits.start_ns - 70, waits.end_ns + 70, np.full(count, wait_name), waits.call),
    ]
