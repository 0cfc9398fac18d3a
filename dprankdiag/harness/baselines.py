"""What simple rules would say of the same deployments: the rules of thumb that a diagnosis has to beat.

They are given what no recording gives, the true time of every event, so that none of them fails for its clocks. Each
names a rank only where its figure stands out, as its authors or users have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.events import Array
from dprankdiag.harness.timeline import START_NS, Timeline

LONGER = 1.1
"""The rank with the longest collectives is called slow if they take so many times the shortest ones'."""
MATRIX = 3.0
"""A rank is called slow if its column of the wait matrix has a mean of more than so many times that of the matrix.

Source: DeepXTrace, whose rules for slow senders and receivers these are.
"""
SCORE = 0.75
"""A rank is a straggler below this score against the best.

Source: the relative GPU score of nvidia-resiliency-ext's straggler detection, with its default threshold: per kernel
the smallest median of all ranks over the rank's own, weighted by time, collectives left out.
"""
LAST = 0.5
"""A rank is called slow that comes last to more than this share of the meetings."""
BLAMED, WORTH = 0.8, 0.03
"""Of blame by meeting, the fewest ranks that hold this share are named, if the others wait this share of the time.

These are the shares by which we name ranks and warn; what differs is that lateness is not walked back to its origin.
"""


@dataclass(frozen=True, slots=True)
class _Meetings:
    """All meetings of a world: arrival and end, `(meetings, ranks)`; `sizes` is how many ranks meet at a time."""

    arrival_ns: Array
    end_ns: Array
    sizes: Array


def name_by_simple_rules(timeline: Timeline) -> dict[str, tuple[int, ...]]:
    """Name the ranks that each rule blames; none where the rule sees nothing out of the ordinary."""
    meetings = _list_meetings(timeline)
    return {rule: tuple(np.flatnonzero(judge(timeline, meetings)).tolist()) for rule, judge in RULES.items()}


def _list_meetings(timeline: Timeline) -> _Meetings:
    parts = list(_walk_meetings(timeline))
    arrival, end, sizes = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return _Meetings(arrival, end, sizes)


def _walk_meetings(timeline: Timeline) -> Iterator[tuple[Array, Array, Array]]:
    world = timeline.world
    for lane, times in zip(timeline.lanes, timeline.times, strict=True):
        for position, op in enumerate(lane.operations):
            if op.act == "meet":
                size = world.attention_tp if op.among == "group" else world.ranks
                arrival = times.start_ns[:, position - op.sent_by]
                yield arrival, times.end_ns[:, position], np.full(len(lane.steps), size)


def _longest_collective(timeline: Timeline, meetings: _Meetings) -> Array:
    """Blame the rank whose collectives take longest: the one that waits most."""
    spent = (meetings.end_ns - meetings.arrival_ns).sum(axis=0)
    return _only_top(spent, spent > LONGER * spent.min())


def _wait_matrix(timeline: Timeline, meetings: _Meetings) -> Array:
    """Blame the ranks whose column of the wait matrix is three times the mean, over meetings of all ranks.

    A rank waits for another until that has come and the transfer is done.
    """
    among_all = meetings.sizes == timeline.world.ranks
    arrival, end = meetings.arrival_ns[among_all], meetings.end_ns[among_all]
    transfer = np.maximum(end.min(axis=1) - arrival.max(axis=1), 0)[:, None]
    others = range(timeline.world.ranks)
    waited = np.asarray([(np.maximum(arrival[:, [rank]] - arrival, 0) + transfer).mean() for rank in others])
    slow: Array = waited > MATRIX * waited.mean()
    return slow


def _kernel_score(timeline: Timeline, meetings: _Meetings) -> Array:
    """Blame the ranks whose own kernels take a third longer than the best rank's, weighted by their time."""
    medians = np.concatenate([_median_work(lane.work_ns, lane.operations) for lane in timeline.lanes])
    score = np.average(medians.min(axis=1, keepdims=True) / medians, axis=0, weights=medians.mean(axis=1))
    slow: Array = score < SCORE
    return slow


def _median_work(work_ns: Array, operations: tuple[object, ...]) -> Array:
    own = [position for position, op in enumerate(operations) if getattr(op, "act", "") == "work"]
    medians: Array = np.maximum(np.median(work_ns[:, own], axis=0), 1.0)
    return medians


def _last_arriver(timeline: Timeline, meetings: _Meetings) -> Array:
    """Blame the rank that comes last most often, wherever it met."""
    count = np.zeros(timeline.world.ranks)
    for size in np.unique(meetings.sizes).tolist():
        groups = meetings.arrival_ns[meetings.sizes == size].reshape(-1, timeline.world.ranks // size, size)
        last = groups.argmax(axis=2) + size * np.arange(groups.shape[1])
        count += np.bincount(last.ravel(), minlength=timeline.world.ranks)
    return _only_top(count, count > LAST * len(meetings.sizes))


def _blame_by_meeting(timeline: Timeline, meetings: _Meetings) -> Array:
    """Blame whoever comes last to a meeting for all that the others wait there, though it may have inherited that."""
    blame = np.zeros(timeline.world.ranks)
    for size in np.unique(meetings.sizes).tolist():
        groups = meetings.arrival_ns[meetings.sizes == size].reshape(-1, timeline.world.ranks // size, size)
        last = groups.argmax(axis=2) + size * np.arange(groups.shape[1])
        waited = (groups.max(axis=2, keepdims=True) - groups).sum(axis=2)
        blame += np.bincount(last.ravel(), waited.ravel(), minlength=timeline.world.ranks)
    order = np.argsort(-blame, kind="stable")
    count = int(np.searchsorted(np.cumsum(blame[order]), BLAMED * blame.sum())) + 1
    others = max(timeline.world.ranks - count, 1)
    spent = float(timeline.step_end_ns[-1] - START_NS)
    stands_out = count <= timeline.world.ranks // 2 and blame[order[:count]].sum() / others > WORTH * spent
    named: Array = np.isin(np.arange(timeline.world.ranks), order[:count]) & stands_out
    return named


def _only_top(value: Array, stands_out: Array) -> Array:
    top: Array = (np.arange(len(value)) == value.argmax()) & stands_out
    return top


RULES: dict[str, Callable[[Timeline, _Meetings], Array]] = {
    "longest collective": _longest_collective,
    "wait matrix, 3 × the mean": _wait_matrix,
    "kernel score < 0.75": _kernel_score,
    "last arriver": _last_arriver,
    "blame by meeting": _blame_by_meeting,
}
"""Rules by name."""
