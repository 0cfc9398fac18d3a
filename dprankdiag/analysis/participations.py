"""List what every rank takes part in, in the order in which its work comes to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.collectives import MeetingSet
from dprankdiag.analysis.overlap import NOWHERE, Joins, WorkRows

IntArray = np.ndarray[Any, np.dtype[np.int64]]

FULL, FORK, JOIN = 0, 1, 2
"""What work does at an event: stand still for a whole call; pass one that runs beside it; need its result."""

JOINED = "join"
"""Family of the positions at which work needs the result of a call that ran beside it."""


_BESIDE = ("call_arrival_ns", "call_end_ns", "work_row", "stop_row")
"""What tells events apart from calls where calls run beside work."""


@dataclass(frozen=True, slots=True)
class Participation:
    """One rank's events in order: the calls it takes part in, and where its work needs those that ran beside it.

    Attributes:
        set_id: `(n,)` index of the MeetingSet; of joins, counted on from the number of sets.
        row: `(n,)` meeting in its set.
        event: `(n,)` int8 FULL, FORK or JOIN.
        arrival_ns, end_ns: `(n,)` when the rank's work came to the event and went on.
        call_arrival_ns, call_end_ns: `(n,)` the rank's call itself.
        last_ns: `(n,)` last arrival of the group.
        shared_end_ns: `(n,)` median end of the group.
        waits: `(n,)` whether the rank's work stands still until the last arrival.
        work_row, stop_row: `(n,)` `row` and `stop` of `Overlap`; NOWHERE where they do not apply.
    """

    set_id: np.ndarray[Any, np.dtype[np.int32]]
    row: np.ndarray[Any, np.dtype[np.int32]]
    event: np.ndarray[Any, np.dtype[np.int8]]
    arrival_ns: IntArray
    end_ns: IntArray
    call_arrival_ns: IntArray
    call_end_ns: IntArray
    last_ns: IntArray
    shared_end_ns: IntArray
    waits: np.ndarray[Any, np.dtype[np.bool_]]
    work_row: IntArray
    stop_row: IntArray

    def __len__(self) -> int:
        """Count the events."""
        return len(self.set_id)


def collect_participations(sets: Sequence[MeetingSet], n_ranks: int) -> list[Participation]:
    """List every rank's calls in the order in which its work comes to them; joins are added by `add_joins`."""
    parts: list[list[dict[str, Any]]] = [[] for _ in range(n_ranks)]
    for set_id, meeting in enumerate(sets):
        last = meeting.arrival_ns.max(axis=1)
        middle = np.sort(meeting.end_ns, axis=1)[:, (len(meeting.ranks) - 1) // 2]
        if meeting.halves is not None:
            # Whoever does not wait ends later by what else it did first; nobody ends before the data have come.
            middle = meeting.end_ns.min(axis=1)
        n = len(last)
        for member, rank in enumerate(meeting.ranks):
            arrival, end = meeting.arrival_ns[:, member], meeting.end_ns[:, member]
            nowhere = np.broadcast_to(np.int64(NOWHERE), n)
            call = {
                "set_id": np.full(n, set_id, np.int32),
                "row": np.arange(n, dtype=np.int32),
                "event": np.full(n, FULL, np.int8),
                "arrival_ns": arrival,
                "end_ns": end,
                "call_arrival_ns": arrival,
                "call_end_ns": end,
                "last_ns": last,
                "shared_end_ns": middle,
                "waits": np.full(n, bool(meeting.waits[member])),
                "work_row": nowhere if meeting.overlap is None else meeting.overlap.row[:, member],
                "stop_row": nowhere,
            }
            if meeting.halves is not None:
                halves = meeting.halves
                passed = {"event": np.full(n, FORK, np.int8), "end_ns": halves.on_ns[:, member], "call_end_ns": middle}
                needed = {
                    "set_id": np.full(n, len(sets) + set_id, np.int32),
                    "event": np.full(n, JOIN, np.int8),
                    "arrival_ns": halves.hold_ns[:, member],
                    "end_ns": halves.leave_ns[:, member],
                    "call_end_ns": middle,
                }
                parts[rank] += [call | passed, call | needed]
            elif meeting.beside and meeting.overlap is not None:
                reach = meeting.overlap.reach_ns[:, member]
                passed = {"event": np.full(n, FORK, np.int8), "arrival_ns": reach, "end_ns": reach}
                stop = meeting.overlap.stop[:, member]
                parts[rank].append(call | passed | {"waits": np.zeros(n, bool), "stop_row": stop})
            else:
                parts[rank].append(call)
    return [_order_events(mine) for mine in parts]


def _order_events(parts: Sequence[dict[str, Any]]) -> Participation:
    if not parts:
        empty = np.empty(0, np.int64)
        moments = ("arrival_ns", "end_ns", "call_arrival_ns", "call_end_ns", "last_ns", "shared_end_ns")
        return Participation(
            set_id=np.empty(0, np.int32),
            row=np.empty(0, np.int32),
            event=np.empty(0, np.int8),
            waits=np.empty(0, bool),
            work_row=empty,
            stop_row=empty,
            **dict.fromkeys(moments, empty),
        )
    # Where every call stops its rank, what else is known of calls is the same, or nothing: none of it is kept twice.
    is_plain = all(not part["event"].any() for part in parts)
    names = [name for name in parts[0] if not (is_plain and name in _BESIDE)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in names}
    order = np.lexsort((columns["end_ns"], columns["event"] == JOIN, columns["arrival_ns"]))
    columns = {name: values[order] for name, values in columns.items()}
    if is_plain:
        columns |= {"call_arrival_ns": columns["arrival_ns"], "call_end_ns": columns["end_ns"]}
        nowhere = np.broadcast_to(np.int64(NOWHERE), len(order))
        columns |= {"work_row": nowhere, "stop_row": nowhere}
    return Participation(**columns)


def add_joins(part: Participation, joins: Joins, work: WorkRows, n_sets: int) -> Participation:
    """Add the events at which a rank's work needs the results of calls that ran beside it.

    Args:
        work: the rank's work on the common axis.
    """
    calls = np.flatnonzero((joins.row >= 0) & (joins.row < len(work.begin_ns)))
    calls = calls[np.lexsort((part.call_end_ns[calls], joins.row[calls]))]
    columns = {name: getattr(part, name) for name in Participation.__slots__}
    added = {name: values[calls] for name, values in columns.items()}
    needs = joins.row[calls]
    hold = np.maximum(work.ready_ns[needs], part.end_ns[joins.after[calls]])
    leave = np.maximum(work.begin_ns[needs], hold)
    # Of several calls that one row needs, each is waited for in turn.
    also = np.flatnonzero(needs[1:] == needs[:-1])
    leave[also] = np.clip(part.call_end_ns[calls[also]], hold[also], leave[also])
    hold[also + 1] = np.maximum(hold[also + 1], leave[also])
    added |= {
        "set_id": (added["set_id"] + n_sets).astype(np.int32),
        "event": np.full(len(calls), JOIN, np.int8),
        "arrival_ns": hold,
        "end_ns": leave,
    }
    return _order_events([columns, added])


def find_world(sets: Sequence[MeetingSet], ranks: Sequence[int]) -> list[int]:
    """Return the sets in which all the given ranks meet."""
    return [set_id for set_id, meeting in enumerate(sets) if meeting.ranks == tuple(ranks)]


def locate_world(participation: Participation, sets: Sequence[MeetingSet], world: Sequence[int]) -> IntArray:
    """Return the positions of the world meetings in a rank's list, ordered by the meetings' last arrival."""
    index = np.flatnonzero(np.isin(participation.set_id, np.array(world)))
    order = np.lexsort((participation.set_id[index], participation.last_ns[index]))
    return np.asarray(index[order])
