"""The chain of blame of a step: what its end waited for, link by link back to its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """One rank's stretch of the way that a step's end waited for: to a meeting, or out of one.

    Attributes:
        rank: rank number; None where it is not known who was waited for.
        position: meeting that the stretch leads to, or out of.
        is_out: the rank comes out of the meeting, after its last arrival; otherwise it is on its way to it.
        work_ns: work on the way; the rest is idle. 0 of what comes out of a meeting.
        behind_ns: how much later than the median of the others it came to the meeting; None of what comes out of one,
            and where no other came.
        inherited_ns: part of that by which it had already been released later than the others.
    """

    rank: int | None
    position: int
    is_out: bool
    start_ns: int
    end_ns: int
    work_ns: int = 0
    behind_ns: int | None = None
    inherited_ns: int | None = None
