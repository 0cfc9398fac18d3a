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
    """How ranks came to the meetings of some steps; arrays `(n_steps, n_positions, n_ranks)`.

    Attributes:
        way_ns: from leaving the meeting before to coming to this one.
        out_ns: before that, from the last arrival at the meeting before to leaving it; 0 at the first one.
        last: place among the ranks of who came last to what the rank waits for; -1 if unknown.
        giver: place of who released the rank from the meeting before: whoever came last there, itself if it did not
            wait; -1 if unknown.
        awaited: `(n_positions,)` position of what is waited for; -1 if unknown.
    """

    way_ns: IntArray
    out_ns: IntArray
    last: IntArray
    giver: IntArray
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
    """Find how the ranks of a grid came to their meetings."""
    last = find_last(grid)
    own = np.broadcast_to(np.arange(last.shape[2]), last.shape)
    giver, out_ns = own.copy(), np.zeros(last.shape, np.int64)
    giver[:, 1:] = np.where(grid.wait > 0, last, own)[:, :-1]
    out_ns[:, 1:] = grid.own_transfer[:, :-1]
    return Course(grid.segment, out_ns, last, giver, find_awaited(grid))


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
            _charge_waits(blame, steps[first : first + each], follow_course(part), part.wait)
            _charge_hosts(blame, steps[first : first + each], part)
    return blame


def _charge_waits(blame: Blame, steps: IntArray, course: Course, wait_ns: IntArray) -> None:
    n_ranks = wait_ns.shape[2]
    own = np.arange(n_ranks)
    # Who waits came not last, whatever equal arrivals say.
    last = np.where((course.last == own) & (wait_ns > 0), ABSENT_ID, course.last)
    rank, step = np.broadcast_to(own, wait_ns.shape), np.broadcast_to(steps[:, None, None], wait_ns.shape)
    for table in (blame.last_ns, blame.caused_ns):
        _add(table, rank, last, wait_ns)
    known = last >= 0
    _add(blame.by_step, step, np.maximum(last, 0), np.where(known, wait_ns, 0))
    # Mostly one rank has released both from the meeting before, and the last one's lateness is its own.
    released = np.take_along_axis(course.giver, np.maximum(last, 0), axis=2) == course.giver
    released[:, 0] = True
    released[:, course.awaited != np.arange(len(course.awaited))] = False
    where = np.nonzero(known & ~released & (wait_ns > 0))
    _hand_on(blame, steps[where[0]], where, course, last[where], wait_ns[where])


def _hand_on(
    blame: Blame, steps: IntArray, where: tuple[Any, ...], course: Course, last: IntArray, wait_ns: IntArray
) -> None:
    """Take waits from those who came last and charge them to whom they lead back to."""
    step, position, rank = where
    _add(blame.caused_ns, rank, last, -wait_ns)
    _add(blame.by_step, steps, last, -wait_ns)
    for charged, who, held_ns in walk_back(course, step, course.awaited[position], last, rank, wait_ns):
        _add(blame.caused_ns, rank[charged], who, held_ns)
        known = who >= 0
        _add(blame.by_step, steps[charged[known]], who[known], held_ns[known])


def _add(table: IntArray, row: IntArray, column: IntArray, time_ns: IntArray) -> None:
    """Add times to a table; column -1 is its last."""
    n_columns = table.shape[1]
    cell = row * n_columns + np.where(column < 0, n_columns - 1, column)
    np.add.at(table.reshape(-1), cell.reshape(-1), time_ns.reshape(-1))


def _charge_hosts(blame: Blame, steps: IntArray, grid: StepGrid) -> None:
    """Charge what is waited between steps for the hosts of others to the one that is done last."""
    if grid.border is None:
        return
    waited = grid.inherited_ns
    last = (grid.entry + grid.border.tail).argmax(axis=1)
    row, rank = np.nonzero(waited > 0)
    for table in (blame.last_ns, blame.caused_ns):
        _add(table, rank, last[row], waited[row, rank])
    _add(blame.by_step, steps[row], last[row], waited[row, rank])


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
    _, n_positions, n_ranks = course.way_ns.shape
    took, giver = (course.way_ns.reshape(-1), course.out_ns.reshape(-1)), course.giver.reshape(-1)
    left = np.arange(len(step))
    while len(left):
        late = np.where(position >= 0, late, ABSENT_ID)
        cell = (step * n_positions + np.maximum(position, 0)) * n_ranks
        ours, theirs = cell + np.maximum(late, 0), cell + early
        longer_ns = sum(np.maximum(part[ours] - part[theirs], 0) for part in took)
        givers = giver[ours], giver[theirs]
        # What they differ by is all theirs if one rank released both; nobody looks behind the start of the step.
        is_last = (late < 0) | (position == 0) | (givers[0] == givers[1])
        held = np.where(is_last, rest, np.minimum(longer_ns, rest))
        yield left, late, held
        more = np.flatnonzero(rest > held)
        rest, step = (rest - held)[more], step[more]
        position = course.awaited[np.maximum(position[more] - 1, 0)]
        left, late, early = left[more], givers[0][more], np.where(givers[1] < 0, early, givers[1])[more]
