"""Find how the positions of a step hang together where calls run beside the ranks' own work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprankdiag.analysis.collectives import MeetingSet
from dprankdiag.analysis.participations import FORK, JOIN, Participation
from dprankdiag.model.schema import ABSENT_NS

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]

QUEUES = 0.99
"""Calls on one stream never begin before the one before has ended; so many must not, to take them for such."""


@dataclass(frozen=True, slots=True)
class Beside:
    """How the positions of a grid hang together where calls run beside the ranks' own work.

    Attributes:
        event: `(n_positions,)` FULL, FORK or JOIN.
        partner: `(n_positions,)` of a join, the position of its call; -1 where that lies in an earlier step.
        previous: `(n_positions,)` of a fork, the position of the call that its stream carried before; -1 if none.
        outer_end: `(n_steps, n_positions)` end of the earlier step's call that a join without partner needs, ns after
            the step's start.
        lag: `(n_steps, n_positions, n_ranks)` of a fork, from the later of its work and the end of the rank's call
            before it on its stream to its arrival.
        burden: `(n_steps, n_positions, n_ranks)` ns that a segment loses in each ns in which calls run beside it.
        beside_ns: `(n_steps, n_positions, n_ranks)` how long they did.
        behind_ns: see `StepGrid.behind_ns`.
        receives: `(n_positions,)` joins at which what was sent in one kernel is received in another.
    """

    event: np.ndarray[Any, np.dtype[np.int8]]
    partner: IntArray
    previous: IntArray
    outer_end: IntArray
    lag: IntArray
    burden: FloatArray
    beside_ns: IntArray
    behind_ns: IntArray
    receives: np.ndarray[Any, np.dtype[np.bool_]]

    def take(self, rows: IntArray) -> Beside:
        """Return what belongs to some of the steps."""
        by_step = ("outer_end", "lag", "burden", "beside_ns", "behind_ns")
        return replace(self, **{name: getattr(self, name)[rows] for name in by_step})


def relate_calls(
    participations: Sequence[Participation],
    begin: IntArray,
    components: dict[str, IntArray],
    segment: IntArray,
    start_ns: IntArray,
    sets: Sequence[MeetingSet],
) -> Beside:
    """Find which position each join and fork depends on, and what calls cost the work beside them (see `Beside`)."""
    lead, n_sets = participations[0], len(sets)
    n_positions = segment.shape[1]
    index = begin[:, 0, None] + np.arange(n_positions)[None, :]
    event = lead.event[index[0]]
    partner = find_partners(lead, index[0], n_sets)
    forks = np.flatnonzero(event == FORK)
    previous = np.full(n_positions, -1, np.int64)
    lag = np.zeros((len(begin), n_positions, len(participations)), np.int64)
    for number, place in enumerate(forks.tolist()):
        earlier = int(forks[number - 1]) if number else -1
        if earlier >= 0 and _queue(participations, begin, earlier, place):
            previous[place] = earlier
        for rank, part in enumerate(participations):
            own = begin[:, rank] + place
            free = part.arrival_ns[own]
            if previous[place] >= 0:
                free = np.maximum(free, part.call_end_ns[begin[:, rank] + earlier])
            lag[:, place, rank] = part.call_arrival_ns[own] - free
    outer = np.where(event == JOIN, lead.shared_end_ns[index] - start_ns[:, None], 0)
    beside, behind = np.zeros(segment.shape, np.int64), np.empty(segment.shape, np.int64)
    for rank, part in enumerate(participations):
        own = begin[:, rank, None] + np.arange(n_positions)[None, :]
        running = np.maximum.accumulate(np.where(event == FORK, part.call_end_ns[own], ABSENT_NS), axis=1)
        running = np.concatenate([np.full((len(own), 1), ABSENT_NS), running[:, :-1]], axis=1)
        left = np.maximum(running, part.end_ns[own - 1]) - part.end_ns[own - 1]
        behind[:, :, rank] = np.where(event == JOIN, -1, part.call_arrival_ns[own] - part.last_ns[own])
        beside[:, :, rank] = np.minimum(left, np.maximum(segment[:, :, rank], 0))
    burden = components["contention"] / np.maximum(beside, 1)
    halved = np.array([item.halves is not None for item in sets])
    receives = (event == JOIN) & halved[lead.set_id[index[0]] % n_sets]
    return Beside(event, partner, previous, outer, lag, np.where(beside > 0, burden, 0.0), beside, behind, receives)


def find_partners(lead: Participation, events: IntArray, n_sets: int) -> IntArray:
    """Find for every join of a step the position of its call, -1 where that lies in an earlier step or there is none.

    Args:
        lead: any member; `events`: its events of one step, `(n_positions,)`.
        n_sets: see `Participation.set_id`.
    """
    event = lead.event[events]
    calls = {
        (int(lead.set_id[row]), int(lead.row[row])): position
        for position, row in enumerate(events.tolist())
        if event[position] != JOIN
    }
    partner = np.full(len(events), -1, np.int64)
    for position in np.flatnonzero(event == JOIN).tolist():
        row = events[position]
        partner[position] = calls.get((int(lead.set_id[row]) - n_sets, int(lead.row[row])), -1)
    return partner


def _queue(participations: Sequence[Participation], begin: IntArray, earlier: int, position: int) -> bool:
    """Tell whether calls at one position never begin before those at an earlier one have ended: on one stream."""
    since = [
        part.call_arrival_ns[begin[:, rank] + position] - part.call_end_ns[begin[:, rank] + earlier]
        for rank, part in enumerate(participations)
    ]
    return bool(np.mean(np.stack(since) >= 0) >= QUEUES)
