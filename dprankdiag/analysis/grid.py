"""Lay the steps of a lockstep group out as arrays: step by position by rank.

A position is the ordinal of a rank's own meeting within the step. Steps whose ranks met in the same order on the same
channels share a grid; only they are compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprankdiag.analysis.collectives import MeetingSet
from dprankdiag.analysis.segments import Segments
from dprankdiag.analysis.steps import Cut
from dprankdiag.model.results import COMPONENTS as COMPONENTS

IntArray = np.ndarray[Any, np.dtype[np.int64]]

FEWEST_STEPS = 3


@dataclass(frozen=True, slots=True)
class Participation:
    """One rank's meetings in order: which set and row each belongs to, and the meeting's times.

    Attributes:
        set_id: `(n,)` index of the MeetingSet.
        arrival_ns, end_ns: `(n,)` the rank's own.
        last_ns: `(n,)` last arrival of the group.
        shared_end_ns: `(n,)` median end of the group.
        waits: `(n,)` whether the rank's call lasts until the last arrival.
    """

    set_id: np.ndarray[Any, np.dtype[np.int32]]
    arrival_ns: IntArray
    end_ns: IntArray
    last_ns: IntArray
    shared_end_ns: IntArray
    waits: np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class StepGrid:
    """Steps of one kind; arrays `(n_steps, n_positions, n_ranks)` in ns unless said otherwise.

    Attributes:
        kind: "decode", "prefill", "mixed", "step" or "meeting".
        number: `(n_steps,)` ordinal of each step in the whole recording.
        start_ns, end_ns: `(n_steps,)` end of the previous step's and of the own last world meeting.
        components: by name, see COMPONENTS.
        entry: `(n_steps, n_ranks)` how late each rank leaves the previous step's last meeting, against its median.
        exit: how late each rank leaves each meeting, against its median.
        transfer: median end minus last arrival.
        group: `(n_positions, n_ranks)` id of the meeting's group.
        family, operation, channel: of each position.
        layer: `(n_positions,)` ordinal of the gather-scatter pair, -1 before the first attention.
        side: of each position: "pre" (before the gather), "post", "both" or "none".
    """

    kind: str
    number: IntArray
    start_ns: IntArray
    end_ns: IntArray
    segment: IntArray
    components: dict[str, IntArray]
    wait: IntArray
    transfer: IntArray
    own_transfer: IntArray
    entry: IntArray
    exit: IntArray
    waits: np.ndarray[Any, np.dtype[np.bool_]]
    group: IntArray
    family: tuple[str, ...]
    operation: tuple[str, ...]
    channel: tuple[str, ...]
    layer: IntArray
    side: tuple[str, ...]

    @property
    def duration_ns(self) -> IntArray:
        """Wall time of each step, `(n_steps,)`."""
        return np.asarray(self.end_ns - self.start_ns)

    def take(self, rows: IntArray) -> StepGrid:
        """Return the grid of some of its steps."""
        return replace(
            self,
            number=self.number[rows],
            start_ns=self.start_ns[rows],
            end_ns=self.end_ns[rows],
            segment=self.segment[rows],
            components={name: values[rows] for name, values in self.components.items()},
            wait=self.wait[rows],
            transfer=self.transfer[rows],
            own_transfer=self.own_transfer[rows],
            entry=self.entry[rows],
            exit=self.exit[rows],
            waits=self.waits[rows],
        )


def collect_participations(sets: Sequence[MeetingSet], n_ranks: int) -> list[Participation]:
    """List every rank's meetings in order of arrival."""
    parts: list[list[tuple[IntArray, ...]]] = [[] for _ in range(n_ranks)]
    for set_id, meeting in enumerate(sets):
        last = meeting.arrival_ns.max(axis=1)
        middle = np.sort(meeting.end_ns, axis=1)[:, (len(meeting.ranks) - 1) // 2]
        n = len(last)
        for member, rank in enumerate(meeting.ranks):
            parts[rank].append(
                (
                    np.full(n, set_id, np.int32),
                    meeting.arrival_ns[:, member],
                    meeting.end_ns[:, member],
                    last,
                    middle,
                    np.full(n, meeting.waits[member]),
                )
            )
    result = []
    for mine in parts:
        if not mine:
            empty = np.empty(0, np.int64)
            result.append(Participation(np.empty(0, np.int32), empty, empty, empty, empty, np.empty(0, bool)))
            continue
        columns = [np.concatenate(column) for column in zip(*mine, strict=True)]
        order = np.lexsort((columns[2], columns[1]))
        result.append(Participation(*(column[order] for column in columns)))
    return result


def find_world(sets: Sequence[MeetingSet], ranks: Sequence[int]) -> list[int]:
    """Return the sets in which all the given ranks meet."""
    return [set_id for set_id, meeting in enumerate(sets) if meeting.ranks == tuple(ranks)]


def locate_world(participation: Participation, sets: Sequence[MeetingSet], world: Sequence[int]) -> IntArray:
    """Return the positions of the world meetings in a rank's list, ordered by the meetings' last arrival."""
    index = np.flatnonzero(np.isin(participation.set_id, np.array(world)))
    order = np.lexsort((participation.set_id[index], participation.last_ns[index]))
    return np.asarray(index[order])


def build_grids(
    participations: Sequence[Participation],
    segments: Sequence[Segments],
    position: Sequence[IntArray],
    sets: Sequence[MeetingSet],
    cut: Cut,
) -> tuple[list[StepGrid], int]:
    """Build a grid for every kind of step that occurs often enough.

    Args:
        participations, segments: of each member rank.
        position: for each member, where the world meetings stand in its list.
        sets: all meeting sets.

    Returns:
        The grids, largest first, and how many complete steps were left out because their kind is rare or broken.
    """
    first = cut.first
    begin = np.stack([where[first[:-1] - 1] + 1 for where in position], axis=1)
    stop = np.stack([where[first[1:] - 1] + 1 for where in position], axis=1)
    kinds: dict[tuple[object, ...], list[int]] = {}
    length = stop - begin
    phases = _name_phases(segments, begin, stop)
    names = _name_attention(segments, begin, stop)
    for step in range(len(first) - 1):
        if (length[step] != length[step, 0]).any() or length[step, 0] <= 0:
            kinds.setdefault(("broken",), []).append(step)
            continue
        signature: tuple[object, ...] = tuple(
            participations[rank].set_id[begin[step, rank] : stop[step, rank]].tobytes()
            for rank in range(len(participations))
        )
        content = segments[0].content[begin[step, 0]].tobytes() if cut.basis == "meeting" else b""
        kinds.setdefault((*signature, content, names[step], phases[step]), []).append(step)
    grids = []
    left_out = 0
    for signature, steps in kinds.items():
        if signature[0] == "broken" or len(steps) < FEWEST_STEPS:
            left_out += len(steps)
            continue
        kind = "meeting" if cut.basis == "meeting" else str(signature[-1])
        chosen = np.array(steps)
        grids.append(_fill(participations, segments, sets, begin[chosen], int(length[chosen[0], 0]), chosen, kind))
    grids.sort(key=lambda grid: -len(grid.number))
    return grids, left_out


def _name_phases(segments: Sequence[Segments], begin: IntArray, stop: IntArray) -> list[str]:
    """Name every step after the attention kernels in it.

    The first segment also holds the tail of the step before, so that it is left out where there are others.
    """
    begin = begin + (stop - begin > 1)
    totals = []
    for name in ("prefill", "decode", "in_graph"):
        total = np.zeros(len(begin), np.int64)
        for rank, member in enumerate(segments):
            total += _count_within(getattr(member, name), begin[:, rank], stop[:, rank])
        totals.append(total.tolist())
    return [_phase(*counts) for counts in zip(*totals, strict=True)]


def _name_attention(segments: Sequence[Segments], begin: IntArray, stop: IntArray) -> list[int]:
    """Collect, for every step, which attention kernels ran on any rank (see `Segments.attention_names`)."""
    begin = begin + (stop - begin > 1)
    bits = np.zeros(len(begin), np.int64)
    for value in range(3, 63):
        counts = [((member.attention_names >> value) & 1).astype(np.int32) for member in segments]
        if not any(count.any() for count in counts):
            continue
        within = [_count_within(c, begin[:, rank], stop[:, rank]) > 0 for rank, c in enumerate(counts)]
        bits |= np.any(within, axis=0).astype(np.int64) << value
    return [int(value) for value in bits]


def _count_within(counts: np.ndarray[Any, np.dtype[np.int32]], begin: IntArray, stop: IntArray) -> IntArray:
    total = np.concatenate([[0], np.cumsum(counts)])
    return np.asarray(total[np.maximum(stop, begin)] - total[begin])


def _phase(prefill: int, decode: int, graph: int) -> str:
    if prefill and (decode or graph):
        return "mixed"
    if prefill:
        return "prefill"
    if graph:
        return "decode graph"
    return "decode" if decode else "step"


def _fill(
    participations: Sequence[Participation],
    segments: Sequence[Segments],
    sets: Sequence[MeetingSet],
    begin: IntArray,
    n_positions: int,
    number: IntArray,
    kind: str,
) -> StepGrid:
    n_steps, n_ranks = begin.shape
    shape = (n_steps, n_positions, n_ranks)
    arrays = {name: np.empty(shape, np.int64) for name in ("segment", "wait", "transfer", "own_transfer", "exit")}
    components = {name: np.zeros(shape, np.int64) for name in COMPONENTS}
    waits = np.ones(shape, bool)
    entry = np.empty((n_steps, n_ranks), np.int64)
    group = np.empty((n_positions, n_ranks), np.int64)
    start_ns = end_ns = np.empty(0, np.int64)
    for rank, (part, own) in enumerate(zip(participations, segments, strict=True)):
        index = begin[:, rank, None] + np.arange(n_positions)[None, :]
        before = index[:, 0] - 1
        arrays["segment"][:, :, rank] = part.arrival_ns[index] - part.end_ns[index - 1]
        # A call that does not wait neither gains from others' earlier arrival nor is credited with waiting.
        free = ~part.waits[index]
        waits[:, :, rank] = ~free
        arrays["wait"][:, :, rank] = np.where(free, 0, part.last_ns[index] - part.arrival_ns[index])
        arrays["transfer"][:, :, rank] = part.shared_end_ns[index] - part.last_ns[index]
        arrays["own_transfer"][:, :, rank] = np.where(
            free, part.end_ns[index] - part.arrival_ns[index], part.end_ns[index] - part.last_ns[index]
        )
        arrays["exit"][:, :, rank] = part.end_ns[index] - part.shared_end_ns[index]
        entry[:, rank] = part.end_ns[before] - part.shared_end_ns[before]
        group[:, rank] = part.set_id[index[0]]
        _fill_components(components, arrays["segment"][:, :, rank], own, index, rank)
        if rank == 0:
            start_ns, end_ns = (part.shared_end_ns[before], part.shared_end_ns[index[:, -1]])
    layer, side = _find_layers(components)
    return StepGrid(
        kind,
        number,
        start_ns,
        end_ns,
        arrays["segment"],
        components,
        arrays["wait"],
        arrays["transfer"],
        arrays["own_transfer"],
        entry,
        arrays["exit"],
        waits,
        group,
        tuple(sets[set_id].family for set_id in group[:, 0]),
        tuple(sets[set_id].operation for set_id in group[:, 0]),
        tuple(sets[set_id].channel for set_id in group[:, 0]),
        layer,
        side,
    )


def _fill_components(
    components: dict[str, IntArray], segment: IntArray, own: Segments, index: IntArray, rank: int
) -> None:
    """Split a rank's segments; what overlaps a meeting or another lane is taken off `rest` first, then off `other`."""
    attention, expert, probe = (own.attention_ns[index], own.expert_ns[index], own.probe_ns[index])
    other = own.work_ns[index] - attention - expert - probe
    host = np.minimum(own.host_ns[index], np.maximum(segment - attention - expert - probe - other, 0))
    components["attention"][:, :, rank] = attention
    components["expert"][:, :, rank] = expert
    components["probe"][:, :, rank] = probe
    components["other"][:, :, rank] = other
    components["host"][:, :, rank] = host
    components["rest"][:, :, rank] = segment - attention - expert - probe - other - host


def _find_layers(components: dict[str, IntArray]) -> tuple[IntArray, tuple[str, ...]]:
    """Number the gather-scatter pairs and tell on which side of the gather each position lies."""
    attention = np.median(components["attention"].max(axis=2), axis=0) > 0
    expert = np.median(components["expert"].max(axis=2), axis=0) > 0
    layer = np.maximum(np.cumsum(attention) - 1, -1)
    side = []
    current = "none"
    for has_attention, has_expert in zip(attention, expert, strict=True):
        if has_attention and has_expert:
            current = "both"
        elif has_attention:
            current = "pre"
        elif has_expert:
            current = "post"
        side.append(current)
    return layer, tuple(side)
