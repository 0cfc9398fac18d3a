"""Choose workers as gateways in front of whole engines do: in turn, of two random ones, or by what they have cached.

A gateway knows what it has sent and what has come back. If it polls the workers' load for `power_of_two`, every ten
seconds, that takes the place of its own counts, and nothing that it sends is counted until the next poll; workers that
do not answer (SGLang since 0.5.21 to a gateway that asks for `/get_load`) are judged by its own counts. Its ranks are
workers: the ports of engines, or the ranks of one if it routes to them by name.

Source: SGLang model gateway, policies `round_robin`, `power_of_two`, `cache_aware` and `prefix_hash`, with the defaults
of its command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from dprankdiag.errors import UsageError
from dprankdiag.simulate.base import Load, Request
from dprankdiag.simulate.decisions import Decision, DecisionLog, Measure, Reason
from dprankdiag.simulate.routers.prefixes import Prefixes, PrefixMemory, name_beginning, name_prefixes
from dprankdiag.simulate.routers.sglang import count_requests

GatewayPolicy = Literal["round_robin", "power_of_two", "cache_aware", "prefix_hash"]

HASHED_TOKENS = 256
POLL_NS = 10_000_000_000
"""Between two looks at the workers' load (`--load-monitor-interval`)."""
OVERLOADED_RATIO = 1.25
"""A worker is passed over that has more requests than this times the mean (`--prefix-hash-load-factor`)."""


@dataclass(frozen=True, slots=True)
class CacheAware:
    """When a gateway prefers the worker that has seen a prompt's beginning.

    Attributes:
        cache_ratio: part of the prompt that must match, 0 to 1; below it, the least loaded worker is taken.
        unbalanced_requests: the greatest difference of requests in flight that is borne for the cache's sake ...
        unbalanced_ratio: ... unless the busiest worker has less than this many times the requests of the idlest.
        max_tokens: remembered of each worker.
    """

    cache_ratio: float = 0.3
    unbalanced_requests: int = 64
    unbalanced_ratio: float = 1.5
    max_tokens: int = 2**26


DEFAULT_CACHE = CacheAware()
EARLIER_CACHE = CacheAware(0.5, 32, 1.0001, 2**24)
"""What the gateway began with, when it was called a router."""


class Gateway:
    """Choose workers by the requests in flight; a `Router`.

    Attributes:
        inflight: requests sent to each worker that have not come back.
    """

    def __init__(
        self,
        n_workers: int,
        policy: GatewayPolicy,
        *,
        cache: CacheAware = DEFAULT_CACHE,
        poll_ns: int | None = None,
        seed: int = 0,
        keep: bool = True,
    ) -> None:
        self.inflight = [0] * n_workers
        self._log = DecisionLog(keep)
        self._poll_ns = poll_ns if policy == "power_of_two" else None
        self._polled: list[Load | None] = [None] * n_workers
        self._polled_ns: int | None = None
        self._policy = policy
        self._cache = cache
        self._random = Random(seed)
        self._turn = 0
        self._memories = [PrefixMemory(cache.max_tokens) for _ in range(n_workers if policy == "cache_aware" else 0)]

    @property
    def decisions(self) -> list[Decision]:
        """Give the decisions in order; none are there unless they are kept."""
        return self._log.read()

    @property
    def measure(self) -> Measure | None:
        """Give what the policy compares of loads; none where it looks at none."""
        if self._policy == "round_robin":
            return None
        return count_requests if self._poll_ns is None else (lambda load: (load.total_tokens,))

    def observe(self, now_ns: int, loads: Sequence[Load | None]) -> None:
        """Take the workers' loads if a poll is due."""
        if self._poll_ns is None:
            return
        if self._polled_ns is None or now_ns - self._polled_ns >= self._poll_ns:
            self._polled = list(loads)
            self._polled_ns = now_ns

    def place(self, now_ns: int, request: Request) -> int:
        """Choose the worker of a request.

        Raises:
            UsageError: it demands a worker that does not exist.
        """
        reason: Reason = "policy" if request.pinned_rank is None else "pinned"
        prefixes = name_prefixes(request) if self._memories else []
        worker = self._choose(request, prefixes)
        if self._log.keeps:
            self._note(now_ns, request, worker, reason)
        self.inflight[worker] += 1
        if self._memories:
            self._memories[worker].insert(prefixes)
        return worker

    def release(self, now_ns: int, request: Request, rank: int) -> None:
        """Count a request as come back."""
        self.inflight[rank] -= 1

    def believed(self) -> list[Load | None]:
        """Give what was polled of each worker; none where nothing is, for its own counts are no load of a rank."""
        return list(self._polled)

    def _choose(self, request: Request, prefixes: Prefixes) -> int:
        n_workers = len(self.inflight)
        if request.pinned_rank is not None:
            if not 0 <= request.pinned_rank < n_workers:
                raise UsageError(f"worker {request.pinned_rank} is demanded of {n_workers}")
            return request.pinned_rank
        if self._policy == "round_robin":
            self._turn += 1
            return (self._turn - 1) % n_workers
        if self._policy == "power_of_two":
            return self._choose_of_two()
        if self._policy == "prefix_hash":
            return self._choose_hashed(request)
        return self._choose_cached(prefixes)

    def _choose_of_two(self) -> int:
        """Take the less loaded of two random workers."""
        n_workers = len(self.inflight)
        if n_workers == 1:
            return 0
        one = self._random.randrange(n_workers)
        other = (one + 1 + self._random.randrange(n_workers - 1)) % n_workers
        return one if self._weigh(one) <= self._weigh(other) else other

    def _weigh(self, worker: int) -> int:
        """Give a worker's polled tokens, or its requests in flight if it did not answer."""
        polled = self._polled[worker]
        return self.inflight[worker] if polled is None else polled.total_tokens

    def _choose_cached(self, prefixes: Prefixes) -> int:
        """Take who knows most of the prompt, or the least loaded if loads are too uneven or nobody knows it."""
        least, most = min(self.inflight), max(self.inflight)
        rule = self._cache
        if most - least > rule.unbalanced_requests and most > least * rule.unbalanced_ratio:
            return self.inflight.index(least)
        matches = [memory.match(prefixes) for memory in self._memories]
        longest = max(matches)
        if longest <= rule.cache_ratio * sum([tokens for _, tokens in prefixes]):
            return self.inflight.index(least)
        return matches.index(longest)

    def _choose_hashed(self, request: Request) -> int:
        """Take the worker of the prompt's beginning, or the least loaded if that one is overloaded.

        The gateway hashes onto a ring, so that workers may come and go; here they stay, and a remainder does as well.
        """
        worker = name_beginning(request, HASHED_TOKENS) % len(self.inflight)
        bound = OVERLOADED_RATIO * sum(self.inflight) / len(self.inflight)
        least = min(self.inflight)
        if self.inflight[worker] <= bound or least > bound:
            return worker
        return self.inflight.index(least)

    def _note(self, now_ns: int, request: Request, worker: int, reason: Reason) -> None:
        polled = self._polled
        tokens = tuple([None if load is None else load.total_tokens for load in polled])
        stamps = tuple([None if load is None else load.stamp_ns for load in polled])
        if self._policy == "round_robin":
            self._log.note(now_ns, request, worker, reason, None, None, stamps)
        elif any(load is not None for load in polled):
            self._log.note(now_ns, request, worker, reason, None, tokens, stamps)
        else:
            self._log.note(now_ns, request, worker, reason, tuple(self.inflight), None, stamps)
