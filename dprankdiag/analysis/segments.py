"""Cut each rank's lane at its meetings, and account for the time between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dprankdiag.analysis.intervals import exclusive_time, running_end
from dprankdiag.analysis.lanes import FAMILY_CODE, IS_WORK, N_FAMILIES, Lane
from dprankdiag.analysis.overlap import measure_beside
from dprankdiag.model.schema import ABSENT_NS

IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
CountArray = np.ndarray[Any, np.dtype[np.int32]]

_CONTENT = np.cumprod(np.full(N_FAMILIES, 0x9E3779B97F4A7C15, np.uint64)).view(np.int64)
"""A weight a family: what a segment holds becomes one number, and that of several segments together is their sum."""

_DENSE_KEYS = 8
"""Keys are counted in a plain table while it has at most so many places a row."""


@dataclass(frozen=True, slots=True)
class Segments:
    """One rank's time between the meetings it took part in; row k lies before its k-th meeting.

    Attributes:
        arrival_ns, end_ns: `(n,)` of the meeting that closes the segment.
        attention_ns, expert_ns, work_ns: `(n,)` attention and KV writes, expert GEMMs, and work of all families, each
            instant counted once.
        probe_ns: `(n,)` part of the work in kernels of equal work on all ranks.
        contention_ns: `(n,)` how much longer work took because calls ran beside it; in none of the times above.
        host_ns: `(n,)` idle time before the next launch had returned; all zero without launch times.
        content: `(n,)` equal for segments that hold equally many rows of each family; sums over several segments.
        sampled: `(n,)` sampling rows.
        prefill, decode: `(n,)` attention rows of that phase.
        attention_names: `(n,)` bit k stands for attention rows of phase k, so that steps of other names are told apart.
        in_graph: `(n,)` rows launched by a CUDA graph.
        idle_from_ns, idle_until_ns: `(n,)` int32, how long before the arrival the time begins and ends in which nothing
            runs, where it is usually longest; both 0 if there is none.
        ahead_ns: `(n,)` int32, how much earlier the segment could begin before it had to stand idle for a launch;
            negative where it does, by its host_ns. The largest value where launches are not known.
    """

    arrival_ns: IntArray
    end_ns: IntArray
    attention_ns: IntArray
    expert_ns: IntArray
    work_ns: IntArray
    probe_ns: IntArray
    contention_ns: IntArray
    host_ns: IntArray
    content: IntArray
    sampled: CountArray
    prefill: CountArray
    decode: CountArray
    attention_names: IntArray
    in_graph: CountArray
    has_launches: bool
    idle_from_ns: CountArray
    idle_until_ns: CountArray
    ahead_ns: CountArray


@dataclass(frozen=True, slots=True)
class KeyTimes:
    """Count and time of every kernel key (name and launch shape) on one rank, sorted by key."""

    key: IntArray
    count: IntArray
    total_ns: IntArray
    family: np.ndarray[Any, np.dtype[np.int8]]


def measure_keys(lane: Lane) -> KeyTimes:
    """Sum a lane's work kernels by key."""
    own = exclusive_time(lane.start_ns, lane.end_ns, lane.same_stream_ready())
    work = IS_WORK[lane.family] & (lane.key >= 0)
    keys = lane.key[work]
    if not len(keys) or int(keys.max()) > _DENSE_KEYS * len(keys):
        key, inverse = np.unique(keys, return_inverse=True)
    else:
        key, inverse = _number_densely(keys)
    family = np.zeros(len(key), np.int8)
    family[inverse] = lane.family[work]
    return KeyTimes(key, np.bincount(inverse, minlength=len(key)), _sum_by(inverse, own[work], len(key)), family)


def _number_densely(keys: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct values, sorted, and the position of each value among them."""
    used = np.zeros(int(keys.max()) + 1, bool)
    used[keys] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1)[keys]


def _sum_by(index: IntArray, values_ns: IntArray, n: int) -> IntArray:
    """Sum values by index. Doubles are exact here: no sum reaches 2^53 ns, 104 days."""
    return np.bincount(index, values_ns, minlength=n).astype(np.int64)


def cut_segments(
    lane: Lane, arrival_ns: IntArray, end_ns: IntArray, probe_keys: IntArray, contention: float = 0.0
) -> Segments:
    """Account for a lane's time between meetings.

    Work is credited from the moment it could run: after the earlier rows of its stream and after the work already
    counted, so that kernels launched ahead of their predecessor's end are not counted twice.

    Args:
        arrival_ns, end_ns: `(n,)` the rank's meetings, sorted by arrival, on the lane's clock.
        probe_keys: sorted keys of equal work.
        contention: how much slower work is while calls run beside it (see `overlap.measure_contention`).
    """
    work = np.flatnonzero(IS_WORK[lane.family])
    begin, busy = measure_busy(lane, work)
    lost = np.zeros(1, np.int64)
    if contention:
        beside = np.minimum(measure_beside(lane, work, begin), busy)
        lost = np.round(beside * (contention / (1 + contention))).astype(np.int64)
        busy = busy - lost
    if len(begin) and not (begin[1:] >= begin[:-1]).all():
        order = np.argsort(begin, kind="stable")
        work, begin, busy = work[order], begin[order], busy[order]
        lost = lost[order] if contention else lost
    edges = _find_edges(begin, arrival_ns, "left")
    del begin
    family, phase = lane.family[work], lane.phase[work]
    content = _sum_between(_CONTENT[family], edges)
    is_attention = (family == FAMILY_CODE["attention"]) | (family == FAMILY_CODE["kv_write"])
    times = (
        _sum_between(busy * is_attention, edges),
        _sum_between(busy * (family == FAMILY_CODE["moe_expert"]), edges),
        _sum_between(busy, edges),
        _sum_between(busy * _is_among(lane.key[work], probe_keys), edges),
        _sum_between(lost, edges) if contention else np.zeros(len(arrival_ns), np.int64),
    )
    counts = (
        _count_between(family == FAMILY_CODE["sampling"], edges),
        _count_between(phase == 1, edges),
        _count_between(phase == 2, edges),
        _gather_bits(phase, edges),
        _count_between(lane.in_graph[work], edges),
    )
    del work, busy, lost, family, phase, is_attention  # each is as long as the lane, and so is what comes next
    rows, ready = _find_edges(lane.start_ns, arrival_ns, "right"), _find_ready(lane)
    host_ns, ahead_ns = _measure_launches(lane, rows, ready)
    idle = _find_idle(lane, arrival_ns, rows, ready, content)
    return Segments(arrival_ns, end_ns, *times, host_ns, content, *counts, lane.launch_ns is not None, *idle, ahead_ns)


def measure_busy(lane: Lane, work: IntArray) -> tuple[IntArray, IntArray]:
    """Measure when each row of work could run, and how long it ran from then on.

    Args:
        work: rows of the lane.
    """
    own_end, begin = lane.end_ns[work], lane.start_ns[work]
    # In place: each array is as long as the lane, and here most of them are needed at once.
    np.maximum(begin, lane.same_stream_ready()[work], out=begin)
    np.maximum(begin, running_end(own_end), out=begin)
    busy = np.subtract(own_end, begin, out=own_end)
    return begin, np.maximum(busy, 0, out=busy)


def _find_ready(lane: Lane) -> IntArray:
    """Return, for every row, the latest end of the earlier rows of the lane; the first row's own start."""
    ready = running_end(lane.end_ns)
    ready[:1] = lane.start_ns[:1]
    return ready


def _find_idle(
    lane: Lane, arrival_ns: IntArray, edges: IntArray, ready: IntArray, content: IntArray
) -> tuple[CountArray, CountArray]:
    """Find the time in which no row of the lane runs before each meeting, where it is usually longest (see `Segments`).

    Segments of equal content have it before the same row, so that a stall elsewhere is not taken for it.

    Args:
        edges: where each segment's rows begin, the last entry where they end.
        ready: see `_find_ready`.
    """
    filled = np.flatnonzero(edges[1:] > edges[:-1])
    first, until = np.zeros(len(arrival_ns), np.int32), np.zeros(len(arrival_ns), np.int32)
    if not len(filled):
        return first, until
    gap = (lane.start_ns - ready)[: edges[-1]]
    begin = edges[:-1][filled]
    longest = np.maximum.reduceat(gap, begin)
    places = np.flatnonzero(gap == np.repeat(longest, np.diff(edges)[filled]))
    row = places[np.searchsorted(places, begin)] - begin
    _, kind = np.unique(content[filled], return_inverse=True)
    width = int(row.max()) + 1
    votes, counts = np.unique(kind * width + row, return_counts=True)
    usual = np.zeros(int(kind.max()) + 1, np.int64)
    order = np.argsort(counts, kind="stable")
    usual[votes[order] // width] = votes[order] % width
    place = np.minimum(begin + usual[kind], edges[1:][filled] - 1)
    idle = gap[place] > 0
    chosen = filled[idle]
    first[chosen] = _narrow(arrival_ns[chosen] - ready[place[idle]])
    until[chosen] = _narrow(arrival_ns[chosen] - lane.start_ns[place[idle]])
    return first, until


def _narrow(values_ns: IntArray) -> CountArray:
    """Keep times in half the memory; what is longer than two seconds is cut off."""
    most = np.iinfo(np.int32).max
    return np.clip(values_ns, -most, most).astype(np.int32)


def _measure_launches(lane: Lane, edges: IntArray, ready: IntArray) -> tuple[IntArray, CountArray]:
    """Sum the gaps in which nothing runs and the next row's launch had not returned; and see how far launches lead.

    Args:
        edges, ready: as of `_find_idle`.

    Returns:
        host_ns and ahead_ns of `Segments`.
    """
    ahead = np.full(len(edges) - 1, np.iinfo(np.int32).max, np.int32)
    if lane.launch_ns is None or not len(lane.start_ns):
        return np.zeros(len(ahead), np.int64), ahead
    late = np.minimum(lane.launch_ns, lane.start_ns)
    np.subtract(late, ready, out=late)
    late[(lane.launch_ns == ABSENT_NS) | (late < 0)] = 0
    host = _sum_between(late, edges)
    del late  # as long as the lane, and so is what comes next
    filled = np.flatnonzero(edges[1:] > edges[:-1])
    if len(filled) and (lane.key >= 0).any():
        launch = np.where(lane.launch_ns == ABSENT_NS, ABSENT_NS // 2, lane.launch_ns)
        np.subtract(lane.start_ns, launch, out=launch)
        lead = np.minimum.reduceat(launch[: edges[-1]], edges[:-1][filled])
        ahead[filled] = _narrow(np.maximum(lead, 0))
        ahead = np.where(host > 0, -_narrow(host), ahead)
    return host, ahead


def _is_among(keys: IntArray, wanted: IntArray) -> BoolArray:
    """Tell which keys are among sorted ones."""
    if not len(wanted):
        return np.zeros(len(keys), bool)
    place = np.searchsorted(wanted, keys)
    np.minimum(place, len(wanted) - 1, out=place)
    return np.asarray(wanted[place] == keys)


def _find_edges(times_ns: IntArray, arrival_ns: IntArray, side: Literal["left", "right"]) -> IntArray:
    """Find where each segment's rows begin among sorted times; the last entry closes the last segment."""
    return np.concatenate([[0], np.searchsorted(times_ns, arrival_ns, side=side)])


def _sum_between(values: IntArray, edges: IntArray) -> IntArray:
    total = np.empty(len(values) + 1, np.int64)
    total[0] = 0
    np.cumsum(values, out=total[1:])
    return np.diff(total[edges])


def _gather_bits(phase: np.ndarray[Any, np.dtype[np.int8]], edges: IntArray) -> IntArray:
    bits = np.zeros(len(edges) - 1, np.int64)
    for value in np.unique(phase[phase > 0]).tolist():
        bits |= (_count_between(phase == value, edges) > 0).astype(np.int64) << value
    return bits


def _count_between(chosen: BoolArray, edges: IntArray) -> CountArray:
    return np.diff(np.searchsorted(np.flatnonzero(chosen), edges)).astype(np.int32)
