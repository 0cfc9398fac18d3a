"""Take the communication calls of every rank out of its lane, and join them to channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprankdiag.analysis.lanes import Lane, Naming
from dprankdiag.analysis.overlap import Halves, Overlap, join_overlaps, measure_overlap
from dprankdiag.model.schema import Columns, count_rows

IntArray = np.ndarray[Any, np.dtype[np.int64]]
Int32Array = np.ndarray[Any, np.dtype[np.int32]]

PLACE_FACTOR = 1_000_003

GROUP_SHIFT = 44
LARGEST = (1 << GROUP_SHIFT) - 1
"""Group and size, or group and number, share one integer."""

FEWEST_AT_PLACE = 8


@dataclass(frozen=True, slots=True)
class Calls:
    """One rank's calls on one channel, sorted by start.

    Attributes:
        arrival_ns: when each could really begin (DESIGN 2.1, rule 3).
        place: what it is by its surroundings: launch shape and the row before it on its stream, as one number. One
            kernel name may serve several groups, or be sent and received in halves; its place tells them apart.
        overlap: how each lies beside the rank's work; None where all runs on one stream.
        halves: where each lets work go on and stops it again, if it is sent and received in two kernels.
        sequence: its number within its process group and the group, as one number that all members share; None where
            the recording does not number every call.
        before: the channel, or the family, of the row before each on its stream: tells less than its place, but the
            same on ranks whose batches differ in size; None where that is not known.
    """

    rank: int
    start_ns: IntArray
    arrival_ns: IntArray
    end_ns: IntArray
    place: IntArray
    overlap: Overlap | None = None
    halves: Halves | None = None
    sequence: IntArray | None = None
    before: IntArray | None = None

    def __len__(self) -> int:
        """Count the calls."""
        return len(self.start_ns)

    def take(self, rows: np.ndarray[Any, Any] | slice) -> Calls:
        """Select calls."""
        return replace(
            self,
            start_ns=self.start_ns[rows],
            arrival_ns=self.arrival_ns[rows],
            end_ns=self.end_ns[rows],
            place=self.place[rows],
            overlap=None if self.overlap is None else self.overlap.take(rows),
            halves=None if self.halves is None else self.halves.take(rows),
            sequence=None if self.sequence is None else self.sequence[rows],
            before=None if self.before is None else self.before[rows],
        )


@dataclass(frozen=True, slots=True)
class Channel:
    """A communication kernel name on one of the streams that use it, with each rank's calls."""

    name: str
    family: str
    operation: str
    calls: tuple[Calls, ...]


def extract_calls(lane: Lane, rank: int, messages: Columns | None = None) -> dict[tuple[int, int], Calls]:
    """Take a rank's communication calls out of its lane, by (channel id, stream).

    Args:
        messages: rows of MESSAGES of the rank, sorted by start; what they say of a call's group and size tells its
            place better than its surroundings.
    """
    rows = np.flatnonzero(lane.channel >= 0)
    if not len(rows):
        return {}
    ready = lane.same_stream_ready()[rows]
    start, end = lane.start_ns[rows], lane.end_ns[rows]
    arrival = np.minimum(np.maximum(start, ready), end)
    before = find_rows_before(lane, rows)
    place = lane.key[rows] * PLACE_FACTOR + np.where(before >= 0, lane.key[before], -1)
    near = np.where(lane.channel[before] >= 0, lane.channel[before], -2 - lane.family[before].astype(np.int64))
    overlap = measure_overlap(lane, rows, arrival, ready)
    every = Calls(rank, start, arrival, end, place, overlap, before=np.where(before >= 0, near, -1))
    return part_calls(every, lane.channel[rows], lane.stream[rows], messages)


def part_calls(
    every: Calls, channel: Int32Array, stream: Int32Array, messages: Columns | None
) -> dict[tuple[int, int], Calls]:
    """Part a rank's calls by (channel id, stream), each part sorted by start.

    Args:
        channel, stream: `(n,)` of each call.
        messages: see `extract_calls`.
    """
    if messages is not None and count_rows(messages):
        place, sequence = _read_messages(messages, every.start_ns, stream.astype(np.int64), every.place)
        every = replace(every, place=place, sequence=sequence)
    found = {}
    for channel_id in np.unique(channel):
        here = channel == channel_id
        for one in np.unique(stream[here]):
            taken = every.take(np.flatnonzero(here & (stream == one)))
            if (taken.start_ns[1:] < taken.start_ns[:-1]).any():
                taken = taken.take(np.argsort(taken.start_ns, kind="stable"))
            if taken.sequence is not None and (taken.sequence < 0).any():
                taken = replace(taken, sequence=None)
            found[int(channel_id), int(one)] = taken
    return found


def _read_messages(
    messages: Columns, start_ns: IntArray, stream: IntArray, place: IntArray
) -> tuple[IntArray, IntArray]:
    """Find what the recording says of each call: its place, and its number with its group; -1 where not said."""
    row = np.minimum(np.searchsorted(messages["start_ns"], start_ns), count_rows(messages) - 1)
    said = (messages["start_ns"][row] == start_ns) & (messages["stream"][row] == stream)
    group, size = messages["group_id"][row].astype(np.int64), messages["size_bytes"][row]
    told = np.where(said & (size > 0), -2 - ((group + 1) << GROUP_SHIFT) - np.minimum(size, LARGEST), place)
    number = messages["sequence"][row]
    known = said & (group >= 0) & (number >= 0)
    return told, np.where(known, (group << GROUP_SHIFT) + np.minimum(number, LARGEST), -1)


def find_rows_before(lane: Lane, rows: IntArray) -> IntArray:
    """Find the row before each call on its stream, -1 where it is the first."""
    before = np.full(len(lane.key), -1, np.int64)
    for stream in np.unique(lane.stream[rows]):
        own = np.flatnonzero(lane.stream == stream)
        before[own[1:]] = own[:-1]
    return before[rows]


def form_channels(by_rank: Sequence[dict[tuple[int, int], Calls]], naming: Naming) -> list[Channel]:
    """Join the ranks' calls to channels.

    Stream numbers mean nothing between processes: the k-th busiest stream of a name on one rank is taken for the k-th
    busiest on the others if all use equally many; else the streams of that name are merged.
    """
    channels = []
    for channel_id, name in enumerate(naming.channels):
        per_rank = []
        for calls in by_rank:
            mine = [value for (channel, _), value in calls.items() if channel == channel_id]
            per_rank.append(sorted(mine, key=lambda value: (-len(value), int(value.start_ns[0]))))
        counts = {len(mine) for mine in per_rank if mine}
        lanes = counts.pop() if len(counts) == 1 else 1
        for k in range(lanes):
            members = [mine[k] if lanes > 1 else merge_calls(mine) for mine in per_rank if mine]
            if members:
                family, operation = naming.channel_family[channel_id], naming.channel_operation[channel_id]
                channels.append(Channel(name, family, operation, tuple(members)))
    return channels


def merge_calls(parts: Sequence[Calls]) -> Calls:
    """Put the calls of several parts in order of start."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([part.start_ns for part in parts]), kind="stable")
    columns = [
        np.concatenate([getattr(part, name) for part in parts])[order]
        for name in ("start_ns", "arrival_ns", "end_ns", "place")
    ]
    overlaps = [part.overlap for part in parts if part.overlap is not None]
    overlap = join_overlaps(overlaps).take(order) if len(overlaps) == len(parts) else None
    start, arrival, end, place = columns
    numbers = [part.sequence for part in parts if part.sequence is not None]
    sequence = np.concatenate(numbers)[order] if len(numbers) == len(parts) else None
    near = [part.before for part in parts if part.before is not None]
    before = np.concatenate(near)[order] if len(near) == len(parts) else None
    return Calls(parts[0].rank, start, arrival, end, place, overlap, None, sequence, before)


def split_by_place(channel: Channel) -> list[Channel]:
    """Split a channel whose calls are made in several places of a step, where all ranks make them alike.

    Calls in places that are rare (steps of unusual size) stay together. Where ranks differ in the places (other batch
    sizes, lost rows), the channel stays whole.
    """
    if len(channel.calls) < 2:
        return [channel]
    places, counts = np.unique(np.concatenate([item.place for item in channel.calls]), return_counts=True)
    common = places[counts >= FEWEST_AT_PLACE * len(channel.calls)]
    if len(common) < 2 or counts[np.isin(places, common)].sum() < 0.95 * counts.sum():
        return [channel]
    parts = []
    for place in common:
        members = tuple(item.take(item.place == place) for item in channel.calls)
        if not _are_as_many(members):
            return [channel]
        parts.append(replace(channel, calls=members))
    rare = tuple(item.take(~np.isin(item.place, common)) for item in channel.calls)
    if min(len(item) for item in rare) >= FEWEST_AT_PLACE and _are_as_many(rare):
        parts.append(replace(channel, calls=rare))
    return parts


def split_by_row_before(channel: Channel) -> list[Channel]:
    """Split a channel by what lies before its calls, whatever the sizes of their ranks' batches.

    A receipt follows its own send, or the work of another half of the batch; a send the work of its own.
    """
    if any(item.before is None for item in channel.calls):
        return [channel]
    plain = [replace(item, place=item.before) for item in channel.calls if item.before is not None]
    return split_by_place(replace(channel, calls=tuple(plain)))


def _are_as_many(members: Sequence[Calls]) -> bool:
    """Tell whether all ranks make about as many calls, rows lost at random left aside."""
    sizes = [len(item) for item in members]
    return max(sizes) - min(sizes) <= 0.02 * max(sizes) + 2
