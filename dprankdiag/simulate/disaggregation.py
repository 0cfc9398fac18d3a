"""Compute prompts on one engine and decode on another: the queues of SGLang's disaggregated roles.

A request goes to both engines at once. The decode rank reserves pages for its KV (prealloc queue), the prefill rank
waits for that (bootstrap queue), computes the prompt, and keeps its pages until the KV has been transferred (inflight
queue); the decode rank waits for the transfer (transfer queue), then decodes. A decode rank that runs out of pages
puts KV aside and brings it back later (retracted queue); it never computes prompts.

Source: sgl-project/sglang@01ac0074, `python/sglang/srt/disaggregation/{prefill,decode}.py`; what counts as waiting, as
release 0.5.23 publishes it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dprankdiag.simulate.jobs import Job
from dprankdiag.simulate.ranks import IDLE, NO_QUEUES, Batch, Levels, Queues
from dprankdiag.simulate.scheduler import SglangRank, SglangRules

RESERVED_TOKENS = 512
"""Tokens kept for each request that decodes. Source: as above, `--num-reserved-decode-tokens`."""


@dataclass(frozen=True, slots=True)
class PrefillRules:
    """How a rank schedules that computes prompts only.

    Attributes:
        base: as a rank that does both.
        transfer_ns: of the KV of any prompt.
        transfer_token_ns: for each of its tokens besides.
    """

    base: SglangRules
    transfer_ns: int = 0
    transfer_token_ns: int = 0

    @property
    def empty_plans(self) -> int:
        """Say how many batches in a row may be empty although there is work that could run."""
        return 0

    def open(self) -> PrefillRank:
        """Make a rank without work."""
        return PrefillRank(self)


@dataclass(frozen=True, slots=True)
class DecodeRules:
    """How a rank schedules that decodes only.

    Attributes:
        base: as a rank that does both; it shares no prefixes.
        reserved_tokens: kept for each request that decodes or is on its way.
    """

    base: SglangRules
    reserved_tokens: int = RESERVED_TOKENS

    @property
    def empty_plans(self) -> int:
        """Say how many batches in a row may be empty although there is work that could run."""
        return 1

    def open(self) -> DecodeRank:
        """Make a rank without work."""
        return DecodeRank(self)


class PrefillRank(SglangRank):
    """A rank that computes prompts and hands their KV on.

    Attributes:
        bootstrap: jobs whose decode rank has no room reserved yet.
        inflight: jobs whose KV is being transferred.
    """

    def __init__(self, rules: PrefillRules) -> None:
        super().__init__(rules.base)
        self.handing = rules
        self.bootstrap: list[Job] = []
        self.inflight: list[Job] = []

    @property
    def busy(self) -> bool:
        """Tell whether it has unfinished requests."""
        return super().busy or bool(self.bootstrap or self.inflight)

    def submit(self, job: Job) -> None:
        """Let a job wait for its decode rank."""
        self.bootstrap.append(job)

    def levels(self, now_ns: int) -> Levels:
        """Tell how full it is: jobs in bootstrap wait, and nothing runs."""
        self._let_go(now_ns)
        _, waiting, uncached, used, total = super().levels(now_ns)
        tokens = sum(job.target for job in self.bootstrap)
        return Levels(0, waiting + len(self.bootstrap), uncached + tokens, used, total + tokens)

    def queues(self, now_ns: int) -> Queues:
        """Count the requests that wait for the decode rank's pages, and those whose KV is on its way."""
        self._let_go(now_ns)
        return NO_QUEUES._replace(bootstrap=len(self.bootstrap), inflight=len(self.inflight))

    def plan(self, now_ns: int, step: int) -> Batch:
        """Form the batch of a step from prompts whose decode rank has room."""
        self._let_go(now_ns)
        for job in self.bootstrap:
            if job.decode is not None and job.decode.reserved_ns is not None:
                self.queue(job)
        self.bootstrap = [job for job in self.bootstrap if job.decode is not None and job.decode.reserved_ns is None]
        return super().plan(now_ns, step)

    def end_prompt(self, job: Job, now_ns: int) -> bool:
        """Begin to hand on a job's KV; its first token goes with it."""
        self.pool.keep(job, job.request.parts, job.computed)
        job.generated = 1
        job.transferred_ns = now_ns + self.handing.transfer_ns + self.handing.transfer_token_ns * job.computed
        if job.decode is not None:
            job.decode.transferred_ns = job.transferred_ns
        self.inflight.append(job)
        return True

    def _let_go(self, now_ns: int) -> None:
        for job in self.inflight:
            if job.transferred_ns is not None and job.transferred_ns <= now_ns:
                self.pool.close(job, job.computed)
        self.inflight = [job for job in self.inflight if job.transferred_ns is None or job.transferred_ns > now_ns]


class DecodeRank(SglangRank):
    """A rank that decodes what others have computed.

    Attributes:
        prealloc: jobs without reserved pages.
        transfer: jobs whose KV is awaited.
        retracted: jobs whose KV was put aside.
    """

    def __init__(self, rules: DecodeRules) -> None:
        super().__init__(rules.base)
        self.keeping = rules
        self.prealloc: deque[Job] = deque()
        self.transfer: list[Job] = []
        self.retracted: deque[Job] = deque()
        self._reserved_now: list[Job] = []
        self._ended: list[Job] = []

    @property
    def busy(self) -> bool:
        """Tell whether it has unfinished requests."""
        return super().busy or bool(self.prealloc or self.transfer or self.retracted)

    def submit(self, job: Job) -> None:
        """Let a job wait for pages."""
        self.prealloc.append(job)

    def levels(self, now_ns: int) -> Levels:
        """Tell how full it is: whatever does not run waits, and no prompt is to be computed."""
        used = self.pool.used_tokens
        queued = sum(job.target for job in self.prealloc) + sum(job.target for job in self.retracted)
        waiting = len(self.prealloc) + len(self.transfer) + len(self.retracted)
        return Levels(len(self.running), waiting, 0, used, used + queued)

    def queues(self, now_ns: int) -> Queues:
        """Count the requests that wait for pages here, for their KV, and for pages to bring KV back."""
        return NO_QUEUES._replace(
            prealloc=len(self.prealloc), transfer=len(self.transfer), retracted=len(self.retracted)
        )

    def plan(self, now_ns: int, step: int) -> Batch:
        """Take in what can be taken in; a pass that took jobs whose KV has come computes nothing."""
        self.chunks, self.gained, self._ended = [], 0, []
        self._resume()
        self._reserve(now_ns)
        if self._receive(now_ns) or len(self.running) == 0:
            return IDLE
        self.make_room(self.acceptance.width)
        self.gained = self.credit.take()
        return self.describe(True, self.acceptance.width)

    def commit(self, now_ns: int) -> list[Job]:
        """Take the result of the batch."""
        return [*super().commit(now_ns), *self._ended]

    def take_reserved(self) -> list[Job]:
        """Give the jobs that got their pages since the last call."""
        reserved, self._reserved_now = self._reserved_now, []
        return reserved

    def requeue(self, job: Job, held: int) -> None:
        """Put a job's KV aside, to be brought back and not computed again."""
        self.pool.close(job, held)
        job.retractions += 1
        job.computed = held
        self.retracted.append(job)

    def _resume(self) -> None:
        while self.retracted:
            job = self.retracted[0]
            if not self._take(job, job.computed):
                return
            self.retracted.popleft()
            self._join(job)

    def _reserve(self, now_ns: int) -> None:
        while self.prealloc and not self.retracted:
            job = self.prealloc[0]
            if not self._take(job, job.prompt_tokens):
                return
            self.prealloc.popleft()
            job.computed = job.prompt_tokens
            job.reserved_ns = now_ns
            self.transfer.append(job)
            self._reserved_now.append(job)

    def _take(self, job: Job, tokens: int) -> bool:
        """Take pages for a job if what the others may still need is left; the only one needs no more than it has."""
        others = len(self.running) + len(self.transfer)
        kept = self.pool.count_pages(self.keeping.reserved_tokens * (others + 1)) if others else 0
        need = self.pool.count_pages(tokens)
        if need + kept > self.pool.available_pages:
            return False
        self.pool.take(need)
        return True

    def _receive(self, now_ns: int) -> int:
        """Let jobs join whose KV has come; returns how many."""
        come = [job for job in self.transfer if job.transferred_ns is not None and job.transferred_ns <= now_ns]
        self.transfer = [job for job in self.transfer if job.transferred_ns is None or job.transferred_ns > now_ns]
        for job in come:
            job.generated, job.first_ns = 1, now_ns
            if job.request.output_tokens == 1:
                job.end_ns = now_ns
                self.pool.close(job, job.computed)
                self._ended.append(job)
            else:
                self._join(job)
        return len(come)

    def _join(self, job: Job) -> None:
        self._orders += 1
        job.order = self._orders
        self.running.join(job, self.expect_tokens(job))
