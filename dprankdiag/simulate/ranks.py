"""State what a rank is to its engine, and share what ranks of every scheduler do: hold pages, gain tokens, end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dprankdiag.simulate.base import Load, Mode
from dprankdiag.simulate.decoding import Decoding
from dprankdiag.simulate.jobs import Job
from dprankdiag.simulate.kv_pool import KvPool


class Levels(NamedTuple):
    """How full a rank is; as `Load` says."""

    running: int
    waiting: int
    waiting_uncached_tokens: int
    used_tokens: int
    total_tokens: int


class Queues(NamedTuple):
    """The requests of a rank in queues that only engines of one role have; as `disaggregation` says."""

    bootstrap: int
    inflight: int
    prealloc: int
    transfer: int
    retracted: int


NO_QUEUES = Queues(0, 0, 0, 0, 0)


class Batch(NamedTuple):
    """What one rank brings to a step.

    Attributes:
        requests: that take part.
        longest_prefix: of the prompts computed, tokens held before the step.
        probe: it holds health checks only.
    """

    mode: Mode
    requests: int
    decode_rows: int
    decode_pairs: int
    kv_tokens: int
    prompt_tokens: int
    prompt_pairs: int
    longest_prefix: int = 0
    probe: bool = False


IDLE = Batch("idle", 0, 0, 0, 0, 0, 0)


class Rank(Protocol):
    """Serves requests step by step."""

    def can_hold(self, job: Job) -> bool:
        """Tell whether a job could ever be served."""

    def submit(self, job: Job) -> None:
        """Queue a job."""

    def plan(self, now_ns: int, step: int) -> Batch:
        """Form the batch of a step that begins now."""

    def commit(self, now_ns: int) -> list[Job]:
        """Take the result of the batch that was planned; returns the jobs that ended."""

    def levels(self, now_ns: int) -> Levels:
        """Tell how full it is."""

    def load(self, now_ns: int) -> Load:
        """Tell the load as it is."""

    def queues(self, now_ns: int) -> Queues:
        """Count the requests in queues of its role."""

    @property
    def busy(self) -> bool:
        """Tell whether it has unfinished requests."""


class Pace(Protocol):
    """Says how long a step takes by more than its work."""

    def time_step(self, now_ns: int, costs_ns: int, ranks: Sequence[Rank]) -> int:
        """Give the time of a step that begins now with the batches that the ranks have planned.

        Args:
            costs_ns: the time by its work.
        """


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How many tokens requests of a rank gain a step under speculative decoding.

    Attributes:
        width: rows verified of each request.
        mean_tokens: gained on the mean, 1 to `width`.
    """

    width: int = 1
    mean_tokens: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a mean that verification cannot give.

        Raises:
            ValueError: it is below 1 or above `width`.
        """
        if not 1 <= self.mean_tokens <= self.width:
            raise ValueError(f"a mean of {self.mean_tokens} tokens is not within 1 and {self.width}")


WITHOUT_DRAFTS = Acceptance()


class Credit:
    """Deal whole tokens whose mean is a rank's acceptance."""

    def __init__(self, acceptance: Acceptance) -> None:
        self._mean = acceptance.mean_tokens
        self._left = 0.0

    def take(self) -> int:
        """Say how many tokens each request gains in this step."""
        self._left += self._mean
        gained = int(self._left)
        self._left -= gained
        return gained


class RankRules(Protocol):
    """How a rank schedules."""

    @property
    def empty_plans(self) -> int:
        """Say how many batches in a row may be empty although there is work that could run."""

    def open(self) -> Rank:
        """Make a rank without work."""


class PooledRank(ABC):
    """A rank whose requests share a pool of KV pages.

    Attributes:
        running: the jobs that decode.
        chunks: prompt tokens of the step under way, by job.
        gained: tokens that each running job gains in it; 0 if none decodes.
    """

    def __init__(self, pool: KvPool, acceptance: Acceptance) -> None:
        self.pool = pool
        self.acceptance = acceptance
        self.running = Decoding(pool.page_tokens)
        self.chunks: list[tuple[Job, int]] = []
        self.gained = 0
        self.credit = Credit(acceptance)
        self._orders = 0

    @abstractmethod
    def levels(self, now_ns: int) -> Levels:
        """Tell how full the rank is, as its scheduler counts."""

    def load(self, now_ns: int) -> Load:
        """Tell the load as it is."""
        return Load(now_ns, *self.levels(now_ns), capacity_tokens=self.pool.capacity_pages * self.pool.page_tokens)

    def queues(self, now_ns: int) -> Queues:
        """Count none: a rank that computes prompts and decodes waits for nobody."""
        return NO_QUEUES

    def can_hold(self, job: Job) -> bool:
        """Tell whether the pool could hold a job that has it for itself."""
        most = job.prompt_tokens + job.request.output_tokens + self.acceptance.width
        return self.pool.count_pages(most) <= self.pool.capacity_pages

    def begin(self, job: Job) -> None:
        """Admit a job, which holds what is cached of its prompt."""
        self._orders += 1
        job.order = self._orders
        self.pool.open(job)
        if job.cached_tokens is None:
            job.cached_tokens = job.computed

    def expect_tokens(self, job: Job) -> int:
        """Expect what a job will still generate; a scheduler that expects nothing takes what it will."""
        return job.request.output_tokens - job.generated

    def describe(self, decodes: bool, width: int) -> Batch:
        """Describe the batch: the prompt tokens chosen, and the running requests if they decode."""
        rows = len(self.running.jobs) if decodes else 0
        if not self.chunks:
            return self._describe_decode(rows, width) if rows else IDLE
        tokens = pairs = prefix = 0
        for job, count in self.chunks:
            before = job.computed - count
            tokens += count
            pairs += count * before + count * (count + 1) // 2
            prefix = max(prefix, before)
        if not rows:
            probe = all(job.request.probe for job, _ in self.chunks)
            return Batch("extend", len(self.chunks), 0, 0, 0, tokens, pairs, prefix, probe)
        beside = self._describe_decode(rows, width)
        return Batch("mixed", rows + len(self.chunks), *beside[2:5], tokens, pairs, prefix)

    def _describe_decode(self, rows: int, width: int) -> Batch:
        lengths = self.running.lengths
        if width == 1:
            return Batch("decode", rows, rows, lengths, lengths, 0, 0)
        pairs = width * lengths + rows * width * (width - 1) // 2
        return Batch("verify", rows, rows * width, pairs, lengths + rows * (width - 1), 0, 0)

    def advance(self) -> list[Job]:
        """Let running requests gain tokens; returns those that ended."""
        if not self.gained:
            return []
        self.pool.take(self.running.count_pages(self.gained))
        done = self.running.advance(self.gained)
        for job in done:
            held = self.running.leave(job)
            if job.request.output_key is not None:
                self.pool.keep(job, job.answered_parts, held)
            self.pool.close(job, held)
        return done

    def end_prompt(self, job: Job, now_ns: int) -> bool:
        """Give a job whose prompt is computed its next token; returns whether it was the last."""
        self.pool.keep(job, job.request.parts, job.computed)
        job.generated += 1
        if job.first_ns is None:
            job.first_ns = now_ns
        if job.generated == job.request.output_tokens:
            self.pool.close(job, job.computed)
            return True
        self.running.join(job, self.expect_tokens(job))
        return False

    def lose(self, job: Job, held: int) -> None:
        """Take a job's pages away, which are to be computed again."""
        self.pool.close(job, held)
        job.retractions += 1
        job.computed = 0
