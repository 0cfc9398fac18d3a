"""Route by the work that a request will make; two policies of our own, which no engine has.

Both keep the engine's ledger of what ranks published, and beside it what they have sent since the rank wrote it. What
they need beyond the engines' ledgers is said at each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush

from dprankdiag.errors import UsageError
from dprankdiag.simulate.base import Load, Request
from dprankdiag.simulate.decisions import Decision, DecisionLog, Measure, Reason
from dprankdiag.simulate.routers.prefixes import MAX_TOKENS, PrefixMemory, name_prefixes


class UncachedTokens:
    """Choose the rank where the prompt tokens still to compute, this prompt's own among them, are fewest; a `Router`.

    A prompt is counted by what its rank has not seen of it, not by its length; equal ranks are told apart by tokens
    held. A snapshot replaces what was counted before the rank wrote it, and nothing that was sent later: with clocks
    of one host, requests under way are neither forgotten nor counted twice.

    Needs: a memory of the prompts sent to each rank, as gateways keep one.

    Attributes:
        uncached: prompt tokens that each rank has still to compute.
    """

    def __init__(self, n_ranks: int, *, max_tokens: int = MAX_TOKENS, keep: bool = True) -> None:
        self.uncached = [0] * n_ranks
        self._log = DecisionLog(keep)
        self._stamps: tuple[int | None, ...] = (None,) * n_ranks
        self._held = [0] * n_ranks
        self._read: list[Load | None] = [None] * n_ranks
        self._sent: list[list[tuple[int, int, int]]] = [[] for _ in range(n_ranks)]
        self._memories = [PrefixMemory(max_tokens) for _ in range(n_ranks)]

    @property
    def decisions(self) -> list[Decision]:
        """Give the decisions in order; none are there unless they are kept."""
        return self._log.read()

    @property
    def measure(self) -> Measure:
        """Give what the policy compares of loads, the request's own tokens apart."""
        return lambda load: (load.waiting_uncached_tokens, load.total_tokens)

    def observe(self, now_ns: int, loads: Sequence[Load | None]) -> None:
        """Take the snapshots that are new, and add what was sent after they were written."""
        for rank, load in enumerate(loads):
            if load is None or load is self._read[rank]:
                continue
            self._read[rank] = load
            later = [sent for sent in self._sent[rank] if sent[0] > load.stamp_ns]
            self._sent[rank] = later
            self.uncached[rank] = load.waiting_uncached_tokens + sum(new for _, new, _ in later)
            self._held[rank] = load.total_tokens + sum(prompt for _, _, prompt in later)
        self._stamps = tuple([None if read is None else read.stamp_ns for read in self._read])

    def place(self, now_ns: int, request: Request) -> int:
        """Choose the rank of a request and count what it has to compute there.

        Raises:
            UsageError: it demands a rank that does not exist.
        """
        prefixes = name_prefixes(request)
        prompt = sum([tokens for _, tokens in prefixes])
        new = [prompt - memory.match(prefixes) for memory in self._memories]
        reason, rank = take_pin(request, len(new))
        if rank is None:
            work = [own + waiting for own, waiting in zip(new, self.uncached, strict=True)]
            least = min(work)
            equal = [rank for rank, tokens in enumerate(work) if tokens == least]
            rank = min(equal, key=self._held.__getitem__)
        if self._log.keeps:
            self._log.note(now_ns, request, rank, reason, None, tuple(self._held), self._stamps)
        self.uncached[rank] += new[rank]
        self._held[rank] += prompt
        self._sent[rank].append((now_ns, new[rank], prompt))
        self._memories[rank].insert(prefixes)
        return rank

    def release(self, now_ns: int, request: Request, rank: int) -> None:
        """Do nothing: snapshots say when prompts have been computed."""

    def believed(self) -> list[Load | None]:
        """Give what each rank last published, with the tokens sent since."""
        return [
            None if read is None else replace(read, waiting_uncached_tokens=uncached, total_tokens=held)
            for read, uncached, held in zip(self._read, self.uncached, self._held, strict=True)
        ]


class RemainingPairs:
    """Choose the rank with the fewest KV pairs to come until its requests are done; a `Router`.

    A request with `c` tokens of prompt and `g` of output reads c + (c + 1) + ... + (c + g - 1) KV tokens while it
    decodes: `g * c + g * (g - 1) / 2`. What remains of it after `d` tokens is that less the same with `d` for `g`,
    a quadratic in time at a steady step, so a rank's sum is three numbers and a decision costs the same however many
    requests run.

    Needs: a guess of each request's output and of the time of a step. A request that outlives its guess counts as
    about to write one token more, until it is released.
    """

    def __init__(
        self, n_ranks: int, *, step_ns: int, guess_output: Callable[[Request], float], keep: bool = True
    ) -> None:
        self._log = DecisionLog(keep)
        self._stamps: tuple[int | None, ...] = (None,) * n_ranks
        self._step_ns = step_ns
        self._guess = guess_output
        self._sums = [[0.0, 0.0, 0.0] for _ in range(n_ranks)]
        self._running: dict[int, tuple[float, float, float]] = {}
        self._ends: list[list[tuple[float, int, float]]] = [[] for _ in range(n_ranks)]
        self._counts = [0] * n_ranks

    @property
    def decisions(self) -> list[Decision]:
        """Give the decisions in order; none are there unless they are kept."""
        return self._log.read()

    @property
    def measure(self) -> None:
        """Give nothing: what it compares cannot be told from a load."""
        return None

    def observe(self, now_ns: int, loads: Sequence[Load | None]) -> None:
        """Do nothing: it knows what it sent and what was released."""

    def place(self, now_ns: int, request: Request) -> int:
        """Choose the rank of a request and add its pairs there.

        Raises:
            UsageError: it demands a rank that does not exist.
        """
        reason, rank = take_pin(request, len(self._sums))
        if rank is None:
            pairs = self.expect_pairs(now_ns)
            rank = pairs.index(min(pairs))
        if self._log.keeps:
            self._log.note(now_ns, request, rank, reason, tuple(self._counts), None, self._stamps)
        self._add(now_ns / self._step_ns, request, rank)
        return rank

    def release(self, now_ns: int, request: Request, rank: int) -> None:
        """Take a request's remaining pairs away."""
        own = self._running.pop(request.number, None)
        if own is not None:
            self._counts[rank] -= 1
            for power, value in enumerate(own):
                self._sums[rank][power] -= value

    def believed(self) -> list[Load | None]:
        """Give nothing: it does not use what ranks publish."""
        return [None] * len(self._sums)

    def expect_pairs(self, now_ns: int) -> list[float]:
        """Give the pairs that remain to each rank."""
        at = now_ns / self._step_ns
        for rank, ends in enumerate(self._ends):
            while ends and ends[0][0] <= at:
                _, number, last = heappop(ends)
                self._outlive(rank, number, last)
        return [constant + at * (slope + at * bend) for constant, slope, bend in self._sums]

    def _add(self, at: float, request: Request, rank: int) -> None:
        context, output = request.prompt_tokens, max(self._guess(request), 1.0)
        whole = output * context + output * (output - 1) / 2
        # whole - (d c + d (d - 1) / 2) with d = time - at, in powers of time
        own = (whole + at * context - at * (at + 1) / 2, at + 0.5 - context, -0.5)
        self._running[request.number] = own
        self._counts[rank] += 1
        for power, value in enumerate(own):
            self._sums[rank][power] += value
        heappush(self._ends[rank], (at + output - 1, request.number, context + output - 1))

    def _outlive(self, rank: int, number: int, last: float) -> None:
        """Hold a request at the pairs of one token more."""
        own = self._running.get(number)
        if own is None:
            return
        held = (last, 0.0, 0.0)
        self._running[number] = held
        for power in range(3):
            self._sums[rank][power] += held[power] - own[power]


def take_pin(request: Request, n_ranks: int) -> tuple[Reason, int | None]:
    """Give what decides, and the rank that the request demands, if it does.

    Raises:
        UsageError: there is no such rank.
    """
    rank = request.pinned_rank
    if rank is None:
        return "policy", None
    if not 0 <= rank < n_ranks:
        raise UsageError(f"rank {rank} is demanded, but the ranks are 0 to {n_ranks - 1}")
    return "pinned", rank
