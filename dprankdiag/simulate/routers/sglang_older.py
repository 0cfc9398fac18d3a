"""Route as the controllers of SGLang before 0.5.8 did.

0.4.0 to 0.4.9 knew round robin alone. 0.4.10 to 0.5.2 brought `minimum_tokens`, 0.5.3 to 0.5.7 `shortest_queue` (and
took `minimum_tokens` for round robin).

Source: sglang 0.4.10.post2, 0.5.3 and 0.5.7, `managers/data_parallel_controller.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from dprankdiag.errors import UsageError
from dprankdiag.simulate.base import Load, Request
from dprankdiag.simulate.decisions import Decision, DecisionLog, Measure, Reason
from dprankdiag.simulate.routers.sglang import Role, count_requests, take_room

MINIMUM_TOKENS_STEPS = 40
"""Steps between two writes of a rank's tokens for `minimum_tokens`."""


class ShortestQueue:
    """Fill the shorter queues up to the longest, then go round; a `Router` (0.5.3 to 0.5.7).

    With each report the controller writes a list of ranks: as many turns for the shortest queues as bring them to the
    next longer ones, and so on until all are equal. Requests take their ranks from the list, and from a round robin
    when it is used up, however many come before the next report.
    """

    def __init__(self, n_ranks: int, *, role: Role = "unified", keep: bool = True) -> None:
        self._log = DecisionLog(keep)
        self._stamps: tuple[int | None, ...] = (None,) * n_ranks
        self._role = role
        self._read: list[Load | None] = [None] * n_ranks
        self._requests = [0] * n_ranks
        self._queue: deque[int] = deque()
        self._turn = 0

    @property
    def decisions(self) -> list[Decision]:
        """Give the decisions in order; none are there unless they are kept."""
        return self._log.read()

    @property
    def measure(self) -> Measure:
        """Give what its list is made of."""
        return count_requests

    def observe(self, now_ns: int, loads: Sequence[Load | None]) -> None:
        """Take a report; what is left of the last list is thrown away where anything is new."""
        if list(loads) == self._read:
            return
        self._read = list(loads)
        counts = {rank: load.running + load.waiting for rank, load in enumerate(loads) if load is not None}
        for rank, count in counts.items():
            self._requests[rank] = count
        self._queue = deque(fill_queues(counts))
        self._stamps = tuple([None if load is None else load.stamp_ns for load in loads])

    def place(self, now_ns: int, request: Request) -> int:
        """Choose the rank of a request.

        Raises:
            UsageError: it demands a rank that does not exist, or brings no room where rooms decide.
        """
        reason: Reason = "policy" if request.pinned_rank is None else "pinned"
        rank = self._choose(request)
        if self._log.keeps:
            self._log.note(now_ns, request, rank, reason, tuple(self._requests), None, self._stamps)
        if reason == "policy":
            self._requests[rank] += 1
        return rank

    def release(self, now_ns: int, request: Request, rank: int) -> None:
        """Do nothing: the controller learns of ended requests from the reports."""

    def believed(self) -> list[Load | None]:
        """Give what was last reported of each rank, with what was sent since as waiting requests."""
        return [
            None if read is None else replace(read, waiting=count - read.running)
            for read, count in zip(self._read, self._requests, strict=True)
        ]

    def _choose(self, request: Request) -> int:
        if request.pinned_rank is not None:
            return check_rank(request.pinned_rank, len(self._read))
        if self._queue:
            return self._queue.popleft()
        if self._role != "unified":
            return take_room(request, len(self._read))
        rank = self._turn
        self._turn = (self._turn + 1) % len(self._read)
        return rank


def fill_queues(counts: dict[int, int]) -> list[int]:
    """Give the ranks whose queues are to be filled, in order, until all are as long as the longest.

    Queues of equal length are filled rank by rank, once each for every request that the next longer queue has more:
    all turns of a level are listed before the next level begins.
    """
    level = dict(counts)
    turns: list[int] = []
    for goal in sorted(set(level.values()))[1:]:
        lowest = min(level.values())
        shortest = [rank for rank, count in level.items() if count == lowest]
        turns += shortest * (goal - lowest)
        level.update(dict.fromkeys(shortest, goal))
    return turns


class MinimumTokens:
    """Choose the rank that reported the fewest tokens; a `Router` (0.4.10 to 0.5.2).

    Ranks wrote their tokens every 40 steps. Whether requests on their way were added in between was not settled by
    running it, so the caller says it: without, all requests between two reports go to one rank.
    """

    def __init__(self, n_ranks: int, *, counts_sent: bool, keep: bool = True) -> None:
        self._log = DecisionLog(keep)
        self._stamps: tuple[int | None, ...] = (None,) * n_ranks
        self._counts_sent = counts_sent
        self._read: list[Load | None] = [None] * n_ranks
        self._tokens = [0] * n_ranks

    @property
    def decisions(self) -> list[Decision]:
        """Give the decisions in order; none are there unless they are kept."""
        return self._log.read()

    @property
    def measure(self) -> Measure:
        """Give what it compares."""
        return lambda load: (load.total_tokens,)

    def observe(self, now_ns: int, loads: Sequence[Load | None]) -> None:
        """Take what the ranks have written; a rank that wrote nothing new keeps what is counted of it."""
        for rank, load in enumerate(loads):
            if load is not None and load != self._read[rank]:
                self._read[rank] = load
                self._tokens[rank] = load.total_tokens
        self._stamps = tuple([None if read is None else read.stamp_ns for read in self._read])

    def place(self, now_ns: int, request: Request) -> int:
        """Choose the rank of a request.

        Raises:
            UsageError: it demands a rank that does not exist.
        """
        reason: Reason = "policy" if request.pinned_rank is None else "pinned"
        if request.pinned_rank is None:
            rank = self._tokens.index(min(self._tokens))
        else:
            rank = check_rank(request.pinned_rank, len(self._tokens))
        if self._log.keeps:
            self._log.note(now_ns, request, rank, reason, None, tuple(self._tokens), self._stamps)
        if self._counts_sent and reason == "policy":
            self._tokens[rank] += request.prompt_tokens
        return rank

    def release(self, now_ns: int, request: Request, rank: int) -> None:
        """Do nothing: the controller learns of ended requests from the reports."""

    def believed(self) -> list[Load | None]:
        """Give what was last reported of each rank, with what was sent since as tokens."""
        return [
            None if read is None else replace(read, total_tokens=tokens)
            for read, tokens in zip(self._read, self._tokens, strict=True)
        ]


def check_rank(rank: int, n_ranks: int) -> int:
    """Give the rank that a request demands.

    Raises:
        UsageError: there is no such rank.
    """
    if not 0 <= rank < n_ranks:
        raise UsageError(f"rank {rank} is demanded, but the ranks are 0 to {n_ranks - 1}")
    return rank
