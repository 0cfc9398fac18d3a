"""Bring the calls of one meeting together, and tell meetings from calls that wait for nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprankdiag.analysis.calls import FEWEST_AT_PLACE, Calls, Channel
from dprankdiag.analysis.overlap import BESIDE_WORK, Halves, Overlap, stack_halves, stack_overlaps
from dprankdiag.analysis.partitions import choose_partition
from dprankdiag.analysis.partners import match_complete, match_sequences
from dprankdiag.analysis.statistics import fit_slope, median, quantile, robust_sd

IntArray = np.ndarray[Any, np.dtype[np.int64]]

LOCAL_SLOPE = 0.3
"""Calls that get longer by less than this share of the wait for the others do not wait for them."""

FOLLOWS = 0.8
"""Least slope of duration on wait for a kernel that waits for the last arrival (DESIGN 2.1, rule 5)."""

TOLD_APART = 2.0
"""Standard errors by which a slope must lie below that, to deny that a call waits."""

USUAL_SPREAD = 5.0
"""Standard deviations of the transfer within which a meeting is like most of them."""

MOST_FITTED, FEWEST_FITTED, MOST_CALLS = 4096, 512, 500_000
"""Meetings that a slope is fitted to; more change nothing. Of many members fewer do, for so many calls in all."""


MOST_MATCHED = 0.8
"""Least share of the calls in halves that must find partners on all ranks."""

MOST_EARLY = 0.01
"""Share of receipts that may end before the last has sent: clocks and rows err."""


@dataclass(frozen=True, slots=True)
class MeetingSet:
    """The matched meetings of one group on one channel.

    Attributes:
        ranks: members, ascending.
        arrival_ns, end_ns: `(n_meetings, n_members)`.
        waits: `(n_members,)` whether the member's call lasts until the last arrival; a call that does not is given no
            wait and blames nobody.
        calls: calls of the members on this channel, matched or not.
        overlap: how the calls lie beside the members' work, `(n_meetings, n_members)`; None where all runs on one
            stream.
        beside: members go on working while the calls run.
        halves: where calls sent and received in two kernels let work go on and stop it, `(n_meetings, n_members)`.
    """

    channel: str
    family: str
    operation: str
    ranks: tuple[int, ...]
    arrival_ns: IntArray
    end_ns: IntArray
    waits: np.ndarray[Any, np.dtype[np.bool_]]
    calls: int
    overlap: Overlap | None = None
    beside: bool = False
    halves: Halves | None = None

    @property
    def matched_calls(self) -> int:
        """Count the calls that found all their partners; both halves count."""
        return int(self.arrival_ns.size) * (1 if self.halves is None else 2)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A channel whose meetings could not be told apart, and why.

    Attributes:
        is_local: its calls do not wait for other ranks, so nothing is missed without them.
    """

    channel: str
    reason: str
    is_local: bool = False


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
        complete = match_complete(members)
        if not len(complete):
            continue
        arrival = np.stack([m.arrival_ns[complete[:, k]] for k, m in enumerate(members)], axis=1)
        end = np.stack([m.end_ns[complete[:, k]] for k, m in enumerate(members)], axis=1)
        overlap = _stack_overlap(members, complete)
        meeting_set = MeetingSet(
            channel.name,
            channel.family,
            channel.operation,
            tuple(member.rank for member in members),
            arrival,
            end,
            np.ones(len(members), bool),
            sum(len(member) for member in members),
            overlap,
            overlap is not None and float(overlap.busy_ns.sum()) > BESIDE_WORK * float((end - arrival).sum()),
        )
        sets.append(replace(meeting_set, waits=_find_waiting(arrival, end)))
    if not sets:
        return [], Refusal(channel.name, "no call overlaps a call of another rank")
    meeting = [item for item in sets if item.waits.mean() >= 0.5]
    if not meeting or _waits_for_none([(item.arrival_ns, item.end_ns) for item in meeting]):
        return [], Refusal(channel.name, "its calls do not wait for other ranks", is_local=True)
    return meeting, None


def match_halves(channel: Channel) -> MeetingSet | None:
    """Match calls sent and received in halves: nobody's receipt ends before the last has sent.

    Returns:
        None where that does not hold for all that call on the channel.
    """
    members = [calls for calls in channel.calls if len(calls)]
    if len(members) < 2 or any(calls.halves is None for calls in members):
        return None
    taken = _take_in_order(members)
    if taken is None:
        complete = match_sequences([calls.arrival_ns for calls in members])
        complete = complete[(complete >= 0).all(axis=1)]
        if len(complete) < MOST_MATCHED * max(len(calls) for calls in members):
            return None
        taken = [calls.take(complete[:, k]) for k, calls in enumerate(members)]
    if _ends_early(taken) > MOST_EARLY:
        return None
    arrival = np.stack([calls.arrival_ns for calls in taken], axis=1)
    end = np.stack([calls.end_ns for calls in taken], axis=1)
    return MeetingSet(
        channel.name,
        channel.family,
        channel.operation,
        tuple(calls.rank for calls in taken),
        arrival,
        end,
        np.zeros(len(taken), bool),
        2 * sum(len(calls) for calls in members),
        _stack_overlap(taken),
        halves=stack_halves([calls.halves for calls in taken if calls.halves is not None]),
    )


def measure_early(meeting: MeetingSet) -> float:
    """Return the share of calls that end before the last has come, as none does that waits for it."""
    return float(np.mean(meeting.end_ns < meeting.arrival_ns.max(axis=1, keepdims=True)))


def _take_in_order(members: Sequence[Calls]) -> list[Calls] | None:
    """Take the k-th calls of all for one meeting, if all have equally many and none ends too early for that."""
    if len({len(calls) for calls in members}) > 1 or _ends_early(members) > MOST_EARLY:
        return None
    return list(members)


def _ends_early(members: Sequence[Calls]) -> float:
    """Return the share of calls that end before the last has come, the k-th of all members taken together."""
    last = np.max([calls.arrival_ns for calls in members], axis=0)
    return float(np.mean([calls.end_ns < last for calls in members]))


def _stack_overlap(members: Sequence[Calls], rows: IntArray | None = None) -> Overlap | None:
    """Put the members' overlaps side by side.

    Args:
        rows: `(n, n_members)` the calls to take; all if not given.
    """
    parts = [member.overlap for member in members if member.overlap is not None]
    if len(parts) < len(members):
        return None
    return stack_overlaps(parts if rows is None else [part.take(rows[:, k]) for k, part in enumerate(parts)])


def _is_local(calls: Sequence[Calls]) -> bool:
    """Tell whether each rank's calls take their own time, whatever the others do (a send that does not wait)."""
    complete = match_complete(calls)
    arrival = np.stack([m.arrival_ns[complete[:, k]] for k, m in enumerate(calls)], axis=1)
    end = np.stack([m.end_ns[complete[:, k]] for k, m in enumerate(calls)], axis=1)
    return _waits_for_none([(arrival, end)])


def _waits_for_none(groups: Sequence[tuple[IntArray, IntArray]]) -> bool:
    """Tell whether calls last no longer the earlier they come: the slope of duration on wait, over all groups.

    Where it cannot be told, the calls are taken to wait. They wait for none only if that holds from meeting to meeting
    and among the members of each: a slow fabric makes meetings longer, whoever waits in them, and a slow link the call
    of the member that waits least.

    Args:
        groups: arrivals and ends, each `(n_meetings, n_members)`.
    """
    often = [_take_evenly(*pair) for pair in groups if len(pair[0]) >= FEWEST_AT_PLACE]
    plain = [(arrival.max(axis=1, keepdims=True) - arrival, end - arrival) for arrival, end in often]
    among = [tuple(values - values.mean(axis=1, keepdims=True) for values in pair) for pair in plain]
    return _has_no_slope(plain) and _has_no_slope(among)


def _count_fitted(n_members: int) -> int:
    return min(MOST_FITTED, max(FEWEST_FITTED, MOST_CALLS // n_members))


def _take_evenly(arrival: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Take as many meetings as tell enough; all of those of few members."""
    if arrival.size <= MOST_CALLS:
        return arrival, end
    rows = np.unique(np.linspace(0, len(arrival) - 1, _count_fitted(arrival.shape[1])).astype(np.int64))
    return arrival[rows], end[rows]


def _has_no_slope(pairs: Sequence[tuple[np.ndarray[Any, Any], ...]]) -> bool:
    """Tell whether durations surely do not follow waits, given as pairs of `(n_meetings, n_members)`."""
    power = product = rest = 0.0
    count = 0
    for pair in pairs:
        wait, duration = (_without_extremes(values.astype(np.float64)) for values in pair)
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


def _find_waiting(arrival: IntArray, end: IntArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Tell for each member whether its calls last until the last arrival, by the slope of duration on wait.

    Where the arrivals hardly differ there is no slope to see and no wait to credit: taken as waiting.
    """
    last = arrival.max(axis=1)
    waits = np.ones(arrival.shape[1], bool)
    transfer = (end.max(axis=1) - last).astype(np.float64)
    transfer_noise = float(robust_sd(transfer))
    # Where transfers are long for a while, how long a call lasts tells of them and not of the wait.
    usual = np.flatnonzero(np.abs(transfer - median(transfer)) <= USUAL_SPREAD * transfer_noise)
    some = usual[np.unique(np.linspace(0, len(usual) - 1, _count_fitted(arrival.shape[1])).astype(np.int64))]
    for member in range(arrival.shape[1]):
        wait = (last - arrival[:, member]).astype(np.float64)
        duration = (end[:, member] - arrival[:, member]).astype(np.float64)
        if quantile(wait, 0.875) - quantile(wait, 0.125) < max(4 * transfer_noise, 2_000.0):
            continue
        slope, error = fit_slope(wait[some], duration[some])
        waits[member] = slope >= FOLLOWS - TOLD_APART * error
    return waits
