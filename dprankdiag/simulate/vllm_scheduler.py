"""Schedule one rank as vLLM does: one budget of tokens a step, decodes first, then prompts in chunks.

Source: vllm 0.33.0, `vllm/v1/core/sched/scheduler.py`: a request is admitted if the pages of its next chunk are free;
where a running request finds none, the newest one is preempted, goes to the head of the queue and recomputes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dprankdiag.simulate.jobs import Job
from dprankdiag.simulate.kv_pool import KvPool
from dprankdiag.simulate.ranks import WITHOUT_DRAFTS, Acceptance, Batch, Levels, PooledRank


@dataclass(frozen=True, slots=True)
class VllmRules:
    """How a rank schedules.

    Attributes:
        capacity_tokens: KV tokens of its pool.
        page_tokens: of a block.
        budget_tokens: rows and prompt tokens a step at most.
        max_running: requests that run at once.
        share_prefixes: it keeps computed prompts.
        prefill_every: new prompts begin only in steps of this multiple, alike on all ranks.

    Source: vllm 0.33.0, `--max-num-batched-tokens`, `--max-num-seqs`, `--prefill-schedule-interval`.
    """

    capacity_tokens: int
    page_tokens: int = 16
    budget_tokens: int = 8192
    max_running: int = 1024
    share_prefixes: bool = True
    prefill_every: int = 1
    acceptance: Acceptance = WITHOUT_DRAFTS

    def __post_init__(self) -> None:
        """Refuse a budget that running requests alone could exceed.

        Raises:
            ValueError: it could.
        """
        if self.max_running * self.acceptance.width > self.budget_tokens:
            raise ValueError(f"{self.max_running} running requests exceed a budget of {self.budget_tokens} tokens")

    @property
    def empty_plans(self) -> int:
        """Say how many batches in a row may be empty although there is work that could run."""
        return self.prefill_every - 1

    def open(self) -> VllmRank:
        """Make a rank without work."""
        return VllmRank(self)


class VllmRank(PooledRank):
    """A rank with one budget for all.

    Attributes:
        waiting: jobs not yet admitted, those preempted before the others.
        computing: jobs whose prompts are part computed, in order of admission.
    """

    def __init__(self, rules: VllmRules) -> None:
        super().__init__(KvPool(rules.capacity_tokens, rules.page_tokens, rules.share_prefixes), rules.acceptance)
        self.rules = rules
        self.waiting: deque[Job] = deque()
        self.computing: list[Job] = []
        self._queued_tokens = 0

    @property
    def busy(self) -> bool:
        """Tell whether it has unfinished requests."""
        return bool(self.waiting or self.computing or self.running.jobs)

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._queued_tokens += job.target
        self.waiting.append(job)

    def levels(self, now_ns: int) -> Levels:
        """Tell how full it is; prompts part computed run."""
        used = self.pool.used_tokens
        uncached = self._queued_tokens + sum(job.target - job.computed for job in self.computing)
        running = len(self.running) + len(self.computing)
        return Levels(running, len(self.waiting), uncached, used, used + self._queued_tokens)

    def plan(self, now_ns: int, step: int) -> Batch:
        """Form the batch of a step."""
        self.chunks, self.gained = [], 0
        width = self.acceptance.width
        self._make_room(width)
        rows = len(self.running)
        reserved = self.running.count_pages(width)
        budget = self.rules.budget_tokens - rows * width
        for job in tuple(self.computing):
            budget -= self._compute(job, budget, reserved) if job in self.computing else 0
        if step % self.rules.prefill_every == 0:
            self._admit(budget, reserved)
        if rows:
            self.gained = self.credit.take()
        return self.describe(rows > 0, width)

    def commit(self, now_ns: int) -> list[Job]:
        """Take the result of the batch: tokens gained, first tokens, ends."""
        done = self.advance()
        for job, _ in self.chunks:
            if job.computed == job.target:
                self.computing.remove(job)
                if self.end_prompt(job, now_ns):
                    done.append(job)
        for job in done:
            job.end_ns = now_ns
        return done

    def _admit(self, budget: int, reserved: int) -> None:
        while self.waiting and budget > 0 and len(self.running) + len(self.computing) < self.rules.max_running:
            job = self.waiting[0]
            cached = self.pool.find_cached(job)
            tokens = min(job.target - cached, budget)
            # All pages count, the cached ones too: those that nobody holds cannot be evicted once this job holds them.
            if self.pool.count_pages(cached + tokens) > self.pool.available_pages - reserved:
                return
            self.waiting.popleft()
            self._queued_tokens -= job.target
            self.begin(job)
            self.computing.append(job)
            budget -= self._compute(job, budget, reserved)

    def _compute(self, job: Job, budget: int, reserved: int) -> int:
        """Compute what fits of a job's prompt; returns the tokens."""
        tokens = min(job.target - job.computed, budget)
        while (room := self._measure_room(job, reserved)) <= 0 < tokens and self.computing[-1] is not job:
            newest = self.computing.pop()
            self._requeue(newest, newest.computed)
        tokens = min(tokens, room)
        if tokens <= 0:
            return 0
        self.pool.extend(job, tokens)
        self.chunks.append((job, tokens))
        return tokens

    def _measure_room(self, job: Job, reserved: int) -> int:
        """Count the tokens that a job can compute with the pages that it has and those that are left."""
        held = self.pool.count_pages(job.computed)
        return (held + self.pool.available_pages - reserved) * self.rules.page_tokens - job.computed

    def _make_room(self, tokens: int) -> None:
        """Preempt the newest until the others can write so many tokens each."""
        while self.running.jobs and self.running.count_pages(tokens) > self.pool.available_pages:
            newest = max(self.running.jobs.values(), key=lambda job: job.order)
            if self.computing and self.computing[-1].order > newest.order:
                newest = self.computing.pop()
                self._requeue(newest, newest.computed)
            else:
                self._requeue(newest, self.running.leave(newest))

    def _requeue(self, job: Job, held: int) -> None:
        self.lose(job, held)
        self._queued_tokens += job.target
        self.waiting.appendleft(job)
