"""Serve requests on workers of several ranks: who is placed where, what each step holds, how long it takes.

The engine is deterministic: equal requests, rules, routers and costs give equal tables.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dprankdiag.model.schema import ABSENT_ID, ABSENT_NS
from dprankdiag.simulate.base import Load, Request, Router
from dprankdiag.simulate.jobs import Job
from dprankdiag.simulate.workers import Group, OpenWorker, Worker, tell_levels
from dprankdiag.simulate.world_tables import (
    BELIEFS,
    DECISIONS,
    PUBLISHES,
    RANK_STEPS,
    REQUESTS,
    STEPS,
    Ledger,
    Outcome,
)


def serve(requests: Sequence[Request], workers: Sequence[Worker], gateway: Router | None = None) -> Outcome:
    """Serve all requests.

    Args:
        requests: by time of arrival.
        gateway: chooses the worker; needed where there are several. It sees each worker's ranks as one load.

    Raises:
        ValueError: requests out of order, or several workers and no gateway.
    """
    if any(later.arrival_ns < earlier.arrival_ns for earlier, later in zip(requests, requests[1:], strict=False)):
        raise ValueError("requests are expected in order of arrival")
    if gateway is None and len(workers) > 1:
        raise ValueError(f"{len(workers)} workers need a gateway to choose among them")
    return _World(workers, gateway).run(requests)


@dataclass(slots=True)
class _Ledgers:
    steps: Ledger
    rank_steps: Ledger
    decisions: Ledger
    beliefs: Ledger
    publishes: Ledger
    requests: Ledger


class _World:
    """Run events in order of time; at equal times arrivals come first, then passes in the order they were set."""

    def __init__(self, workers: Sequence[Worker], gateway: Router | None) -> None:
        self.gateway = gateway
        self.tables = _Ledgers(*(Ledger(table) for table in (STEPS, RANK_STEPS, DECISIONS, BELIEFS, PUBLISHES, REQUESTS)))
        self.workers = [OpenWorker(worker, number, self.tables.publishes) for number, worker in enumerate(workers)]
        self.jobs: list[Job] = []
        self._passes: list[tuple[int, int, Group]] = []
        self._orders = 0
        self._steps = 0
        self._decisions = 0

    def run(self, requests: Sequence[Request]) -> Outcome:
        passes = self._passes
        for request in requests:
            while passes and passes[0][0] < request.arrival_ns:
                now_ns, _, group = heapq.heappop(passes)
                self._pass(now_ns, group)
            self._arrive(request)
        while passes:
            now_ns, _, group = heapq.heappop(passes)
            self._pass(now_ns, group)
        return self._close()

    def _arrive(self, request: Request) -> None:
        now_ns = request.arrival_ns
        worker = self.workers[self._choose_worker(now_ns, request)]
        rank = self._choose_rank(now_ns, worker, request)
        job = Job(request, request.prompt_tokens, worker.number, rank, now_ns)
        self.jobs.append(job)
        worker.ranks[rank].submit(job)
        if job.refused:
            worker.spec.router.release(now_ns, request, rank)
            return
        group = worker.groups_of_ranks[rank]
        worker.note_change(now_ns, rank)
        if group.asleep:
            group.asleep = False
            self._set_pass(now_ns, group)

    def _choose_worker(self, now_ns: int, request: Request) -> int:
        if self.gateway is None:
            return 0
        self.gateway.observe(now_ns, [worker.sum_visible(now_ns) for worker in self.workers])
        believed = list(self.gateway.believed())
        free = request if request.pinned_rank is None else replace(request, pinned_rank=None)
        chosen = self.gateway.place(now_ns, free)
        self._decide(now_ns, request, chosen, None, believed, [worker.sum_true(now_ns) for worker in self.workers])
        return chosen

    def _choose_rank(self, now_ns: int, worker: OpenWorker, request: Request) -> int:
        router = worker.spec.router
        worker.tell_router(now_ns)
        believed = list(router.believed())
        rank = router.place(now_ns, request)
        true = [served.load(now_ns) for served in worker.ranks]
        self._decide(now_ns, request, worker.number, rank, believed, true)
        return rank

    def _decide(
        self,
        now_ns: int,
        request: Request,
        worker: int,
        rank: int | None,
        believed: Sequence[Load | None],
        true: Sequence[Load],
    ) -> None:
        """Write down a choice and what it was made on."""
        number, self._decisions = self._decisions, self._decisions + 1
        place = ABSENT_ID if rank is None else rank
        pinned = int(rank is not None and request.pinned_rank is not None)
        self.tables.decisions.write([number, now_ns, request.number, worker, place, pinned])
        rows = []
        for choice, (belief, truth) in enumerate(zip(believed, true, strict=True)):
            rows.append([number, choice, *_tell_belief(now_ns, belief), *tell_levels(truth)])
        self.tables.beliefs.write(np.array(rows, np.int64).T)

    def _set_pass(self, now_ns: int, group: Group) -> None:
        self._orders += 1
        heapq.heappush(self._passes, (now_ns, self._orders, group))

    def _pass(self, now_ns: int, group: Group) -> None:
        """Take the result of a group's step and begin its next."""
        worker = group.worker
        if group.batches:
            for job in group.commit(now_ns):
                worker.spec.router.release(now_ns, job.request, job.rank)
                if self.gateway is not None:
                    self.gateway.release(now_ns, job.request, worker.number)
        if not group.plan(now_ns):
            group.asleep = True
            group.publish_idle(now_ns)
            return
        total_ns = group.time(now_ns, self._steps, self.tables.steps, self.tables.rank_steps)
        self._steps += 1
        self._set_pass(now_ns + total_ns, group)

    def _close(self) -> Outcome:
        for job in self.jobs:
            self.tables.requests.write(_describe(job))
        return Outcome(
            self.tables.steps.close(),
            self.tables.rank_steps.close(),
            self.tables.requests.close(),
            self.tables.decisions.close(),
            self.tables.beliefs.close(),
            self.tables.publishes.close(),
        )


def _tell_belief(now_ns: int, load: Load | None) -> list[int]:
    if load is None:
        return [ABSENT_NS] * 6
    return [now_ns - load.stamp_ns, *tell_levels(load)]


def _describe(job: Job) -> list[int]:
    request = job.request
    return [
        request.number,
        job.worker,
        job.rank,
        job.worker,
        job.rank,
        request.arrival_ns,
        job.placed_ns,
        ABSENT_NS if job.first_ns is None else job.first_ns,
        ABSENT_NS if job.end_ns is None else job.end_ns,
        job.prompt_tokens,
        job.generated,
        ABSENT_NS if job.cached_tokens is None else job.cached_tokens,
        job.recomputed_tokens,
        job.retractions,
        int(job.refused),
    ]
