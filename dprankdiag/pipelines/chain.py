"""Trace what the end of a step waited for back to its start: the critical path of one step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.blame import Course, IntArray
from dprankdiag.model.blame import Link
from dprankdiag.model.results import WORST_MEETINGS
from dprankdiag.model.schema import ABSENT_ID, Columns


def trace_chain(meetings: Columns) -> tuple[Link, ...]:
    """Trace a step from its end: its last arriver, that rank's way there, its meeting before, and so on.

    Args:
        meetings: rows of `model.results.WORST_MEETINGS` of one step.

    Returns:
        The links in order of time; each begins where the one before ends, the last where the step does.
    """
    ranks = np.unique(meetings["rank"])
    course, work_ns = _read_course(meetings, ranks)
    return tuple(link for link in reversed(list(_walk(course, work_ns, ranks))) if link.end_ns > link.start_ns)


def _read_course(meetings: Columns, ranks: IntArray) -> tuple[Course, IntArray]:
    """Lay the rows of one step out by meeting and rank; also the work on the way to each meeting."""
    shape = (1, len(meetings["rank"]) // len(ranks), len(ranks))
    rows = np.lexsort((meetings["rank"], meetings["position"]))
    told = {name: meetings[name][rows].reshape(shape) for name in WORST_MEETINGS.empty()}
    last = np.where(told["last_rank"] >= 0, np.searchsorted(ranks, told["last_rank"]), ABSENT_ID).astype(np.int32)
    # A bundle of an older version does not tell what is waited for: it is the meeting itself.
    own = np.arange(shape[1])
    awaited = np.where((told["awaited"] < 0).all() & (last >= 0).any(), own, told["awaited"][0, :, 0])
    return Course(
        told["start_ns"], told["arrival_ns"], told["wait_ns"], told["end_ns"], last, awaited.astype(np.int64)
    ), told["work_ns"][0]


def _walk(course: Course, work_ns: IntArray, ranks: IntArray) -> Iterator[Link]:
    """Walk back from the end of the step."""
    position = len(course.awaited) - 1
    place = int(course.end[0, position].argmax())
    until = int(course.end[0, position, place])
    while True:
        # Parts that overlap (a call that began beside the work before it) are cut, so that links close up.
        met = min(int(course.arrival[0, position, place] + course.wait[0, position, place]), until)
        yield Link(int(ranks[place]), position, True, met, until)
        if course.wait[0, position, place] > 0:
            place, position = int(course.last[0, position, place]), int(course.awaited[position])
        if place < 0 or position < 0:
            yield Link(None, max(position, 0), False, min(int(course.begin[0, 0].min()), met), met)
            return
        begin = min(int(course.begin[0, position, place]), met)
        work = min(int(work_ns[position, place]), met - begin)
        yield Link(int(ranks[place]), position, False, begin, met, work, *_measure_lateness(course, position, place))
        if position == 0:
            return
        position, until = position - 1, begin


def _measure_lateness(course: Course, position: int, place: int) -> tuple[int | None, int | None]:
    """Measure how far a rank came behind the others that waited for it, and what of that it had from the start."""
    arrival, begin = course.arrival[0, position], course.begin[0, position]
    met = arrival + course.wait[0, position]
    others = (course.last[0, position] == place) & (met == met[place])
    others[place] = False
    if not others.any():
        return None, None
    behind = round(float(np.median(arrival[place] - arrival[others])))
    released = round(float(np.median(begin[place] - begin[others])))
    return max(behind, 0), min(max(released, 0), max(behind, 0))
