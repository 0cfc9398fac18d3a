"""See meetings by their ends alone, where the clocks of the ranks, and so their arrivals, are in question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprankdiag.analysis.calls import Channel
from dprankdiag.analysis.clocks import AGREE, find_densest_half
from dprankdiag.analysis.collectives import MeetingSet
from dprankdiag.analysis.partners import match_complete

IntArray = np.ndarray[Any, np.dtype[np.int64]]

MOST_MEETINGS, FEWER_MEETINGS, MOST_CALLS = 3000, 1000, 200_000
"""Meetings looked at, taken evenly: more would not tell the readings better apart. Of many ranks fewer do, down to the
second number, for so many calls in all."""

FEWEST_MEETINGS = 16

TOGETHER = 0.4
"""Ends of a meeting are apart by at most this much of what its arrivals are, each rank's own constant left out."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Meetings of one group: `(n, n_members)` arrivals and ends, and their common end `(n,)`."""

    ranks: tuple[int, ...]
    arrival_ns: IntArray
    end_ns: IntArray
    common_ns: IntArray


def sample_meetings(channels: Sequence[Channel], found: Sequence[Sequence[MeetingSet]]) -> list[Ends]:
    """Take meetings evenly from all channels.

    Which ranks meet is not taken from arrivals, as these are in question: all that call on a channel meet if their
    calls end together far closer than they begin.
    """
    groups = [item for channel, sets in zip(channels, found, strict=True) for item in _list_meetings(channel, sets)]
    widest = max((len(group.ranks) for group in groups), default=1)
    most = min(MOST_MEETINGS, max(FEWER_MEETINGS, MOST_CALLS // widest))
    stride = max(1, -(-sum(group.count for group in groups) // most))
    seen = []
    for group in groups:
        if group.count >= FEWEST_MEETINGS * stride:
            arrival, end = group.take(stride)
            seen.append(Ends(group.ranks, arrival, end, find_common_end(end)))
    return seen


def find_common_end(end: IntArray) -> IntArray:
    """Return when a meeting ended for the median of its members, `(n,)`, each one's own constant left out."""
    return np.asarray(np.median(end - _usual_offsets(end), axis=1).astype(np.int64))


def _usual_offsets(times: IntArray) -> IntArray:
    """Return how far each member's times mostly lie from the group's, `(n_members,)`."""
    middle = np.sort(times, axis=1)[:, (times.shape[1] - 1) // 2]
    apart = (times - middle[:, None]).astype(np.float64)
    return np.array([round(find_densest_half(mine)[0]) for mine in apart.T], np.int64)


@dataclass(frozen=True, slots=True)
class _Meetings:
    """Meetings of a group, of which some are taken: every member's arrivals and ends, and which rows of them meet.

    Attributes:
        arrival_ns, end_ns: one array a member.
        rows: `(count, n_members)`.
    """

    ranks: tuple[int, ...]
    arrival_ns: Sequence[IntArray]
    end_ns: Sequence[IntArray]
    rows: IntArray

    @property
    def count(self) -> int:
        return len(self.rows)

    def take(self, stride: int) -> tuple[IntArray, IntArray]:
        """Take arrivals and ends of every so many meetings, `(n, n_members)` each."""
        rows = self.rows[::stride]
        arrival, end = (
            np.stack([mine[rows[:, k]] for k, mine in enumerate(times)], axis=1)
            for times in (self.arrival_ns, self.end_ns)
        )
        return arrival, end


def _list_meetings(channel: Channel, sets: Sequence[MeetingSet]) -> list[_Meetings]:
    """List the meetings of the groups that meet on a channel."""
    if any(item.halves is not None for item in sets):
        # Receipts end when each rank looks for them, and tell nothing of its clock.
        return []
    members = [calls for calls in channel.calls if len(calls)]
    if len(members) < 2:
        return []
    rows = match_complete(members)
    if 2 * len(rows) >= max(len(calls) for calls in members):
        ranks = tuple(calls.rank for calls in members)
        whole = _Meetings(ranks, [calls.arrival_ns for calls in members], [calls.end_ns for calls in members], rows)
        if _end_together(*whole.take(max(1, -(-whole.count // MOST_MEETINGS)))):
            return [whole]
    return [_list_matched(item) for item in sets if item.waits.all()]


def _list_matched(item: MeetingSet) -> _Meetings:
    rows = np.broadcast_to(np.arange(len(item.end_ns))[:, None], item.end_ns.shape)
    return _Meetings(item.ranks, list(item.arrival_ns.T), list(item.end_ns.T), rows)


def _end_together(arrival: IntArray, end: IntArray) -> bool:
    """Tell whether ends, each rank's own constant left out, lie much closer than arrivals."""
    return _measure_spread(end) <= TOGETHER * _measure_spread(arrival)


def _measure_spread(times: IntArray) -> float:
    rest = times - _usual_offsets(times)
    apart = np.abs(rest - np.median(rest, axis=1, keepdims=True))
    return float(np.median(np.quantile(apart, AGREE, axis=0)))


def move_ranks(item: Ends, moved_ns: IntArray) -> Ends:
    """Shift every rank's times, `moved_ns` being `(n_ranks,)`."""
    mine = moved_ns[list(item.ranks)]
    return replace(item, arrival_ns=item.arrival_ns + mine, end_ns=item.end_ns + mine)
