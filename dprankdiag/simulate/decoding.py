"""Advance the running batch of a rank, all its requests at once.

Every request gains as many tokens a step, so a clock of gained tokens is enough: lengths are sums of base and clock,
and a request ends where the clock reaches its mark. A step costs the same whether one request runs or a thousand.
"""

from __future__ import annotations

import heapq

from dprankdiag.simulate.jobs import Job


class Decoding:
    """Hold the requests that decode.

    Attributes:
        jobs: by number, in order of joining.
        clock: tokens that a request would have gained had it run since the beginning.
    """

    def __init__(self, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.jobs: dict[int, Job] = {}
        self.clock = 0
        self._expected = 0
        self._bases = 0
        self._residues = [0] * page_tokens
        self._ends: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        """Count the requests."""
        return len(self.jobs)

    @property
    def lengths(self) -> int:
        """Sum the requests' tokens, their newest included."""
        return self._bases + len(self.jobs) * self.clock

    @property
    def expected_tokens(self) -> int:
        """Sum the tokens that the requests are still expected to gain."""
        return self._expected - len(self.jobs) * self.clock

    def join(self, job: Job, expected_tokens: int) -> None:
        """Add a request whose prompt is done, which is expected to gain so many tokens more."""
        number = job.request.number
        job.base = job.target - self.clock
        job.mark = self.clock + job.request.output_tokens - job.generated
        self.jobs[number] = job
        self._bases += job.base
        self._residues[job.base % self.page_tokens] += 1
        job.expected = self.clock + expected_tokens
        self._expected += job.expected
        heapq.heappush(self._ends, (job.mark, job.order, number))

    def leave(self, job: Job) -> int:
        """Remove a request; returns the tokens whose KV it holds."""
        del self.jobs[job.request.number]
        self._bases -= job.base
        self._residues[job.base % self.page_tokens] -= 1
        self._expected -= job.expected
        job.generated = min(job.base + self.clock - job.prompt_tokens, job.request.output_tokens)
        return job.base + self.clock - 1

    def count_pages(self, tokens: int) -> int:
        """Count the pages that the batch must be given before every request writes so many tokens."""
        if self.page_tokens == 1:
            return len(self.jobs) * tokens
        crossed = 0
        for written in range(tokens):
            crossed += self._residues[(1 - written - self.clock) % self.page_tokens]
        return crossed

    def find_next(self) -> tuple[Job, int] | None:
        """Find the request that ends next, and the tokens that it still gains; None where none runs."""
        while self._ends:
            mark, order, number = self._ends[0]
            job = self.jobs.get(number)
            if job is not None and job.order == order and job.mark == mark:
                return job, mark - self.clock
            heapq.heappop(self._ends)
        return None

    def advance(self, tokens: int) -> list[Job]:
        """Let every request gain tokens; returns those that end, which are still to leave."""
        self.clock += tokens
        done = []
        while self._ends and self._ends[0][0] <= self.clock:
            mark, order, number = heapq.heappop(self._ends)
            job = self.jobs.get(number)
            if job is not None and job.order == order and job.mark == mark:
                done.append(job)
        return done
