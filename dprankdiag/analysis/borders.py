"""Find whether the hosts meet between two steps: each GPU then stands idle until the last of them is done.

No row of a GPU trace shows such a meeting. It shows in when the GPUs go on: whoever is done early with the step before
stands idle for as much longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprankdiag.analysis.participations import Participation
from dprankdiag.analysis.segments import Segments
from dprankdiag.analysis.statistics import FloatArray, fit_slope

IntArray = np.ndarray[Any, np.dtype[np.int64]]

FEWEST_RANKS = 4
"""Levels of fewer ranks leave nothing to tell by how far they scatter."""

TOLD_APART = 3.0
"""Standard errors by which the slope must lie nearer to that of a meeting, 1, than to that of hosts alone, 0."""


@dataclass(frozen=True, slots=True)
class Border:
    """What lies before the first meeting of each step where the hosts meet in between; `(n_steps, n_ranks)`, ns.

    Attributes:
        tail: from leaving the last meeting of the step before to the start of the idle time between the steps.
        slack: how much earlier than the last rank's that idle time begins.
        idle: how long that idle time lasts.
    """

    tail: IntArray
    slack: IntArray
    idle: IntArray

    def take(self, rows: IntArray) -> Border:
        """Return what belongs to some of the steps."""
        return replace(self, tail=self.tail[rows], slack=self.slack[rows], idle=self.idle[rows])


def look_for_border(
    participations: Sequence[Participation], segments: Sequence[Segments], begin: IntArray
) -> Border | None:
    """Tell whether the hosts of some steps meet before them.

    Args:
        begin: `(n_steps, n_members)` the first event of each step in each member's list.
    """
    columns = [begin[:, rank] for rank in range(len(participations))]
    return find_border(
        np.stack([part.end_ns[own - 1] for part, own in zip(participations, columns, strict=True)], axis=1),
        np.stack(
            [it.arrival_ns[own] - it.idle_from_ns[own] for it, own in zip(segments, columns, strict=True)], axis=1
        ),
        np.stack(
            [it.arrival_ns[own] - it.idle_until_ns[own] for it, own in zip(segments, columns, strict=True)], axis=1
        ),
    )


def find_border(left_ns: IntArray, idle_from_ns: IntArray, idle_until_ns: IntArray) -> Border | None:
    """Tell whether the hosts meet between the steps, and what each rank does until then.

    Args:
        left_ns: `(n_steps, n_ranks)` when each rank leaves the last meeting of the step before.
        idle_from_ns, idle_until_ns: its idle time before the first meeting, likewise.

    Returns:
        None if hosts do not meet, or if it cannot be told.
    """
    idle_from_ns, idle_until_ns = _set_right(idle_from_ns, idle_until_ns)
    slack = idle_from_ns.max(axis=1, keepdims=True) - idle_from_ns
    idle = idle_until_ns - idle_from_ns
    slope, error = _weigh([fit_slope(*pair) for pair in _split(slack.astype(np.float64), idle.astype(np.float64))])
    if abs(slope - 1.0) > TOLD_APART * error + 0.2 or slope - TOLD_APART * error < 0.5:
        return None
    return Border(idle_from_ns - left_ns, slack, idle)


def _set_right(idle_from_ns: IntArray, idle_until_ns: IntArray) -> tuple[IntArray, IntArray]:
    """Give ranks whose idle time begins when that of most ranks is over the others' median.

    Before a meeting all stand idle at once: what is seen there is another gap, for rows before it were lost.
    """
    base = idle_from_ns.min(axis=1, keepdims=True)
    begin, stop = idle_from_ns - base, idle_until_ns - base  # small, so that medians are exact
    elsewhere = begin > np.median(stop, axis=1, keepdims=True)
    if not elsewhere.any():
        return idle_from_ns, idle_until_ns
    others = [np.nanmedian(np.where(elsewhere, np.nan, edge), axis=1) for edge in (begin, stop)]
    usual = [base + np.rint(edge).astype(np.int64)[:, None] for edge in others]
    return np.where(elsewhere, usual[0], idle_from_ns), np.where(elsewhere, usual[1], idle_until_ns)


def _split(slack: FloatArray, idle: FloatArray) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Split into what varies within the ranks and, of enough ranks, what their levels differ by.

    What all hosts have in common in a step is taken out of both.
    """
    levels = np.median(slack, axis=0), np.median(idle, axis=0)
    within = [values - level for values, level in zip((slack, idle), levels, strict=True)]
    yield within[0] - within[0].mean(axis=1, keepdims=True), within[1] - within[1].mean(axis=1, keepdims=True)
    if slack.shape[1] >= FEWEST_RANKS:
        yield levels[0] - levels[0].mean(), levels[1] - levels[1].mean()


def _weigh(fits: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Average slopes by their precision."""
    precision = np.array([error**-2.0 for _, error in fits])
    if not precision.sum():
        return 0.0, np.inf
    return float(np.average([slope for slope, _ in fits], weights=precision)), float(precision.sum() ** -0.5)
