"""See meetings by their ends alone, where the clocks of the ranks, and so their arrivals, are in question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprankdiag.analysis.calls import Channel
from dprankdiag.analysis.clocks import AGREE, find_densest_half
from dprankdiag.analysis.collectives import MeetingSet
from dprankdiag.analysis.partners import match_rows

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
    widest = max((len(ranks) for ranks, _, _ in groups), default=1)
    most = min(MOST_MEETINGS, max(FEWER_MEETINGS, MOST_CALLS // widest))
    stride = max(1, -(-sum(len(end) for _, _, end in groups) // most))
    seen = []
    for ranks, arrival, end in groups:
        if len(end) >= FEWEST_MEETINGS * stride:
            end = end[::stride]
            seen.append(Ends(ranks, arrival[::stride], end, find_common_end(end)))
    return seen


def find_common_end(end: IntArray) -> IntArray:
    """Return when a meeting ended for the median of its members, `(n,)`, each one's own constant left out."""
    return np.asarray(np.median(end - _usual_offsets(end), axis=1).astype(np.int64))


def _usual_offsets(times: IntArray) -> IntArray:
    """Return how far each member's times mostly lie from the group's, `(n_members,)`."""
    middle = np.sort(times, axis=1)[:, (times.shape[1] - 1) // 2]
    apart = (times - middle[:, None]).astype(np.float64)
    return np.array([round(find_densest_half(mine)[0]) for mine in apart.T], np.int64)


def _list_meetings(channel: Channel, sets: Sequence[MeetingSet]) -> list[tuple[tuple[int, ...], IntArray, IntArray]]:
    """List ranks, arrivals and ends of the groups that meet on a channel."""
    if any(item.halves is not None for item in sets):
        # Receipts end when each rank looks for them, and tell nothing of its clock.
        return []
    members = [calls for calls in channel.calls if len(calls)]
    if len(members) < 2:
        return []
    index = match_rows(members)
    index = index[(index >= 0).all(axis=1)]
    if 2 * len(index) >= max(len(calls) for calls in members):
        arrival = np.stack([calls.arrival_ns[index[:, k]] for k, calls in enumerate(members)], axis=1)
        end = np.stack([calls.end_ns[index[:, k]] for k, calls in enumerate(members)], axis=1)
        if _end_together(arrival, end):
            return [(tuple(calls.rank for calls in members), arrival, end)]
    return [(item.ranks, item.arrival_ns, item.end_ns) for item in sets if item.waits.all()]


def _end_together(arrival: IntArray, end: IntArray) -> bool:
    """Tell whether ends, each rank's own constant left out, lie much closer than arrivals."""
    stride = max(1, -(-len(end) // MOST_MEETINGS))
    arrival, end = arrival[::stride], end[::stride]
    return _measure_spread(end) <= TOGETHER * _measure_spread(arrival)


def _measure_spread(times: IntArray) -> float:
    rest = times - _usual_offsets(times)
    apart = np.abs(rest - np.median(rest, axis=1, keepdims=True))
    return float(np.median(np.quantile(apart, AGREE, axis=0)))


def move_ranks(item: Ends, moved_ns: IntArray) -> Ends:
    """Shift every rank's times, `moved_ns` being `(n_ranks,)`."""
    mine = moved_ns[list(item.ranks)]
    return replace(item, arrival_ns=item.arrival_ns + mine, end_ns=item.end_ns + mine)
