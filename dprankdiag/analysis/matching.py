"""Match the calls of all channels of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dprankdiag.analysis.calls import Calls, Channel, form_channels, split_by_place, split_by_row_before
from dprankdiag.analysis.collectives import (
    MOST_EARLY,
    MeetingSet,
    Refusal,
    match_channel,
    match_halves,
    measure_early,
)
from dprankdiag.analysis.halves import EXCHANGE, meet_as_one, pair_halves
from dprankdiag.analysis.lanes import Naming

WELL_MATCHED = 0.8
"""Calls of which so many find their partners meet by themselves."""

CallTable = dict[tuple[int, int], Calls]
"""A rank's calls by (channel id, stream)."""


@dataclass(frozen=True, slots=True)
class Matching:
    """The meetings of all channels.

    Attributes:
        channels: every name on every stream and place.
        found: the meeting sets of each channel.
        refusals: channels whose meetings could not be told apart.
        calls: calls on channels that two or more ranks use and that are not local to a rank; both halves count.
        local_calls: calls that seem to wait for no other rank.
    """

    channels: tuple[Channel, ...]
    found: tuple[tuple[MeetingSet, ...], ...]
    refusals: tuple[Refusal, ...]
    calls: int
    local_calls: int

    @property
    def sets(self) -> list[MeetingSet]:
        """List the meeting sets of all channels."""
        return [item for sets in self.found for item in sets]

    @property
    def matched_calls(self) -> int:
        """Count the calls that found all their partners."""
        return sum(item.matched_calls for item in self.sets)


def match_all(calls: Sequence[CallTable], naming: Naming) -> Matching:
    """Match the calls of every channel; where calls by themselves do not meet, look for calls in halves."""
    channels: list[Channel] = []
    found: list[tuple[MeetingSet, ...]] = []
    refusals: list[Refusal] = []
    total = local = 0
    for whole in form_channels(calls, naming):
        parts, results = _match_parts(whole)
        paired = _match_halves(parts, results)
        if paired is not None:
            channel, meeting = paired
            channels.append(channel)
            found.append((meeting,))
            total += meeting.calls
            continue
        for part, (sets, refusal) in zip(parts, results, strict=True):
            channels.append(part)
            found.append(tuple(sets))
            refusals += [refusal] if refusal else []
            size = sum(len(member) for member in part.calls) if len(part.calls) > 1 else 0
            if refusal and refusal.is_local:
                local += size
            else:
                total += size
    return Matching(tuple(channels), tuple(found), tuple(refusals), total, local)


Result = tuple[list[MeetingSet], Refusal | None]
"""What `match_channel` finds."""


def _match_parts(whole: Channel) -> tuple[list[Channel], list[Result]]:
    """Match the calls of a channel place by place; those that exchange tokens may have a half that waits for nobody."""
    parts = split_by_place(whole)
    results = [match_channel(part) for part in parts]
    if len(parts) == 1 and whole.family in EXCHANGE:
        apart = split_by_row_before(whole)
        found = [match_channel(part) for part in apart] if len(apart) > 1 else []
        if any(refusal is not None and refusal.is_local for _, refusal in found):
            return apart, found
    return parts, results


def _match_halves(parts: Sequence[Channel], results: Sequence[Result]) -> tuple[Channel, MeetingSet] | None:
    """Read a channel as calls in halves, if some of it waits for nobody and so few calls meet by themselves.

    Of calls in halves one half would meet. Where receipts seem to meet in groups, or end before the last has begun,
    the data of the last came before it looked for any itself: then the sends tell who meets, and when.
    """
    local = [refusal is not None and refusal.is_local for _, refusal in results]
    calls = sum(len(member) for part in parts for member in part.calls)
    met = sum(item.arrival_ns.size for sets, _ in results for item in sets)
    if not any(local):
        return None
    well_met = met >= WELL_MATCHED * calls / 2
    meetings = [item for sets, _ in results for item in sets]
    whole = all(len(item.ranks) == len(parts[0].calls) for item in meetings)
    if well_met and whole and max(map(measure_early, meetings)) <= MOST_EARLY:
        return None
    channel = pair_halves(parts, local)
    if channel is None or (well_met and not meet_as_one(channel.calls)):
        return None
    meeting = match_halves(channel)
    return (channel, meeting) if meeting is not None else None
