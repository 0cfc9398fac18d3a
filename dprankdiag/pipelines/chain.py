"""Trace what the end of a step waited for back to its start: the critical path of one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.model.blame import Link
from dprankdiag.model.results import WORST_MEETINGS
from dprankdiag.model.schema import ABSENT_ID, Columns

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class _Course:
    """How one step went; arrays `(n_positions, n_ranks)`, moments in ns.

    Attributes:
        begin, arrival, wait, end, work: of each rank at each meeting, as in `WORST_MEETINGS`.
        last: place among the ranks of who came last to what is waited for; -1 if unknown.
        awaited: `(n_positions,)` position of what is waited for; -1 if unknown.
    """

    begin: IntArray
    arrival: IntArray
    wait: IntArray
    end: IntArray
    work: IntArray
    last: IntArray
    awaited: IntArray


def trace_chain(meetings: Columns) -> tuple[Link, ...]:
    """Trace a step from its end: its last arriver, that rank's way there, its meeting before, and so on.

    Args:
        meetings: rows of `model.results.WORST_MEETINGS` of one step.

    Returns:
        The links in order of time; each begins where the one before ends, the last where the step does.
    """
    ranks = np.unique(meetings["rank"])
    links = list(_walk(_read_course(meetings, ranks), ranks))
    return tuple(link for link in reversed(links) if link.end_ns > link.start_ns)


def _read_course(meetings: Columns, ranks: IntArray) -> _Course:
    """Lay the rows of one step out by meeting and rank."""
    shape = (len(meetings["rank"]) // len(ranks), len(ranks))
    rows = np.lexsort((meetings["rank"], meetings["position"]))
    told = {name: meetings[name][rows].reshape(shape).astype(np.int64) for name in WORST_MEETINGS.empty()}
    last = np.where(told["last_rank"] >= 0, np.searchsorted(ranks, told["last_rank"]), ABSENT_ID)
    awaited = told["awaited"][:, 0]
    if (awaited < 0).all() and (last >= 0).any():
        # A bundle of an older version does not tell what is waited for: it is the meeting itself.
        awaited = np.arange(len(awaited))
    moments = (told[f"{name}_ns"] for name in ("start", "arrival", "wait", "end", "work"))
    begin, arrival, wait, end, work = moments
    return _Course(begin, arrival, wait, end, work, last, awaited)


def _walk(course: _Course, ranks: IntArray) -> Iterator[Link]:
    """Walk back from the end of the step."""
    position = len(course.awaited) - 1
    place = int(course.end[position].argmax())
    until = int(course.end[position, place])
    while True:
        # Parts that overlap (a call that began beside the work before it) are cut, so that links close up.
        met = min(int(course.arrival[position, place] + course.wait[position, place]), until)
        yield Link(int(ranks[place]), position, True, met, until)
        if course.wait[position, place] > 0:
            place, position = int(course.last[position, place]), int(course.awaited[position])
        if place < 0 or position < 0:
            yield Link(None, max(position, 0), False, min(int(course.begin[0].min()), met), met)
            return
        begin = min(int(course.begin[position, place]), met)
        work = min(int(course.work[position, place]), met - begin)
        yield Link(int(ranks[place]), position, False, begin, met, work, *_measure_lateness(course, position, place))
        if position == 0:
            return
        position, until = position - 1, begin


def _measure_lateness(course: _Course, position: int, place: int) -> tuple[int | None, int | None]:
    """Measure how far a rank came behind the others that waited for it, and what of that it had from the start."""
    arrival, begin = course.arrival[position], course.begin[position]
    met = arrival + course.wait[position]
    others = (course.last[position] == place) & (met == met[place])
    others[place] = False
    if not others.any():
        return None, None
    behind = round(float(np.median(arrival[place] - arrival[others])))
    released = round(float(np.median(begin[place] - begin[others])))
    return max(behind, 0), min(max(released, 0), max(behind, 0))
