"""Schedule one rank as SGLang does: prompts first, in chunks; decode otherwise; retract when the pool is full.

Source: sgl-project/sglang@01ac0074, `python/sglang/srt/managers/{scheduler,schedule_policy,schedule_batch}.py`: a
request is admitted if its prompt and what it is expected to generate fit beside what running requests are expected to
generate; victims are those that generated least, the longest prompt first; after a retraction the estimate is renewed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from dprankdiag.simulate.jobs import Job
from dprankdiag.simulate.kv_pool import KvPool
from dprankdiag.simulate.ranks import IDLE, WITHOUT_DRAFTS, Acceptance, Batch, Levels, PooledRank

Victim = Literal["newest", "longest"]
"""Which request loses its place: the one that generated least, or the one that holds most, which thrashes."""

RETRACT_STEPS = 20
"""Steps for which a retraction makes room. Source: as above, `retract_decode`."""


@dataclass(frozen=True, slots=True)
class SglangRules:
    """How a rank schedules.

    Attributes:
        capacity_tokens: KV tokens of its pool.
        chunk_tokens: prompt tokens a step at most.
        max_running: requests that run at once.
        mixed: running requests decode in the steps that compute prompts.
        share_prefixes: it keeps computed prompts.
        asked_tokens: what clients allow a request to generate; None for what it will generate.
        new_token_ratio: the share of that which running requests are first expected to use.
        least_ratio, ratio_steps: where the share falls to, and over how many decode steps.
        clip_tokens: no request is expected to generate more.

    Source: defaults of sgl-project/sglang@01ac0074, `python/sglang/srt/environ.py` and `server_args.py`.
    """

    capacity_tokens: int
    page_tokens: int = 1
    chunk_tokens: int = 8192
    max_running: int = 4096
    mixed: bool = False
    share_prefixes: bool = True
    asked_tokens: int | None = None
    new_token_ratio: float = 0.7
    least_ratio: float = 0.098
    ratio_steps: int = 600
    clip_tokens: int = 4096
    victim: Victim = "newest"
    acceptance: Acceptance = WITHOUT_DRAFTS

    @property
    def empty_plans(self) -> int:
        """Say how many batches in a row may be empty although there is work that could run."""
        return 0

    def open(self) -> SglangRank:
        """Make a rank without work."""
        return SglangRank(self)


class SglangRank(PooledRank):
    """A rank that puts prompts first.

    Attributes:
        waiting: jobs not yet admitted.
        chunked: the job whose prompt is part computed.
        ratio: the share of what clients allow that running requests are expected to generate.
    """

    def __init__(self, rules: SglangRules) -> None:
        super().__init__(KvPool(rules.capacity_tokens, rules.page_tokens, rules.share_prefixes), rules.acceptance)
        self.rules = rules
        self.waiting: deque[Job] = deque()
        self.chunked: Job | None = None
        self.ratio = rules.new_token_ratio
        self._fall = (rules.new_token_ratio - rules.least_ratio) / rules.ratio_steps
        self._queued_tokens = 0
        self._uncached_tokens = 0
        self._reserved_pages = 0

    @property
    def busy(self) -> bool:
        """Tell whether it has unfinished requests."""
        return bool(self.waiting or self.chunked is not None or self.running.jobs)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self.queue(job)

    def queue(self, job: Job) -> None:
        """Put a job, new or retracted, at the end of the queue."""
        job.uncached_tokens = job.target - self.pool.find_cached(job)
        self._queued_tokens += job.target
        self._uncached_tokens += job.uncached_tokens
        self.waiting.append(job)

    def levels(self, now_ns: int) -> Levels:
        """Tell how full it is; the job whose prompt is part computed counts neither as running nor as waiting."""
        used = self.pool.used_tokens
        uncached = self._uncached_tokens if self.chunked is None else self._uncached_tokens + self._rest_of_chunked()
        return Levels(len(self.running.jobs), len(self.waiting), uncached, used, used + self._queued_tokens)

    def plan(self, now_ns: int, step: int) -> Batch:
        """Form the batch of a step: prompts if any can be computed, else a decode step."""
        self.chunks, self.gained, self._reserved_pages = [], 0, 0
        if self.waiting or self.chunked is not None:
            self._admit()
        if self.chunks:
            decodes = self.rules.mixed and len(self.running) > 0
            self.gained = int(decodes)
            return self.describe(decodes, 1)
        if not self.running.jobs:
            return IDLE
        self.make_room(self.acceptance.width)
        self.gained = self.credit.take()
        return self.describe(True, self.acceptance.width)

    def commit(self, now_ns: int) -> list[Job]:
        """Take the result of the batch: tokens gained, first tokens, ends."""
        if not self.gained and not self.chunks:
            return []
        done = self.advance()
        if self.gained:
            self._lower_ratio()
        for job, _ in self.chunks:
            if job.computed == job.target and self.end_prompt(job, now_ns):
                done.append(job)
        for job in done:
            job.end_ns = now_ns
        return done

    def expect_tokens(self, job: Job) -> int:
        """Expect what a job will still generate: what its client allows, cut off."""
        allowed = max(self.rules.asked_tokens or 0, job.request.output_tokens)
        return min(allowed - job.generated, self.rules.clip_tokens)

    def make_room(self, tokens: int) -> None:
        """Retract requests until those that stay can write so many tokens each."""
        if self._fits(tokens):
            return
        while len(self.running) > 1 and not (self._fits(tokens) and self._has_room()):
            victim = self._choose_victim()
            self.requeue(victim, self.running.leave(victim))
        if self.chunked is not None and not self._fits(tokens):
            victim, self.chunked = self.chunked, None
            self.requeue(victim, victim.computed)
        self._renew_ratio()

    def requeue(self, job: Job, held: int) -> None:
        """Queue a job again that lost its pages."""
        self.lose(job, held)
        self.queue(job)

    def _lower_ratio(self) -> None:
        if self.ratio > self.rules.least_ratio:
            self.ratio = max(self.ratio - self._fall, self.rules.least_ratio)

    def _rest_of_chunked(self) -> int:
        return 0 if self.chunked is None else self.chunked.target - self.chunked.computed

    def _admit(self) -> None:
        """Choose the prompt tokens of this step."""
        rules = self.rules
        budget = rules.chunk_tokens
        if rules.mixed and len(self.running):
            self.make_room(1)
            budget -= len(self.running)
            self._reserved_pages = self.running.count_pages(1)
        free = self._expect_free()
        if self.chunked is not None:
            budget -= self._compute(self.chunked, budget)
        while self.waiting and budget > 0 and self.chunked is None:
            if len(self.running) + len(self.chunks) >= rules.max_running:
                break
            job = self.waiting[0]
            rest = job.target - self.pool.find_cached(job)
            need = rest + self.expect_tokens(job)
            alone = not self.chunks and len(self.running) == 0
            if (need > free and not alone) or (rest > budget and budget < rules.page_tokens):
                break
            free -= need
            self.waiting.popleft()
            self._queued_tokens -= job.target
            self._uncached_tokens -= job.uncached_tokens
            self.begin(job)
            self.chunked = job
            budget -= self._compute(job, budget)

    def _compute(self, job: Job, budget: int) -> int:
        """Compute what fits of a job's prompt; returns what that takes of the budget: all of it if nothing fits."""
        tokens = min(job.target - job.computed, budget)
        if job.computed + tokens < job.target:
            tokens -= (job.computed + tokens) % self.rules.page_tokens
        need = self.pool.count_pages(job.computed + tokens) - self.pool.count_pages(job.computed)
        if tokens <= 0 or need > self.pool.available_pages - self._reserved_pages:
            return budget
        self.pool.extend(job, tokens)
        self.chunks.append((job, tokens))
        if job.computed == job.target:
            self.chunked = None
        return tokens

    def _expect_free(self) -> int:
        """Expect the tokens that running requests will leave."""
        rest = 0 if self.chunked is None else self._rest_of_chunked() + self.expect_tokens(self.chunked)
        free = self.pool.available_pages * self.rules.page_tokens
        return free - rest - int(self.ratio * self.running.expected_tokens)

    def _fits(self, tokens: int) -> bool:
        return self.running.count_pages(tokens) <= self.pool.available_pages

    def _has_room(self) -> bool:
        return self.pool.available_pages * self.rules.page_tokens >= len(self.running) * RETRACT_STEPS

    def _choose_victim(self) -> Job:
        clock = self.running.clock
        jobs = self.running.jobs.values()
        if self.rules.victim == "longest":
            return max(jobs, key=lambda job: (job.base, job.order))
        return min(jobs, key=lambda job: (job.base + clock - job.prompt_tokens, -job.prompt_tokens, -job.order))

    def _renew_ratio(self) -> None:
        """Renew the estimate by what running requests have generated."""
        jobs = self.running.jobs.values()
        made = sum(job.base + self.running.clock - job.prompt_tokens for job in jobs)
        asked = made + self.running.expected_tokens
        self.ratio = min(1.0, (made + RETRACT_STEPS * len(self.running)) / max(asked, 1))
