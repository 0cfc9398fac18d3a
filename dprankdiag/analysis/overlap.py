"""Where a call runs beside the rank's own work: when the work passed it, and where work stood still for its result.

With two-batch overlap or a stream of their own, collectives run while the rank computes. The rank then waits for one
only from where its work needs the result, not from where the call began (DESIGN 2.1, rule 4). Which work that is shows
in gaps: work that stands still until just a call has ended was waiting for it. It is the same work in every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.intervals import running_end
from dprankdiag.analysis.lanes import IS_WORK, Lane

IntArray = np.ndarray[Any, np.dtype[np.int64]]

BESIDE_WORK = 0.1
"""Least share of a channel's time that lies beside own work for its calls to count as overlapped."""

FEWEST_STOPS = 3
"""So many times, over all steps and ranks, work must be seen to stand still for a call."""

LAG_FACTOR = 3.0
LAG_SLACK_NS = 1_000
"""A lag is no more than usual up to this many times the median, and this much."""

FEWEST_ALIKE = 8
"""Rows of one key, beside calls and alone, that tell how much slower work is beside a call."""

WHOLLY = 0.9
"""Share of a row's time beside calls from which it counts as wholly beside them; the rest of it, as alone."""

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Overlap:
    """How calls lie beside the work of their ranks; arrays of one shape.

    Attributes:
        reach_ns: when the rank's work had come to the call; earlier than its arrival where its stream was still busy.
        busy_ns: work done while the call ran.
        row: first row of work (see `WorkRows`) after the work had come to the call.
        stop: row of work that stood still until the call had ended; NOWHERE where none did.
    """

    reach_ns: IntArray
    busy_ns: IntArray
    row: IntArray
    stop: IntArray

    def take(self, rows: Any) -> Overlap:
        """Select calls."""
        return Overlap(*(values[rows] for values in self.columns()))

    def columns(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """List the arrays in declared order."""
        return self.reach_ns, self.busy_ns, self.row, self.stop


@dataclass(frozen=True, slots=True)
class Halves:
    """Where calls that are sent and received in two kernels let work go on, and stop it again; arrays of one shape, ns.

    Attributes:
        on_ns: end of the sending half.
        hold_ns, leave_ns: begin and end of the receiving half.
    """

    on_ns: IntArray
    hold_ns: IntArray
    leave_ns: IntArray

    def take(self, rows: Any) -> Halves:
        """Select calls."""
        return Halves(self.on_ns[rows], self.hold_ns[rows], self.leave_ns[rows])


def stack_halves(members: Sequence[Halves]) -> Halves:
    """Put the calls of several ranks side by side, `(n, n_members)`."""
    names = ("on_ns", "hold_ns", "leave_ns")
    return Halves(*(np.stack([getattr(item, name) for item in members], axis=1) for name in names))


def join_overlaps(parts: Sequence[Overlap]) -> Overlap:
    """Put the calls of several parts one after the other."""
    return Overlap(*(np.concatenate(column) for column in zip(*(part.columns() for part in parts), strict=True)))


def stack_overlaps(members: Sequence[Overlap]) -> Overlap:
    """Put the calls of several ranks side by side, `(n, n_members)`."""
    return Overlap(*(np.stack(column, axis=1) for column in zip(*(item.columns() for item in members), strict=True)))


@dataclass(frozen=True, slots=True)
class WorkRows:
    """A rank's work on all streams as one sequence, in order of start.

    Attributes:
        begin_ns: when each row could run: after its start and the work already counted.
        ready_ns: latest end of the rows before.
        end_ns: latest end of the rows before and its own.
    """

    begin_ns: IntArray
    ready_ns: IntArray
    end_ns: IntArray


def list_work(lane: Lane) -> WorkRows:
    """List the work of a lane."""
    work = np.flatnonzero(IS_WORK[lane.family])
    end = lane.end_ns[work]
    ready = running_end(end)
    return WorkRows(np.maximum(lane.start_ns[work], ready), ready, np.maximum.accumulate(end) if len(end) else end)


def measure_overlap(lane: Lane, rows: IntArray, arrival_ns: IntArray, ready_ns: IntArray) -> Overlap | None:
    """Measure how a lane's calls lie beside its work; None where all runs on one stream.

    Args:
        rows: `(n,)` the calls among the lane's rows.
        arrival_ns: `(n,)` when each could really begin.
        ready_ns: `(n,)` latest end of the earlier rows of the call's stream.
    """
    if not _runs_beside(lane):
        return None
    work = list_work(lane)
    end_ns = lane.end_ns[rows]
    reach = _find_reach(work, arrival_ns, ready_ns)
    return Overlap(
        reach,
        _sum_work(work, end_ns) - _sum_work(work, arrival_ns),
        np.searchsorted(work.begin_ns, reach),
        _find_stops(work, end_ns),
    )


def _runs_beside(lane: Lane) -> bool:
    """Tell whether some work runs on another stream than some call, so that it may run beside it.

    The stream of the work may carry calls as well: those of attention's shards, which it waits for.
    """
    work = IS_WORK[lane.family]
    return bool(work.any() and not work.all() and (lane.stream != lane.stream[0]).any())


def _sum_work(work: WorkRows, times_ns: IntArray) -> IntArray:
    """Sum the work done up to each time, every instant once."""
    busy = np.maximum(work.end_ns - work.begin_ns, 0)
    done = np.concatenate([[0], np.cumsum(busy)])
    row = np.searchsorted(work.begin_ns, times_ns, side="right") - 1
    known = np.maximum(row, 0)
    part = np.clip(times_ns - work.begin_ns[known], 0, busy[known])
    return np.asarray(np.where(row >= 0, done[known] + part, 0))


def _find_reach(work: WorkRows, arrival_ns: IntArray, ready_ns: IntArray) -> IntArray:
    """Find when work had come to each call: where a row ended just before it, or before its stream became free.

    Work that stands still when the stream becomes free has come to the call by then.
    """
    lag = arrival_ns - np.maximum(_last_end(work, arrival_ns), np.minimum(ready_ns, arrival_ns))
    usual = _usual(lag)
    before = _last_end(work, arrival_ns)
    reach = np.where(arrival_ns - before <= usual, before, arrival_ns)
    earlier = _last_end(work, ready_ns)
    started = np.searchsorted(work.begin_ns, ready_ns)
    stands = work.end_ns[np.maximum(started - 1, 0)] == earlier
    held_up = (ready_ns <= arrival_ns) & (arrival_ns - ready_ns <= usual) & stands
    return np.asarray(np.where(held_up, earlier, reach))


def _last_end(work: WorkRows, times_ns: IntArray) -> IntArray:
    """Return the latest end of a row by each time; the time itself before any work."""
    row = np.searchsorted(work.end_ns, times_ns, side="right") - 1
    return np.asarray(np.where(row >= 0, work.end_ns[np.maximum(row, 0)], times_ns))


def _find_stops(work: WorkRows, end_ns: IntArray) -> IntArray:
    """Find the rows of work that stood still, longer than between any two rows, until a call had ended."""
    row = np.searchsorted(work.begin_ns, end_ns)
    known = np.clip(row, 1, len(work.begin_ns) - 1)
    gap = work.begin_ns - work.ready_ns
    stood = (row == known) & (work.ready_ns[known] <= end_ns) & (gap[known] > _usual(gap[1:]))
    return np.where(stood, known, NOWHERE)


def _usual(lag_ns: IntArray) -> float:
    return LAG_FACTOR * float(np.median(lag_ns)) + LAG_SLACK_NS if len(lag_ns) else LAG_SLACK_NS


def measure_beside(lane: Lane, rows: IntArray, begin_ns: IntArray) -> IntArray:
    """Measure for rows of work how much of their time calls of the rank ran beside them.

    Args:
        rows: `(n,)` rows of the lane.
        begin_ns: `(n,)` when each could run.
    """
    calls = np.flatnonzero(~IS_WORK[lane.family])
    end = lane.end_ns[calls]
    ready = running_end(end)
    union = WorkRows(np.maximum(lane.start_ns[calls], ready), ready, np.maximum.accumulate(end) if len(end) else end)
    if not len(calls):
        return np.zeros(len(rows), np.int64)
    return _sum_work(union, np.maximum(lane.end_ns[rows], begin_ns)) - _sum_work(union, begin_ns)


def measure_contention(lane: Lane) -> float | None:
    """Measure how much slower equal work is while a call runs beside it, which takes SMs and memory from it.

    Returns:
        Time beside calls over time alone, minus one, at least 0; None where no kernel is seen often enough in both.
    """
    if not _runs_beside(lane):
        return None
    work = np.flatnonzero(IS_WORK[lane.family] & (lane.key >= 0))
    took = lane.end_ns[work] - lane.start_ns[work]
    share = measure_beside(lane, work, lane.start_ns[work]) / np.maximum(took, 1)
    inside, alone = share >= WHOLLY, share <= 1 - WHOLLY
    if min(inside.sum(), alone.sum()) < FEWEST_ALIKE:
        return None
    keys, code = np.unique(lane.key[work], return_inverse=True)
    both = np.minimum(np.bincount(code[inside], minlength=len(keys)), np.bincount(code[alone], minlength=len(keys)))
    ratios, weights = [], []
    for key in np.flatnonzero(both >= FEWEST_ALIKE):
        mine = code == key
        usual = float(np.median(took[mine & alone]))
        if usual > 0:
            ratios.append(float(np.median(took[mine & inside])) / usual - 1.0)
            weights.append(float(took[mine].sum()))
    return max(float(np.average(ratios, weights=weights)), 0.0) if ratios else None


def vote_joins(rows: Sequence[IntArray], stops: Sequence[IntArray], begin: IntArray, stop: IntArray) -> list[Joins]:
    """Find, for every event of every step, where the work of that step needs its result.

    Steps of equal length are taken for equal: all ranks and steps vote, by where they stood still.

    Args:
        rows: for each member `(n_events,)` first row of work after each event, ascending.
        stops: for each member `(n_events,)` row that stood still for the event's call, NOWHERE for the rest.
        begin, stop: `(n_steps, n_members)` events of each step.

    Returns:
        For each member, by event, the event after which its result is needed and the row of work that needs it.
    """
    lengths = stop - begin
    usable = (lengths == lengths[:, :1]).all(axis=1)
    joins = [Joins(np.full(len(row), NOWHERE, np.int64), np.full(len(row), NOWHERE, np.int64)) for row in rows]
    for length in np.unique(lengths[usable, 0]).tolist():
        events = begin[usable & (lengths[:, 0] == length)][:, None, :] + np.arange(length)[None, :, None]
        passed, depth = _vote(rows, stops, events)
        for member, (row, found) in enumerate(zip(rows, joins, strict=True)):
            event = events[:, passed >= 0, member]
            after = event + passed[passed >= 0]
            inside = after < len(row)
            found.after[event[inside]] = after[inside]
            found.row[event[inside]] = (row[np.minimum(after, len(row) - 1)] + depth[passed >= 0])[inside]
    return joins


def _vote(rows: Sequence[IntArray], stops: Sequence[IntArray], events: IntArray) -> tuple[IntArray, IntArray]:
    """Count where work stood still for the call of each position, over steps of one length.

    Args:
        events: `(n_steps, n_positions, n_members)` events of each step.

    Returns:
        `(n_positions,)` how many events later the result is needed, NOWHERE where work was never seen to stand still;
        and how many rows of work after that event.
    """
    seen = []
    for member, (row, stood) in enumerate(zip(rows, stops, strict=True)):
        mine = events[:, :, member]
        target = stood[mine]
        after = np.searchsorted(row, target, side="right") - 1
        shown = (target >= 0) & (after >= mine)
        position = np.broadcast_to(np.arange(mine.shape[1]), mine.shape)
        seen.append(np.stack([position, after - mine, target - row[np.maximum(after, 0)]], axis=-1)[shown])
    passed, depth = np.full(events.shape[1], NOWHERE, np.int64), np.zeros(events.shape[1], np.int64)
    ballots, counts = np.unique(np.concatenate(seen), axis=0, return_counts=True)
    # In order of count: the most frequent of each position is entered last.
    for place in np.argsort(counts, kind="stable"):
        if counts[place] >= FEWEST_STOPS:
            position, later, rows_later = ballots[place].tolist()
            passed[position], depth[position] = later, rows_later
    return passed, depth


def measure_stops(work: WorkRows, stop_row: IntArray, joins: Joins) -> tuple[int, int]:
    """Sum how long work stood still for calls, ns: where a join was placed, and in all.

    Args:
        stop_row: `(n_events,)` row that stood still for the event's call, NOWHERE for the rest.
    """
    gap = np.maximum(work.begin_ns - work.ready_ns, 0)
    every = np.unique(stop_row[stop_row >= 0])
    placed = np.intersect1d(every, joins.row)
    return int(gap[placed].sum()), int(gap[every].sum())


@dataclass(frozen=True, slots=True)
class Joins:
    """Where a rank's work needs the results of its calls, `(n_events,)`; NOWHERE where it never stands still for one.

    Attributes:
        after: event that the work has passed by then.
        row: row of work that needs the result.
    """

    after: IntArray
    row: IntArray
