"""Match the calls of all channels of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dprankdiag.analysis.calls import Calls, Channel, form_channels, split_by_place
from dprankdiag.analysis.collectives import MeetingSet, Refusal, match_channel
from dprankdiag.analysis.lanes import Naming

CallTable = dict[tuple[int, int], Calls]
"""A rank's calls by (channel id, stream)."""


@dataclass(frozen=True, slots=True)
class Matching:
    """The meetings of all channels.

    Attributes:
        channels: every name on every stream and place.
        found: the meeting sets of each channel.
        refusals: channels whose meetings could not be told apart.
        calls: calls on channels that two or more ranks use and that are not local to a rank.
    """

    channels: tuple[Channel, ...]
    found: tuple[tuple[MeetingSet, ...], ...]
    refusals: tuple[Refusal, ...]
    calls: int

    @property
    def sets(self) -> list[MeetingSet]:
        """List the meeting sets of all channels."""
        return [item for sets in self.found for item in sets]

    @property
    def matched_calls(self) -> int:
        """Count the calls that found all their partners."""
        return sum(item.arrival_ns.size for item in self.sets)


def match_all(calls: Sequence[CallTable], naming: Naming) -> Matching:
    """Match the calls of every channel."""
    channels = [part for whole in form_channels(calls, naming) for part in split_by_place(whole)]
    found: list[tuple[MeetingSet, ...]] = []
    refusals: list[Refusal] = []
    total = 0
    for channel in channels:
        sets, refusal = match_channel(channel)
        found.append(tuple(sets))
        refusals += [refusal] if refusal else []
        if len(channel.calls) > 1 and not (refusal and refusal.is_local):
            total += sum(len(member) for member in channel.calls)
    return Matching(tuple(channels), tuple(found), tuple(refusals), total)
