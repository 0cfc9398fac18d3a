"""Cut each rank's lane at its meetings, and account for the time between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.intervals import exclusive_time, running_end
from dprankdiag.analysis.lanes import COMMUNICATION, FAMILY_CODE, N_FAMILIES, Lane
from dprankdiag.model.schema import ABSENT_NS

IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

COMMUNICATION_CODES = np.array(sorted(FAMILY_CODE[name] for name in COMMUNICATION))


@dataclass(frozen=True, slots=True)
class Segments:
    """One rank's time between the meetings it took part in; row k lies before its k-th meeting.

    Attributes:
        arrival_ns, end_ns: `(n,)` of the meeting that closes the segment.
        busy_ns: `(n, n_families)` work, each instant counted once.
        probe_ns: `(n,)` part of it in kernels of equal work on all ranks.
        idle_ns: `(n,)` time in which nothing ran.
        host_ns: `(n,)` part of the idle time before the next launch had returned; all zero without launch times.
        counts: `(n, n_families)` rows.
        prefill, decode: `(n,)` attention rows of that phase.
        in_graph: `(n,)` rows launched by a CUDA graph.
    """

    arrival_ns: IntArray
    end_ns: IntArray
    busy_ns: IntArray
    probe_ns: IntArray
    idle_ns: IntArray
    host_ns: IntArray
    counts: np.ndarray[Any, np.dtype[np.int32]]
    prefill: np.ndarray[Any, np.dtype[np.int32]]
    decode: np.ndarray[Any, np.dtype[np.int32]]
    in_graph: np.ndarray[Any, np.dtype[np.int32]]
    has_launches: bool


@dataclass(frozen=True, slots=True)
class KeyTimes:
    """Count and time of every kernel key (name and launch shape) on one rank, sorted by key."""

    key: IntArray
    count: IntArray
    total_ns: IntArray
    family: np.ndarray[Any, np.dtype[np.int8]]


def measure_keys(lane: Lane) -> KeyTimes:
    """Sum a lane's work kernels by key."""
    work = ~np.isin(lane.family, COMMUNICATION_CODES) & (lane.key >= 0)
    own = exclusive_time(lane.start_ns, lane.end_ns, lane.same_stream_ready())[work]
    key, first, inverse = np.unique(lane.key[work], return_index=True, return_inverse=True)
    total = np.zeros(len(key), np.int64)
    np.add.at(total, inverse, own)
    return KeyTimes(key, np.bincount(inverse, minlength=len(key)), total, lane.family[work][first])


def cut_segments(lane: Lane, arrival_ns: IntArray, end_ns: IntArray, probe_keys: IntArray) -> Segments:
    """Account for a lane's time between meetings.

    Work is credited from the moment it could run: after the earlier rows of its stream and after the work already
    counted, so that kernels launched ahead of their predecessor's end are not counted twice.

    Args:
        arrival_ns, end_ns: `(n,)` the rank's meetings, sorted by arrival, on the lane's clock.
        probe_keys: sorted keys of equal work.
    """
    n = len(arrival_ns)
    is_work = ~np.isin(lane.family, COMMUNICATION_CODES)
    ready = lane.same_stream_ready()
    work = np.flatnonzero(is_work)
    begin = np.maximum(lane.start_ns[work], ready[work])
    begin = np.maximum(begin, running_end(lane.end_ns[work]))
    busy = np.maximum(lane.end_ns[work] - begin, 0)
    where = np.searchsorted(arrival_ns, begin, side="right")
    inside = where < n
    work, busy, where = work[inside], busy[inside], where[inside]
    family = lane.family[work]

    busy_ns = np.zeros((n, N_FAMILIES), np.int64)
    counts = np.zeros((n, N_FAMILIES), np.int32)
    np.add.at(busy_ns.reshape(-1), where * N_FAMILIES + family, busy)
    np.add.at(counts.reshape(-1), where * N_FAMILIES + family, 1)
    probe_ns = np.zeros(n, np.int64)
    if len(probe_keys):
        slot = np.minimum(np.searchsorted(probe_keys, lane.key[work]), len(probe_keys) - 1)
        is_probe = probe_keys[slot] == lane.key[work]
        np.add.at(probe_ns, where[is_probe], busy[is_probe])
    idle_ns, host_ns = _measure_idle(lane, arrival_ns, end_ns)
    return Segments(
        arrival_ns,
        end_ns,
        busy_ns,
        probe_ns,
        idle_ns,
        host_ns,
        counts,
        _count(where, lane.phase[work] == 1, n),
        _count(where, lane.phase[work] == 2, n),
        _count(where, lane.in_graph[work], n),
        lane.launch_ns is not None,
    )


def _measure_idle(lane: Lane, arrival_ns: IntArray, end_ns: IntArray) -> tuple[IntArray, IntArray]:
    """Sum the gaps before each row, and the part of each gap in which its launch call had not returned."""
    n = len(arrival_ns)
    idle_ns, host_ns = np.zeros(n, np.int64), np.zeros(n, np.int64)
    ready = running_end(lane.end_ns)
    known = ready != ABSENT_NS
    gap = np.where(known, np.maximum(lane.start_ns - np.where(known, ready, 0), 0), 0)
    rows = np.flatnonzero(gap > 0)
    where = np.searchsorted(arrival_ns, lane.start_ns[rows], side="left")
    rows, where = rows[where < n], where[where < n]
    np.add.at(idle_ns, where, gap[rows])
    if lane.launch_ns is not None:
        launch = lane.launch_ns[rows]
        late = np.where(launch == ABSENT_NS, 0, np.clip(launch - ready[rows], 0, gap[rows]))
        np.add.at(host_ns, where, late)
    return idle_ns, host_ns


def _count(where: IntArray, chosen: BoolArray, n: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.bincount(where[chosen], minlength=n)[:n].astype(np.int32)
