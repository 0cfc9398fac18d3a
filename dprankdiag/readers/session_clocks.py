"""Place the recordings of several files on one time axis, and part those that share no time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dprankdiag.model.sources import Reading, Session

_SLACK_NS = 1_000_000_000
"""Wall clocks of hosts may differ: recordings this far apart may still be of one time."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a session lies on the common axis.

    Attributes:
        offset_ns: what to add to its times.
        precision: "exact", "utc" or "unknown".
    """

    offset_ns: int
    precision: str


def group_by_time(readings: Sequence[Reading]) -> list[list[int]]:
    """Part readings into groups whose UTC spans overlap, in the order of their first reading.

    A reading without actors or without a known time stays with the first group.
    """
    spans = {number: _find_span(reading.session) for number, reading in enumerate(readings) if reading.actors}
    timed = sorted((span, number) for number, span in spans.items() if span is not None)
    groups: list[list[int]] = []
    reach = None
    for (start, end), number in timed:
        if reach is None or start > reach + _SLACK_NS:
            groups.append([])
            reach = end
        groups[-1].append(number)
        reach = max(reach, end)
    groups = sorted((sorted(group) for group in groups), key=lambda group: group[0]) or [[]]
    placed = {number for group in groups for number in group}
    groups[0] = sorted({*groups[0], *(number for number in range(len(readings)) if number not in placed)})
    return groups


def place_sessions(sessions: Sequence[Session]) -> list[Placement]:
    """Place each session on the time axis of the first.

    Sessions of one host that know its boot clock lie exactly to each other; otherwise wall clocks place them, and
    a session that knows neither keeps its own times.
    """
    if not sessions:
        return []
    anchors: dict[str, tuple[Session, Placement]] = {}
    placements: list[Placement] = []
    for number, session in enumerate(sessions):
        anchor = anchors.get(session.host) if session.host and session.system_clock_ns is not None else None
        if number == 0:
            placement = Placement(0, "exact")
        elif anchor is not None:
            placement = _place_beside(session, *anchor)
        else:
            placement = _place_by_wall(session, sessions[0])
        placements.append(placement)
        if session.host and session.system_clock_ns is not None:
            anchors.setdefault(session.host, (session, placement))
    return placements


def _place_beside(session: Session, anchor: Session, placement: Placement) -> Placement:
    step = (session.system_clock_ns or 0) - (anchor.system_clock_ns or 0)
    return Placement(placement.offset_ns + step, placement.precision)


def _place_by_wall(session: Session, first: Session) -> Placement:
    if session.utc_start_ns is None or first.utc_start_ns is None:
        return Placement(0, "unknown")
    return Placement(session.utc_start_ns - first.utc_start_ns, "utc")


def _find_span(session: Session) -> tuple[int, int] | None:
    if session.utc_start_ns is None:
        return None
    return session.utc_start_ns + session.start_ns, session.utc_start_ns + session.end_ns
