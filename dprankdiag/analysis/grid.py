"""Lay the steps of a lockstep group out as arrays: step by position by rank.

A position is the ordinal of a rank's own meeting within the step. Steps whose ranks met in the same order on the same
channels share a grid; only they are compared with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dprankdiag.analysis.beside import Beside, find_partners, relate_calls
from dprankdiag.analysis.borders import Border, look_for_border
from dprankdiag.analysis.collectives import MeetingSet
from dprankdiag.analysis.kinds import BROKEN, join_rare, sort_steps
from dprankdiag.analysis.left_out import LeftOut, bound_skew
from dprankdiag.analysis.participations import FORK, FULL, JOIN, JOINED, Participation
from dprankdiag.analysis.segments import Segments
from dprankdiag.analysis.steps import Cut
from dprankdiag.model.results import COMPONENTS

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]

FEWEST_STEPS = 3

BLOCK, BLOCK_SHARE = 16, 1 / 8
"""Ranks whose numbers are written together: as many as share two lines of memory, and no more than this share of all,
since until then they are held twice."""


class Leave(NamedTuple):
    """Where ranks leave a meeting.

    Attributes:
        position: whose exit lateness counts.
        call: position of the meeting; another one where it is received in a second kernel, -1 if in an earlier step.
        family, operation: of the meeting.
    """

    position: int
    call: int
    family: str
    operation: str


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
        beside: how positions hang together where calls run beside work; None where every call stops its ranks.
        border: what lies before the first position where the hosts meet between steps; None where they do not.
        ahead: how far launches lead (see `Segments.ahead_ns`); None where that is not known.
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
    beside: Beside | None = None
    border: Border | None = None
    ahead: np.ndarray[Any, np.dtype[np.int32]] | None = None

    @property
    def meetings(self) -> tuple[int, ...]:
        """List the positions that are meetings, joins left out."""
        return tuple(k for k, family in enumerate(self.family) if family != JOINED)

    @property
    def reach_ns(self) -> IntArray:
        """When each rank came to each position, ns after the step's start, `(n_steps, n_positions, n_ranks)`."""
        stay = self.wait + self.own_transfer
        return np.asarray(self.entry[:, None, :] + np.cumsum(self.segment + stay, axis=1) - stay)

    @property
    def leaves(self) -> tuple[Leave, ...]:
        """List where ranks leave meetings: behind the call, or behind the kernel that receives what another sent."""
        calls = {self.channel[k]: k for k in self.meetings}
        receipts = np.zeros(len(self.family), bool) if self.beside is None else self.beside.receives
        in_halves = {self.channel[k] for k in np.flatnonzero(receipts)}
        found = []
        for k, channel in enumerate(self.channel):
            if self.beside is not None and receipts[k] and channel in calls:
                meeting = calls[channel]
                call = int(self.beside.partner[k])
                found.append(Leave(k, call, self.family[meeting], self.operation[meeting]))
            elif self.family[k] != JOINED and channel not in in_halves:
                found.append(Leave(k, k, self.family[k], self.operation[k]))
        return tuple(found)

    @property
    def behind_ns(self) -> IntArray:
        """Own arrival minus the group's last, `(n_steps, n_positions, n_ranks)`, at most 0; -1 at joins.

        A call that waits begins its wait when it arrives; of one that does not, the end and the length are known.
        """
        if self.beside is not None:
            return self.beside.behind_ns
        return np.asarray(np.where(self.waits, -self.wait, self.transfer + self.exit - self.own_transfer))

    @property
    def is_last(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether the rank came last to a meeting whose members wait for each other, shape as `behind_ns`."""
        waits = self.waits
        if self.beside is not None:
            waits = waits | (self.beside.event == FORK)[None, :, None]
        return np.asarray((self.behind_ns == 0) & waits)

    def find_last(self, steps: IntArray, ranks: Sequence[int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Say of some steps and ranks what `is_last` says of all, `(len(steps), n_positions, len(ranks))`."""
        chosen = np.ix_(steps, np.arange(self.segment.shape[1]), np.array(ranks, np.int64))
        if self.beside is not None:
            return np.asarray(self.is_last[chosen])
        # Of a call that waits; no other is last.
        return np.asarray(self.waits[chosen] & (self.wait[chosen] == 0))

    @property
    def operations(self) -> set[str]:
        """Name the operations of the meetings."""
        return {self.operation[k] for k in self.meetings}

    @property
    def inherited_ns(self) -> IntArray:
        """Idle time before launches in which the hosts of others were waited for, `(n_steps, n_ranks)`."""
        if self.border is None:
            return np.zeros((len(self.number), self.segment.shape[2]), np.int64)
        return np.minimum(self.border.slack, self.components["host"][:, 0])

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
            beside=None if self.beside is None else self.beside.take(rows),
            border=None if self.border is None else self.border.take(rows),
            ahead=None if self.ahead is None else self.ahead[rows],
        )


def build_grids(
    participations: Sequence[Participation],
    segments: Sequence[Segments],
    position: Sequence[IntArray],
    sets: Sequence[MeetingSet],
    cut: Cut,
) -> tuple[list[StepGrid], LeftOut]:
    """Build a grid for every kind of step that occurs often enough.

    Args:
        participations, segments: of each member rank.
        position: for each member, where the world meetings stand in its list.
        sets: all meeting sets.

    Returns:
        The grids, largest first, and the complete steps that were left out because their kind is rare or broken.
    """
    begin, stop = (_pass_joins(participations, edge) for edge in bound_steps(cut, position))
    kinds = sort_steps(participations, segments, begin, stop, cut.basis)
    grids = []
    left: list[int] = []
    for signature, steps in (kinds if cut.basis == "meeting" else join_rare(kinds, sets, FEWEST_STEPS)).items():
        if signature == BROKEN or len(steps) < FEWEST_STEPS:
            left += steps
            continue
        kind = "meeting" if cut.basis == "meeting" else str(signature[-1])
        chosen = np.array(steps)
        n_positions = int(stop[steps[0], 0] - begin[steps[0], 0])
        grids.append(_fill(participations, segments, sets, begin[chosen], n_positions, chosen, kind))
    grids.sort(key=lambda grid: -len(grid.number))
    return grids, bound_skew(participations, segments, begin, stop, np.array(left, np.int64))


def _pass_joins(participations: Sequence[Participation], edge: IntArray) -> IntArray:
    """Move the edges of steps behind the joins there: what work needs of a step's last calls is part of that step.

    Args:
        edge: `(n_steps, n_members)`.
    """
    moved = []
    for part, own in zip(participations, edge.T, strict=True):
        n = len(part)
        calls = np.append(np.where(part.event == JOIN, n, np.arange(n)), n)
        moved.append(np.minimum.accumulate(calls[::-1])[::-1][own])
    return np.stack(moved, axis=1)


def bound_steps(cut: Cut, position: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Return where each step's events begin and end in each member's list, `(n_steps, n_members)`."""
    first = cut.first
    begin = np.stack([where[first[:-1] - 1] + 1 for where in position], axis=1)
    stop = np.stack([where[first[1:] - 1] + 1 for where in position], axis=1)
    return begin, stop


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
    arrays = {name: np.zeros(shape, np.int64) for name in ("segment", "wait", "transfer", "own_transfer", "exit")}
    components = {name: np.zeros(shape, np.int64) for name in COMPONENTS}
    waits = np.zeros(shape, bool)
    entry = np.empty((n_steps, n_ranks), np.int64)
    group = np.empty((n_positions, n_ranks), np.int64)
    start_ns = end_ns = np.empty(0, np.int64)
    first = begin[:, 0, None] + np.arange(n_positions)[None, :]
    event = participations[0].event[first[0]]
    has_call = find_partners(participations[0], first[0], len(sets)) >= 0
    columns: dict[str, list[IntArray]] = {}
    block = min(BLOCK, max(1, int(n_ranks * BLOCK_SHARE)))
    for rank, (part, own) in enumerate(zip(participations, segments, strict=True)):
        index = begin[:, rank, None] + np.arange(n_positions)[None, :]
        before = index[:, 0] - 1
        segment = part.arrival_ns[index] - part.end_ns[index - 1]
        found = _split_stay(part, index, event, has_call) | _split_segments(segment, own, index)
        for name, values in (found | {"segment": segment, "waits": part.waits[index]}).items():
            columns.setdefault(name, []).append(values)
        if len(columns["waits"]) == block or rank == n_ranks - 1:
            _write_block(arrays | components | {"waits": waits}, columns, rank + 1)
            columns = {}
        entry[:, rank] = part.end_ns[before] - part.shared_end_ns[before]
        group[:, rank] = np.where(event == JOIN, -1 - rank, part.set_id[index[0]])
        if rank == 0:
            start_ns, end_ns = (part.shared_end_ns[before], part.shared_end_ns[index[:, -1]])
    layer, side = _find_layers(components)
    owner = participations[0].set_id[first[0]] % len(sets)
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
        tuple(JOINED if join else sets[set_id].family for join, set_id in zip(event == JOIN, owner, strict=True)),
        tuple(
            f"{JOINED} {sets[set_id].operation}" if join else sets[set_id].operation
            for join, set_id in zip(event == JOIN, owner, strict=True)
        ),
        tuple(sets[set_id].channel for set_id in owner),
        layer,
        side,
        relate_calls(participations, begin, components, arrays["segment"], start_ns, sets)
        if (event != FULL).any()
        else None,
        None if kind == "meeting" else look_for_border(participations, segments, begin),
        np.stack(
            [own.ahead_ns[begin[:, rank, None] + np.arange(n_positions)] for rank, own in enumerate(segments)], axis=2
        ),
    )


def _split_stay(
    part: Participation,
    index: IntArray,
    event: np.ndarray[Any, np.dtype[np.int8]],
    has_call: np.ndarray[Any, np.dtype[np.bool_]],
) -> dict[str, IntArray]:
    """Split what passes at each event into waiting for the last, transfer, and late exit.

    A call that does not wait neither gains from others' earlier arrival nor is credited with waiting; one that runs
    beside work makes the rank wait only from where the work needs it.
    """
    come, gone = part.arrival_ns[index], part.end_ns[index]
    last, shared, end = part.last_ns[index], part.shared_end_ns[index], part.call_end_ns[index]
    wait = np.where(part.waits[index], last - come, 0)
    own = np.where(part.waits[index], end - last, gone - come)
    leave = end - shared
    join = event == JOIN
    stay = np.maximum(gone - come, 0)
    wait = np.where(join, np.clip(last - come, 0, stay), wait)
    own = np.where(join, stay - wait, own)
    # By how much the rank's own call ended late is told where the call is, if the step holds it.
    leave = np.where(join, gone - np.maximum(come, np.where(has_call, end, shared)), leave)
    return {"wait": wait, "own_transfer": own, "exit": leave, "transfer": np.where(join, 0, shared - last)}


def _split_segments(segment: IntArray, own: Segments, index: IntArray) -> dict[str, IntArray]:
    """Split a rank's segments; what overlaps a meeting or another lane is taken off `rest` first, then off `other`."""
    attention, expert, probe = (own.attention_ns[index], own.expert_ns[index], own.probe_ns[index])
    other = own.work_ns[index] - attention - expert - probe
    contention = own.contention_ns[index]
    idle = segment - attention - expert - probe - other - contention
    host = np.minimum(own.host_ns[index], np.maximum(idle, 0))
    return {
        "attention": attention,
        "expert": expert,
        "probe": probe,
        "other": other,
        "contention": contention,
        "host": host,
        "rest": idle - host,
    }


def _write_block(arrays: dict[str, Any], columns: dict[str, list[IntArray]], stop: int) -> None:
    """Write what was found of the ranks before `stop`; several at a time, for they lie side by side in memory.

    Zeros are there already: an array that holds nothing else takes no memory until it is written.
    """
    for name, parts in columns.items():
        if any(part.any() for part in parts):
            arrays[name][:, :, stop - len(parts) : stop] = np.stack(parts, axis=2)


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
