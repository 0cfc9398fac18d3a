"""Blame whoever a wait leads back to: not who came last to the meeting, if that rank had been held up itself.

A rank waits at a meeting as long as the last one comes after it. That one took longer on its way there, or had left its
meeting before later, or both. What it took longer is charged to it. So is what it left later, as far as it came out of
that meeting later after the last arrival there; the rest is charged to whoever came last there, as far as that one took
longer than whoever released the waiting rank, and so on back to the start of the step. A rank that was released late
inherits its lateness and passes the blame on.

Source: the critical path of a program of processes that wait for each other, as in Yang and Miller, "Critical Path
Analysis for the Execution of Parallel and Distributed Programs" (ICDCS 1988).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.last_arrivals import find_awaited, find_last
from dprankdiag.analysis.observations import Observations
from dprankdiag.model.schema import ABSENT_ID

IntArray = np.ndarray[Any, np.dtype[np.int64]]

MOST_CELLS = 2**20
"""Meetings of ranks that are looked at together: more would only need more memory."""


@dataclass(frozen=True, slots=True)
class Course:
    """How steps of one kind went; arrays `(n_steps, n_positions, n_ranks)`, ns on one axis a step.

    Attributes:
        begin: when the rank left its meeting before, or the step before.
        arrival, wait, end: when it came to the meeting, how long it waited there, and when it left.
        last: place among the ranks of who came last to what is waited for; -1 if unknown.
        awaited: `(n_positions,)` position of what is waited for; -1 if unknown.
    """

    begin: IntArray
    arrival: IntArray
    wait: IntArray
    end: IntArray
    last: np.ndarray[Any, np.dtype[np.int32]]
    awaited: IntArray


@dataclass(frozen=True, slots=True)
class Blame:
    """Who waits for whom in a lockstep group, ns summed over all its steps.

    Attributes:
        last_ns: `(n_ranks, n_ranks + 1)` how long a rank (row) waits at meetings to which another (column) came last.
        caused_ns: likewise, how much of its waiting leads back to another one.
        by_step: `(n_steps, n_ranks)` how long all others together waited because of a rank.

    The last column is of those of whom it is not known. Rows of both add up to what the rank waits.
    """

    last_ns: IntArray
    caused_ns: IntArray
    by_step: IntArray


def follow_course(grid: StepGrid) -> Course:
    """Lay out when the ranks of a grid came to their meetings and left them."""
    arrival = grid.reach_ns
    begin, end = arrival - grid.segment, arrival + grid.wait + grid.own_transfer
    return Course(begin, arrival, grid.wait, end, find_last(grid), find_awaited(grid))


def spread_blame(seen: Observations) -> Blame:
    """Charge all waits of a lockstep group to the ranks that they lead back to."""
    n = seen.n_ranks
    blame = Blame(np.zeros((n, n + 1), np.int64), np.zeros((n, n + 1), np.int64), np.zeros((seen.n_steps, n), np.int64))
    for number, grid in enumerate(seen.grids):
        steps = np.flatnonzero(seen.grid_of == number)
        rows = seen.row_of[steps]
        each = max(MOST_CELLS // max(grid.segment[0].size, 1), 1)
        for first in range(0, len(steps), each):
            part = grid.take(rows[first : first + each])
            _charge_waits(blame, steps[first : first + each], follow_course(part))
            _charge_hosts(blame, steps[first : first + each], part)
    return blame


def _charge_waits(blame: Blame, steps: IntArray, course: Course) -> None:
    step, position, rank = np.nonzero(course.wait > 0)
    wait = course.wait[step, position, rank]
    last = course.last[step, position, rank].astype(np.int64)
    last = np.where(last == rank, ABSENT_ID, last)  # who waits came not last, whatever equal arrivals say
    np.add.at(blame.last_ns, (rank, last), wait)
    for charged, who, held_ns in walk_back(course, step, course.awaited[position], last, rank, wait):
        np.add.at(blame.caused_ns, (rank[charged], who), held_ns)
        known = who >= 0
        np.add.at(blame.by_step, (steps[step[charged[known]]], who[known]), held_ns[known])


def _charge_hosts(blame: Blame, steps: IntArray, grid: StepGrid) -> None:
    """Charge what is waited between steps for the hosts of others to the one that is done last."""
    if grid.border is None:
        return
    waited = grid.inherited_ns
    last = (grid.entry + grid.border.tail).argmax(axis=1)
    row, rank = np.nonzero(waited > 0)
    for table in (blame.last_ns, blame.caused_ns):
        np.add.at(table, (rank, last[row]), waited[row, rank])
    np.add.at(blame.by_step, (steps[row], last[row]), waited[row, rank])


def walk_back(
    course: Course, step: IntArray, position: IntArray, late: IntArray, early: IntArray, rest: IntArray
) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
    """Walk waits back along what they waited for, all at once, one meeting at a time.

    Args:
        step, position: `(n,)` the meeting that is waited for.
        late, early: `(n,)` places of who came last to it (-1: unknown), and of who waited.
        rest: `(n,)` the waits.

    Yields:
        Which waits are charged, whom (-1: unknown), and how much, `(m,)` each.
    """
    left = np.arange(len(step))
    while len(left):
        late = np.where(position >= 0, late, ABSENT_ID)
        way = course.arrival - course.begin
        longer = way[step, position, late] - way[step, position, early]
        before = np.maximum(position - 1, 0)
        met_late, met_early = (_find_met(course, step, before, place) for place in (late, early))
        out = (course.begin[step, position, late] - met_late) - (course.begin[step, position, early] - met_early)
        givers = [_find_giver(course, step, before, place) for place in (late, early)]
        # What they differ by is all theirs if one rank released both; nobody looks behind the start of the step.
        is_last = (late < 0) | (position == 0) | (givers[0] == givers[1])
        held = np.where(is_last, rest, np.clip(np.maximum(longer, 0) + np.maximum(out, 0), 0, rest))
        yield left, late, held
        rest = rest - held
        late, early = givers[0], np.where(givers[1] < 0, early, givers[1])
        position = course.awaited[before]
        more = rest > 0
        left, step, position, late, early, rest = (values[more] for values in (left, step, position, late, early, rest))


def _find_met(course: Course, step: IntArray, position: IntArray, place: IntArray) -> IntArray:
    """Find when the meeting of a rank had all its members."""
    return np.asarray(course.arrival[step, position, place] + course.wait[step, position, place])


def _find_giver(course: Course, step: IntArray, position: IntArray, place: IntArray) -> IntArray:
    """Find who released a rank from a meeting: the last to come, itself if it did not wait; -1 if unknown."""
    waited = course.wait[step, position, place] > 0
    return np.where(waited, course.last[step, position, place], place).astype(np.int64)
