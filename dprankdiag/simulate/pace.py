"""Let a run that is served again keep the time of the recorded one: tokens come when they came.

Which requests share a step depends on when each step begins. Served with costs that are a little off, a run drifts
away from the recorded one, other prompts meet in a step, and what is compared is no longer the same step. Kept in time,
steps hold what they held whatever the costs are, and how long they took can be solved for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from dprankdiag.simulate.base import IntArray
from dprankdiag.simulate.jobs import Job
from dprankdiag.simulate.ranks import PooledRank, Rank

MOST_STRETCH = 4
"""A step lasts at most so many times as long as its costs say, and at least that part of it: what was recorded may be
of other steps."""


class RecordedPace:
    """Tell how long steps take by the moments at which tokens came; a `Pace`.

    Args:
        first_ns, end_ns: of each request's first and last token, by its number: `(n,)` from its arrival; -1 if unknown.
        reach_steps: moments farther ahead than this do not say how long a step takes, but its costs do: steps in
            between may be of another kind. None to look as far as need be, where costs are not known.
    """

    def __init__(self, first_ns: IntArray, end_ns: IntArray, reach_steps: int | None = None) -> None:
        self._reach_steps = reach_steps
        self._first_ns, self._end_ns = first_ns.tolist(), end_ns.tolist()

    def time_step(self, now_ns: int, costs_ns: int, ranks: Sequence[Rank]) -> int:
        """Give the time of a step that begins now: until its tokens came, or a part of the way to the next that did."""
        ways = [way for rank in ranks if isinstance(rank, PooledRank) for way in self._list_ways(now_ns, rank)]
        if not ways:
            return costs_ns
        fewest = min(steps for steps, _ in ways)
        if self._reach_steps is not None and fewest > self._reach_steps:
            return costs_ns
        nearest = median(left_ns for steps, left_ns in ways if steps == fewest)
        return round(min(max(nearest / fewest, costs_ns / MOST_STRETCH), costs_ns * MOST_STRETCH))

    def _list_ways(self, now_ns: int, rank: PooledRank) -> Iterator[tuple[float, int]]:
        """List the steps and the time until known moments, of a rank: of prompts it computes, or its next last token.

        A chunk of a prompt takes another time than the next one, which costs tell where they are near; rows that
        decode change little from step to step.
        """
        for job, tokens in rank.chunks:
            told_ns = self._first_ns[job.request.number] if job.generated == 0 else -1
            if told_ns >= 0 and (self._reach_steps is None or job.computed == job.target):
                yield (job.target - job.computed + tokens) / tokens, _leave(job, told_ns, now_ns)
        found = rank.running.find_next() if rank.gained else None
        if found is not None and self._end_ns[found[0].request.number] >= 0:
            job, left = found
            yield left / rank.gained, _leave(job, self._end_ns[job.request.number], now_ns)


def _leave(job: Job, told_ns: int, now_ns: int) -> int:
    return job.request.arrival_ns + told_ns - now_ns
