"""Take the collectives of every rank out of its lane, and bring those of one meeting together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprankdiag.analysis.clocks import nearest
from dprankdiag.analysis.lanes import Lane, Naming
from dprankdiag.analysis.statistics import robust_sd

IntArray = np.ndarray[Any, np.dtype[np.int64]]

NOISE_FACTOR = 1.25
"""A larger group is taken only if its ends follow the arrivals about as well as those of the best partition."""

SCATTER_FACTOR = 3.0
"""The same for constant differences between ranks, which the GPUs' own clocks cause as well."""

SHARE_MARGIN = 0.003
"""Calls without a partner, more than a better partition leaves, that a partition may have by chance."""

LOST_FACTOR = 2.0
TICK_NS = 50
LOCAL_SLOPE = 0.3
"""Calls that get longer by less than this share of the wait for the others do not wait for them."""


SAMPLE = 1500
PLACE_FACTOR = 1_000_003
FEWEST_AT_PLACE = 8
CLOCK_SLACK_NS = 50_000
"""GPUs of one host show end offsets of up to 30 µs on the profiler's clock."""

RUN = 9
"""Calls over which the order must agree before it overrules the nearest end."""
FOLLOWS = 0.8
"""Least slope of duration on wait for a kernel that waits for the last arrival (DESIGN 2.1, rule 5)."""


@dataclass(frozen=True, slots=True)
class Calls:
    """One rank's calls on one channel, sorted by start.

    Attributes:
        arrival_ns: when each could really begin (DESIGN 2.1, rule 3).
        place: what it is by its surroundings: launch shape and the row before it on its stream, as one number. One
            kernel name may serve several groups, or be sent and received in halves; its place tells them apart.
    """

    rank: int
    start_ns: IntArray
    arrival_ns: IntArray
    end_ns: IntArray
    place: IntArray

    def __len__(self) -> int:
        """Count the calls."""
        return len(self.start_ns)

    def take(self, rows: np.ndarray[Any, Any] | slice) -> Calls:
        """Select calls."""
        return Calls(self.rank, self.start_ns[rows], self.arrival_ns[rows], self.end_ns[rows], self.place[rows])


@dataclass(frozen=True, slots=True)
class Channel:
    """A communication kernel name on one of the streams that use it, with each rank's calls."""

    name: str
    family: str
    operation: str
    calls: tuple[Calls, ...]


@dataclass(frozen=True, slots=True)
class MeetingSet:
    """The matched meetings of one group on one channel.

    Attributes:
        ranks: members, ascending.
        arrival_ns, end_ns: `(n_meetings, n_members)`.
        waits: `(n_members,)` whether the member's call lasts until the last arrival; a call that does not is given no
            wait and blames nobody.
        calls: calls of the members on this channel, matched or not.
    """

    channel: str
    family: str
    operation: str
    ranks: tuple[int, ...]
    arrival_ns: IntArray
    end_ns: IntArray
    waits: np.ndarray[Any, np.dtype[np.bool_]]
    calls: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A channel whose meetings could not be told apart, and why.

    Attributes:
        is_local: its calls do not wait for other ranks, so nothing is missed without them.
    """

    channel: str
    reason: str
    is_local: bool = False


def extract_calls(lane: Lane, rank: int) -> dict[tuple[int, int], Calls]:
    """Take a rank's communication calls out of its lane, by (channel id, stream)."""
    rows = np.flatnonzero(lane.channel >= 0)
    if not len(rows):
        return {}
    ready = lane.same_stream_ready()[rows]
    start, end = lane.start_ns[rows], lane.end_ns[rows]
    arrival = np.minimum(np.maximum(start, ready), end)
    place = _places(lane, rows)
    found = {}
    for channel in np.unique(lane.channel[rows]):
        here = lane.channel[rows] == channel
        for stream in np.unique(lane.stream[rows][here]):
            mine = here & (lane.stream[rows] == stream)
            found[int(channel), int(stream)] = Calls(rank, start[mine], arrival[mine], end[mine], place[mine])
    return found


def _places(lane: Lane, rows: IntArray) -> IntArray:
    """Number each call by its own key and the key of the row before it on its stream."""
    before = np.full(len(lane.key), -1, np.int64)
    for stream in np.unique(lane.stream[rows]):
        own = np.flatnonzero(lane.stream == stream)
        before[own[1:]] = lane.key[own[:-1]]
    return np.asarray(lane.key[rows] * PLACE_FACTOR + before[rows])


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
            members = [mine[k] if lanes > 1 else _merge(mine) for mine in per_rank if mine]
            if members:
                family, operation = naming.channel_family[channel_id], naming.channel_operation[channel_id]
                channels.append(Channel(name, family, operation, tuple(members)))
    return channels


def _merge(parts: list[Calls]) -> Calls:
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([part.start_ns for part in parts]), kind="stable")
    columns = [
        np.concatenate([getattr(part, name) for part in parts])[order]
        for name in ("start_ns", "arrival_ns", "end_ns", "place")
    ]
    return Calls(parts[0].rank, *columns)


def split_by_place(channel: Channel) -> list[Channel]:
    """Split a channel whose calls are made in several places of a step, where all ranks make them alike.

    Where ranks differ in the places (other batch sizes, lost rows), the channel stays whole.
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
        sizes = [len(item) for item in members]
        if max(sizes) - min(sizes) > 0.02 * max(sizes) + 2:
            return [channel]
        parts.append(replace(channel, calls=members))
    return parts


def match_channel(channel: Channel) -> tuple[list[MeetingSet], Refusal | None]:
    """Find the groups that meet on a channel, and their meetings.

    Clocks must be aligned already: calls of one meeting overlap in time, those of different meetings do not.
    """
    calls = [member for member in channel.calls if len(member)]
    if len(calls) < 2:
        return [], Refusal(channel.name, "only one rank calls it")
    partition = choose_partition(calls)
    if partition is None:
        if _is_local(calls):
            return [], Refusal(channel.name, "its calls do not wait for other ranks", is_local=True)
        return [], Refusal(channel.name, "no grouping of the ranks explains the ends of its calls better than others")
    sets = []
    for group in partition:
        members = [calls[position] for position in group]
        index = _match_rows(members)
        complete = index[(index >= 0).all(axis=1)]
        if not len(complete):
            continue
        arrival = np.stack([m.arrival_ns[complete[:, k]] for k, m in enumerate(members)], axis=1)
        end = np.stack([m.end_ns[complete[:, k]] for k, m in enumerate(members)], axis=1)
        meeting_set = MeetingSet(
            channel.name,
            channel.family,
            channel.operation,
            tuple(member.rank for member in members),
            arrival,
            end,
            np.ones(len(members), bool),
            sum(len(member) for member in members),
        )
        sets.append(replace(meeting_set, waits=_find_waiting(arrival, end)))
    if not sets:
        return [], Refusal(channel.name, "no call overlaps a call of another rank")
    meeting = [item for item in sets if item.waits.mean() >= 0.5]
    if not meeting or _waits_for_none([(item.arrival_ns, item.end_ns) for item in meeting]):
        return [], Refusal(channel.name, "its calls do not wait for other ranks", is_local=True)
    return meeting, None


def _is_local(calls: Sequence[Calls]) -> bool:
    """Tell whether each rank's calls take their own time, whatever the others do (a send that does not wait)."""
    index = _match_rows(calls)
    complete = index[(index >= 0).all(axis=1)]
    arrival = np.stack([m.arrival_ns[complete[:, k]] for k, m in enumerate(calls)], axis=1)
    end = np.stack([m.end_ns[complete[:, k]] for k, m in enumerate(calls)], axis=1)
    return _waits_for_none([(arrival, end)])


def _waits_for_none(groups: Sequence[tuple[IntArray, IntArray]]) -> bool:
    """Tell whether calls last no longer the earlier they come: the slope of duration on wait, over all groups.

    Where it cannot be told, the calls are taken to wait.

    Args:
        groups: arrivals and ends, each `(n_meetings, n_members)`.
    """
    power = product = rest = 0.0
    count = 0
    for arrival, end in groups:
        if len(arrival) < FEWEST_AT_PLACE:
            continue
        wait = _without_extremes((arrival.max(axis=1, keepdims=True) - arrival).astype(np.float64))
        duration = _without_extremes((end - arrival).astype(np.float64))
        power += float((wait**2).sum())
        product += float((wait * duration).sum())
        rest += float((duration**2).sum())
        count += wait.size
    if power <= 0:
        return False
    slope = product / power
    error = np.sqrt(max(rest - product**2 / power, 0.0) / power / count)
    return bool(slope + 3 * error < LOCAL_SLOPE)


def _without_extremes(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Centre each column and clip its outermost hundredth."""
    low, high = np.quantile(values, [0.01, 0.99], axis=0)
    clipped = np.clip(values, low, high)
    return np.asarray(clipped - clipped.mean(axis=0))


def choose_partition(calls: Sequence[Calls]) -> list[tuple[int, ...]] | None:
    """Choose the partition of the callers into groups that meet: the largest whose ends follow its arrivals.

    Returns:
        Positions in `calls` by group, or None where two partitions of one size explain the ends equally well and the
        whole does not.
    """
    n = len(calls)
    if n == 2:
        return [(0, 1)]
    sampled = [_middle(member) for member in calls]
    fits = [
        _partition_fit(sampled, groups) for size in range(n, 1, -1) if n % size == 0 for groups in _partitions(n, size)
    ]
    best_share = max(fit.share for fit in fits)
    if best_share <= 0:
        return None
    # A lost row takes its partners' matches along, the more the larger the group.
    margin = SHARE_MARGIN + LOST_FACTOR * (1.0 - best_share)
    usable = [fit for fit in fits if fit.share >= best_share - margin]
    usable = [fit for fit in usable if fit.early <= min(other.early for other in usable) + margin]
    for name, factor in (("noise_ns", NOISE_FACTOR), ("scatter_ns", SCATTER_FACTOR)):
        tightest = min(getattr(fit, name) for fit in usable)
        usable = [fit for fit in usable if getattr(fit, name) <= factor * tightest + TICK_NS]
    largest = max(len(fit.groups[0]) for fit in usable)
    chosen = [fit for fit in usable if len(fit.groups[0]) == largest]
    return chosen[0].groups if len(chosen) == 1 else None


@dataclass(frozen=True, slots=True)
class _Fit:
    """How well a partition explains the ends of the calls.

    Attributes:
        share: share of calls that find their partner in the group's busiest member, whatever the group's size.
        early: share of calls that end before the group's last arrival, which no call that waits for it can.
        noise_ns: scatter of the time from last arrival to end, each rank about its own median.
        scatter_ns: the same about the common median: ranks of two groups end apart, by as much as they come apart.
    """

    groups: list[tuple[int, ...]]
    share: float
    early: float
    noise_ns: float
    scatter_ns: float


def _middle(calls: Calls) -> Calls:
    if len(calls) <= 2 * SAMPLE:
        return calls
    low = (len(calls) - SAMPLE) // 2
    return calls.take(slice(low, low + SAMPLE))


def _partitions(n: int, size: int) -> list[list[tuple[int, ...]]]:
    contiguous = [tuple(range(low, low + size)) for low in range(0, n, size)]
    if size in (1, n):
        return [contiguous]
    stride = n // size
    strided = [tuple(range(low, n, stride)) for low in range(stride)]
    return [contiguous, strided]


def _partition_fit(calls: Sequence[Calls], groups: list[tuple[int, ...]]) -> _Fit:
    """Measure how the ends of the calls follow the last arrival of each group.

    A group too small misses the last arrival in some meetings, one too large waits for arrivals that do not concern
    it: both scatter more than the true one. The scatter is a mean, so that faults in few meetings count.
    """
    matched, total, early = 0, 0, 0
    noise, scatter, weight = 0.0, 0.0, 0
    for group in groups:
        members = [calls[position] for position in group]
        index = _match_rows(members)
        complete = index[(index >= 0).all(axis=1)]
        matched += int((index >= 0).sum()) - len(index)
        total += sum(len(member) for member in members) - len(index)
        if len(complete) < 2:
            continue
        end = np.stack([m.end_ns[complete[:, k]] for k, m in enumerate(members)], axis=1)
        arrival = np.stack([m.arrival_ns[complete[:, k]] for k, m in enumerate(members)], axis=1)
        transfer = (end - arrival.max(axis=1, keepdims=True)).astype(np.float64)
        # The GPUs' own clocks may differ a little: the reading under which ends follow better counts.
        offset = clock_offsets(end)
        early += min(_count_early(arrival, end), _count_early(arrival - offset, end - offset))
        shifted = transfer_scatter(arrival, end, offset)
        noise += min(transfer_scatter(arrival, end, None), shifted) * len(complete)
        scatter += _mean_distance(transfer, np.median(transfer)) * len(complete)
        weight += len(complete)
    if not weight:
        return _Fit(groups, 0.0, 1.0, np.inf, np.inf)
    return _Fit(groups, matched / total, early / total, noise / weight, scatter / weight)


def _count_early(arrival_ns: IntArray, end_ns: IntArray) -> int:
    return int((end_ns < arrival_ns.max(axis=1, keepdims=True) - TICK_NS).sum())


def clock_offsets(end_ns: IntArray) -> IntArray:
    """Return how far each member's ends lie from the group's, in the median over the meetings, `(n_members,)`."""
    middle = np.sort(end_ns, axis=1)[:, (end_ns.shape[1] - 1) // 2]
    return np.asarray(np.median(end_ns - middle[:, None], axis=0).astype(np.int64))


def transfer_scatter(arrival_ns: IntArray, end_ns: IntArray, offset_ns: IntArray | None) -> float:
    """Measure how much the time from the last arrival to each end scatters about each member's median.

    Args:
        offset_ns: `(n_members,)` taken off the members' clocks first.
    """
    if offset_ns is not None:
        arrival_ns, end_ns = arrival_ns - offset_ns, end_ns - offset_ns
    transfer = (end_ns - arrival_ns.max(axis=1, keepdims=True)).astype(np.float64)
    return _mean_distance(transfer, np.median(transfer, axis=0))


def _mean_distance(values: np.ndarray[Any, Any], centre: Any) -> float:
    distance = np.abs(values - centre)
    return float(np.minimum(distance, np.quantile(distance, 0.995)).mean())


def _match_rows(members: Sequence[Calls]) -> IntArray:
    """Match the calls of a group: `(n, n_members)` indices into each member's calls, -1 where one has no partner.

    Two calls are partners if they overlap in time and each one's end is the nearest to the other's.
    """
    lead = max(range(len(members)), key=lambda position: (len(members[position]), -position))
    reference = members[lead]
    index = np.full((len(reference), len(members)), -1, np.int64)
    index[:, lead] = np.arange(len(reference))
    reference_ends = _ascending(reference.end_ns)
    for position, member in enumerate(members):
        if position == lead:
            continue
        partner, _ = nearest(_ascending(member.end_ns), reference.end_ns)
        back, _ = nearest(reference_ends, member.end_ns)
        mutual = back[partner] == np.arange(len(reference))
        partner = np.where(mutual & _overlap(reference, member, partner), partner, -1)
        index[:, position] = _mend_runs(reference, member, partner)
    return index


def _overlap(reference: Calls, member: Calls, partner: IntArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    slack = _clock_slack(reference)
    return np.asarray(
        (member.start_ns[partner] <= reference.end_ns + slack) & (reference.start_ns <= member.end_ns[partner] + slack)
    )


def _clock_slack(calls: Calls) -> int:
    """Return by how much the stamps of two GPUs may miss each other without hiding that their calls overlapped."""
    if len(calls) < 2:
        return CLOCK_SLACK_NS
    return min(CLOCK_SLACK_NS, int(np.median(np.diff(calls.end_ns))) // 4)


def _mend_runs(reference: Calls, member: Calls, partner: IntArray) -> IntArray:
    """Let the order of the calls decide where the nearest end does not.

    Between two losses the k-th call of one meets the k-th of the other, moved by a constant. A call whose end is far
    from its partners' (a late exit, a long transfer) is matched by that constant, if the two overlap in time.

    Args:
        partner: `(n,)` index into the member's calls, -1 where none was found.
    """
    found = np.flatnonzero(partner >= 0)
    if len(found) < RUN:
        return partner
    shift = partner[found] - found
    if len(found) == len(partner) and (shift == shift[0]).all():
        return partner
    padded = np.concatenate([np.repeat(shift[:1], RUN // 2), shift, np.repeat(shift[-1:], RUN // 2)])
    local = np.median(np.lib.stride_tricks.sliding_window_view(padded, RUN), axis=1).astype(np.int64)
    kept = found[shift == local]
    if not len(kept):
        return partner
    order = np.arange(len(partner))
    after = np.minimum(np.searchsorted(kept, order), len(kept) - 1)
    before = np.maximum(np.searchsorted(kept, order, side="right") - 1, 0)
    left, right = partner[kept[before]] - kept[before], partner[kept[after]] - kept[after]
    guess = order + left
    good = (left == right) & (guess >= 0) & (guess < len(member))
    good[good] = _overlap(reference.take(order[good]), member, guess[good])
    return np.where(good, guess, np.where(np.isin(order, kept), partner, -1))


def _ascending(end_ns: IntArray) -> IntArray:
    return np.maximum.accumulate(end_ns)


def _find_waiting(arrival: IntArray, end: IntArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Tell for each member whether its calls last until the last arrival, by the slope of duration on wait.

    Where the arrivals hardly differ there is no slope to see and no wait to credit: taken as waiting.
    """
    last = arrival.max(axis=1)
    waits = np.ones(arrival.shape[1], bool)
    transfer_noise = float(robust_sd((end.max(axis=1) - last).astype(np.float64)))
    for member in range(arrival.shape[1]):
        wait = (last - arrival[:, member]).astype(np.float64)
        duration = (end[:, member] - arrival[:, member]).astype(np.float64)
        cut = np.quantile(wait, 0.75)
        far, near = wait >= cut, wait <= np.quantile(wait, 0.25)
        reach = np.median(wait[far]) - np.median(wait[near])
        if reach < max(4 * transfer_noise, 2_000.0):
            continue
        slope = (np.median(duration[far]) - np.median(duration[near])) / reach
        waits[member] = slope >= FOLLOWS
    return waits
