"""Schedule one rank as SGLang does: prompts first, in chunks; decode otherwise; retract when the pool is full.

Source: sgl-project/sglang@01ac0074, `python/sglang/srt/managers/{scheduler,schedule_policy,schedule_batch}.py`: a
request is admitted if its prompt and what it is expected to generate fit beside what running requests are expected to
generate; victims are those that generated least, the longest prompt first; after a retraction the estimate is renewed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from dprankdiag.simulate.base import Load, Mode
from dprankdiag.simulate.decoding import Decoding
from dprankdiag.simulate.jobs import Job
from dprankdiag.simulate.kv_pool import KvPool

Victim = Literal["newest", "longest"]
"""Which request loses its place: the one that generated least, or the one that holds most, which thrashes."""

RETRACT_STEPS = 20
"""Steps for which a retraction makes room. Source: as above, `retract_decode`."""


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

    def submit(self, job: Job) -> None:
        """Queue a job, or refuse it."""

    def plan(self, now_ns: int, step: int) -> Batch:
        """Form the batch of a step that begins now."""

    def commit(self, now_ns: int) -> list[Job]:
        """Take the result of the batch that was planned; returns the jobs that ended."""

    def load(self, now_ns: int) -> Load:
        """Tell the load as it is."""

    @property
    def busy(self) -> bool:
        """Tell whether it has unfinished requests."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How many tokens requests of a rank gain a step under speculative decoding.

    Attributes:
        width: rows verified of each request.
        mean_tokens: gained on the mean, 1 to `width`.
    """

    width: int = 1
    mean_tokens: float = 1.0


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
    acceptance: Acceptance = Acceptance()

    def open(self) -> SglangRank:
        """Make a rank without work."""
        return SglangRank(self)


class RankRules(Protocol):
    """How a rank schedules."""

    def open(self) -> Rank:
        """Make a rank without work."""


class SglangRank:
    """A rank that puts prompts first.

    Attributes:
        waiting: jobs not yet admitted.
        chunked: the job whose prompt is part computed.
        running: the jobs that decode.
    """

    def __init__(self, rules: SglangRules) -> None:
        self.rules = rules
        self.pool = KvPool(rules.capacity_tokens, rules.page_tokens, rules.share_prefixes)
        self.waiting: deque[Job] = deque()
        self.chunked: Job | None = None
        self.running = Decoding(rules.page_tokens)
        self.ratio = rules.new_token_ratio
        self._queued_tokens = 0
        self._uncached_tokens = 0
        self._orders = 0
        self._chunks: list[tuple[Job, int]] = []
        self._reserved_pages = 0
        self._decodes = False
        self._gained = 0
        self._credit = 0.0

    @property
    def busy(self) -> bool:
        """Tell whether it has unfinished requests."""
        return bool(self.waiting or self.chunked is not None or self.running.jobs)

    def submit(self, job: Job) -> None:
        """Queue a job; one that the pool can never hold is refused."""
        most = job.prompt_tokens + job.request.output_tokens + self.rules.acceptance.width
        if self.pool.count_pages(most) > self.pool.capacity_pages:
            job.refused = True
            return
        self._queue(job)

    def load(self, now_ns: int) -> Load:
        """Tell the load as it is; the job whose prompt is part computed counts neither as running nor as waiting."""
        used = self.pool.used_tokens
        return Load(
            now_ns,
            len(self.running),
            len(self.waiting),
            self._uncached_tokens + self._rest_of_chunked(),
            used,
            used + self._queued_tokens,
            self.pool.capacity_pages * self.rules.page_tokens,
        )

    def plan(self, now_ns: int, step: int) -> Batch:
        """Form the batch of a step: prompts if any can be computed, else a decode step."""
        self._chunks, self._decodes, self._gained, self._reserved_pages = [], False, 0, 0
        if self.waiting or self.chunked is not None:
            self._admit()
        if self._chunks:
            return self._describe_extend()
        if len(self.running) == 0:
            return IDLE
        self._make_room(self.rules.acceptance.width)
        self._decodes = True
        self._gained = self._accept()
        return self._describe_decode(self.rules.acceptance.width)

    def commit(self, now_ns: int) -> list[Job]:
        """Take the result of the batch: tokens gained, first tokens, ends."""
        done = []
        if self._decodes:
            done = self._advance(self._gained)
        for job, _ in self._chunks:
            if job.computed == job.target and self._end_prompt(job, now_ns):
                done.append(job)
        for job in done:
            job.end_ns = now_ns
        return done

    def _queue(self, job: Job) -> None:
        job.uncached_tokens = job.target - self.pool.find_cached(job)
        self._queued_tokens += job.target
        self._uncached_tokens += job.uncached_tokens
        self.waiting.append(job)

    def _rest_of_chunked(self) -> int:
        return 0 if self.chunked is None else self.chunked.target - self.chunked.computed

    def _admit(self) -> None:
        """Choose the prompt tokens of this step."""
        rules = self.rules
        budget = rules.chunk_tokens
        if rules.mixed and len(self.running):
            budget -= len(self.running)
            self._make_room(1)
            self._reserved_pages = self.running.count_pages(1)
        free = self._expect_free()
        if self.chunked is not None:
            budget -= self._compute(self.chunked, budget)
        while self.waiting and budget > 0 and self.chunked is None:
            if len(self.running) + len(self._chunks) >= rules.max_running:
                break
            job = self.waiting[0]
            cached = self.pool.find_cached(job)
            need = job.target - cached + self._expect(job)
            alone = not self._chunks and len(self.running) == 0
            if need > free and not alone:
                break
            if job.target - cached > budget and budget < rules.page_tokens:
                break
            free -= need
            self._begin(self.waiting.popleft())
            budget -= self._compute(job, budget)

    def _begin(self, job: Job) -> None:
        self._queued_tokens -= job.target
        self._uncached_tokens -= job.uncached_tokens
        self._orders += 1
        job.order = self._orders
        self.pool.open(job)
        if job.cached_tokens is None:
            job.cached_tokens = job.computed
        self.chunked = job

    def _compute(self, job: Job, budget: int) -> int:
        """Compute what fits of a job's prompt; returns the tokens."""
        tokens = min(job.target - job.computed, budget)
        if job.computed + tokens < job.target:
            tokens -= (job.computed + tokens) % self.rules.page_tokens
        need = self.pool.count_pages(job.computed + tokens) - self.pool.count_pages(job.computed)
        if tokens <= 0 or need > self.pool.available_pages - self._reserved_pages:
            return budget
        self.pool.extend(job, tokens)
        self._chunks.append((job, tokens))
        if job.computed == job.target:
            self.chunked = None
        return tokens

    def _expect(self, job: Job) -> int:
        """Expect what a job will still generate."""
        asked = self.rules.asked_tokens
        allowed = job.request.output_tokens if asked is None else min(asked, self.rules.clip_tokens)
        return max(allowed, job.request.output_tokens) - job.generated

    def _expect_free(self) -> int:
        """Expect the tokens that running requests will leave."""
        rest = 0 if self.chunked is None else self._rest_of_chunked() + self._expect(self.chunked)
        free = self.pool.available_pages * self.rules.page_tokens
        return free - rest - int(self.ratio * self.running.expected_tokens)

    def _describe_extend(self) -> Batch:
        tokens = pairs = prefix = 0
        for job, count in self._chunks:
            before = job.computed - count
            tokens += count
            pairs += count * before + count * (count + 1) // 2
            prefix = max(prefix, before)
        probe = all(job.request.probe for job, _ in self._chunks)
        if not (self.rules.mixed and len(self.running)):
            return Batch("extend", len(self._chunks), 0, 0, 0, tokens, pairs, prefix, probe)
        self._decodes, self._gained = True, 1
        rows, lengths = len(self.running), self.running.lengths
        return Batch("mixed", rows + len(self._chunks), rows, lengths, lengths, tokens, pairs, prefix)

    def _describe_decode(self, width: int) -> Batch:
        rows, lengths = len(self.running), self.running.lengths
        if width == 1:
            return Batch("decode", rows, rows, lengths, lengths, 0, 0)
        pairs = width * lengths + rows * width * (width - 1) // 2
        return Batch("verify", rows, rows * width, pairs, lengths + rows * (width - 1), 0, 0)

    def _accept(self) -> int:
        """Say how many tokens each request gains: whole numbers whose mean is the rank's acceptance."""
        self._credit += self.rules.acceptance.mean_tokens
        gained = max(1, int(self._credit))
        self._credit -= gained
        return gained

    def _advance(self, tokens: int) -> list[Job]:
        self.pool.take(self.running.count_pages(tokens))
        done = self.running.advance(tokens)
        for job in done:
            held = self.running.leave(job)
            if job.request.output_key is not None:
                self.pool.keep(job, job.answered_parts, held)
            self.pool.close(job, held)
        self.ratio = max(self.ratio - self._fall, self.rules.least_ratio)
        return done

    @property
    def _fall(self) -> float:
        return (self.rules.new_token_ratio - self.rules.least_ratio) / self.rules.ratio_steps

    def _end_prompt(self, job: Job, now_ns: int) -> bool:
        """Give a job its next token; returns whether it was the last."""
        self.pool.keep(job, job.request.parts, job.computed)
        job.generated += 1
        if job.first_ns is None:
            job.first_ns = now_ns
        if job.generated == job.request.output_tokens:
            self.pool.close(job, job.computed)
            return True
        self.running.join(job, self._expect(job))
        return False

    def _make_room(self, tokens: int) -> None:
        """Retract requests until those that stay can write so many tokens each."""
        if self._fits(tokens):
            return
        while len(self.running) > 1 and not (self._fits(tokens) and self._has_room()):
            self._retract(self._choose_victim())
        if self.chunked is not None and not self._fits(tokens):
            self._drop_chunked(self.chunked)
        self._renew_ratio()

    def _fits(self, tokens: int) -> bool:
        return self.running.count_pages(tokens) <= self.pool.available_pages

    def _has_room(self) -> bool:
        need = len(self.running) * RETRACT_STEPS
        return self.pool.available_pages * self.rules.page_tokens >= need

    def _choose_victim(self) -> Job:
        clock = self.running.clock
        jobs = self.running.jobs.values()
        if self.rules.victim == "longest":
            return max(jobs, key=lambda job: (job.base, job.order))
        return min(jobs, key=lambda job: (job.base + clock - job.prompt_tokens, -job.prompt_tokens, -job.order))

    def _retract(self, job: Job) -> None:
        self._requeue(job, self.running.leave(job))

    def _drop_chunked(self, job: Job) -> None:
        self.chunked = None
        self._requeue(job, job.computed)

    def _requeue(self, job: Job, held: int) -> None:
        self.pool.close(job, held)
        job.retractions += 1
        job.recomputed_tokens += held
        job.computed = 0
        self._queue(job)

    def _renew_ratio(self) -> None:
        """Renew the estimate by what running requests have generated."""
        jobs = self.running.jobs.values()
        made = sum(job.base + self.running.clock - job.prompt_tokens for job in jobs)
        asked = made + self.running.expected_tokens
        self.ratio = min(1.0, (made + RETRACT_STEPS * len(self.running)) / max(asked, 1))
