"""Serve requests on workers of several ranks: who is placed where, what each step holds, how long it takes.

The engine is deterministic: equal requests, rules, routers and costs give equal tables.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from dprankdiag.model.schema import ABSENT_ID, ABSENT_NS
from dprankdiag.simulate.base import Load, Request, Router
from dprankdiag.simulate.disaggregation import DecodeRank
from dprankdiag.simulate.groups import Group
from dprankdiag.simulate.jobs import Job
from dprankdiag.simulate.ranks import Levels, Rank
from dprankdiag.simulate.workers import OpenWorker, StepLedgers, Worker, tell_levels
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


def serve(
    requests: Sequence[Request],
    workers: Sequence[Worker],
    gateway: Router | None = None,
    decoders: Sequence[Worker] = (),
    decode_gateway: Router | None = None,
) -> Outcome:
    """Serve all requests.

    Args:
        requests: by time of arrival.
        workers: engines, numbered from 0; with `decoders` they compute prompts only.
        gateway: chooses the worker; needed where there are several. It sees each worker's ranks as one load.
        decoders: engines that decode what the workers computed, numbered on.
        decode_gateway: chooses among them, counting from 0.

    Raises:
        ValueError: requests out of order, several workers and no gateway, or a request follows one that never ends.
        RuntimeError: a request was neither served nor refused, which is a defect.
    """
    if any(later.arrival_ns < earlier.arrival_ns for earlier, later in pairwise(requests)):
        raise ValueError("requests are expected in order of arrival")
    for those, chooser in ((workers, gateway), (decoders, decode_gateway)):
        if chooser is None and len(those) > 1:
            raise ValueError(f"{len(those)} workers need a gateway to choose among them")
    return _World(_Pool(workers, 0, gateway), _Pool(decoders, len(workers), decode_gateway)).run(requests)


class _Pool:
    """Engines of one role, and who chooses among them.

    Attributes:
        first: the number of the first of them.
    """

    def __init__(self, specs: Sequence[Worker], first: int, gateway: Router | None) -> None:
        self.specs = specs
        self.first = first
        self.gateway = gateway
        self.workers: list[OpenWorker] = []

    def open(self, tables: StepLedgers) -> list[OpenWorker]:
        """Make the workers, without work."""
        self.workers = [OpenWorker(spec, self.first + place, tables) for place, spec in enumerate(self.specs)]
        return self.workers


class _Ledgers:
    """The tables of a world as they are written."""

    def __init__(self) -> None:
        self.of_workers = StepLedgers(Ledger(STEPS), Ledger(RANK_STEPS), Ledger(PUBLISHES))
        self.decisions, self.beliefs, self.requests = Ledger(DECISIONS), Ledger(BELIEFS), Ledger(REQUESTS)

    def close(self) -> Outcome:
        steps, ranks, publishes = self.of_workers.steps, self.of_workers.rank_steps, self.of_workers.publishes
        tables = (steps, ranks, self.requests, self.decisions, self.beliefs, publishes)
        return Outcome(*(table.close() for table in tables))


class _World:
    """Run events in order of time; at equal times arrivals come first, then passes in the order they were set."""

    def __init__(self, front: _Pool, back: _Pool) -> None:
        self.tables = _Ledgers()
        self.front, self.back = front, back
        self.workers = [*front.open(self.tables.of_workers), *back.open(self.tables.of_workers)]
        self.jobs: list[Job] = []
        self._prompts: dict[int, Job] = {}
        self._passes: list[tuple[int, int, Group, bool]] = []
        self._orders = 0
        self._arrivals: list[tuple[int, int, Request]] = []
        self._followers: dict[int, list[tuple[int, Request]]] = {}
        self._steps = 0
        self._decisions = 0

    def run(self, requests: Sequence[Request]) -> Outcome:
        passes, arrivals = self._passes, self._arrivals
        for place, request in enumerate(requests):
            if request.follows is None:
                arrivals.append((request.arrival_ns, place, request))
            else:
                self._followers.setdefault(request.follows, []).append((place, request))
        heapq.heapify(arrivals)
        while passes or arrivals:
            if arrivals and (not passes or arrivals[0][0] <= passes[0][0]):
                self._arrive(heapq.heappop(arrivals)[2])
            else:
                self._happen(*heapq.heappop(passes))
        return self._close()

    def _let_follow(self, now_ns: int, number: int) -> None:
        """Let the requests come whose clients awaited the end of one."""
        for place, request in self._followers.pop(number, ()):
            at_ns = max(request.arrival_ns, now_ns + request.think_ns)
            heapq.heappush(self._arrivals, (at_ns, place, replace(request, arrival_ns=at_ns)))

    def _happen(self, now_ns: int, order: int, group: Group, alarm: bool) -> None:
        if alarm:
            self._wake(now_ns, group)
        else:
            self._pass(now_ns, group)

    def _arrive(self, request: Request) -> None:
        now_ns = request.arrival_ns
        if self.back.workers and request.bootstrap_room is None:
            request = replace(request, bootstrap_room=_draw_room(request.number))
        job = self._place(now_ns, self.front, request)
        jobs = [job]
        if self.back.workers:
            job.decode = self._place(now_ns, self.back, request)
            self._prompts[request.number] = job
            jobs = [job.decode, job]
        self.jobs.append(job)
        if not all(self._rank_of(each).can_hold(each) for each in jobs):
            for each in jobs:
                each.refused = True
                self._release(now_ns, each)
            self._let_follow(now_ns, request.number)
            return
        for each in jobs:
            self._rank_of(each).submit(each)
            self.workers[each.worker].note_change(now_ns, each.rank)
            self._wake(now_ns, self._group_of(each))

    def _place(self, now_ns: int, pool: _Pool, request: Request) -> Job:
        """Choose worker and rank of a request."""
        worker = pool.workers[self._choose_worker(now_ns, pool, request)]
        rank = self._choose_rank(now_ns, worker, request)
        return Job(request, request.prompt_tokens, worker.number, rank, now_ns)

    def _rank_of(self, job: Job) -> Rank:
        return self.workers[job.worker].ranks[job.rank]

    def _group_of(self, job: Job) -> Group:
        return self.workers[job.worker].groups_of_ranks[job.rank]

    def _release(self, now_ns: int, job: Job) -> None:
        """Tell those who chose that a job has left its rank."""
        self.workers[job.worker].spec.router.release(now_ns, job.request, job.rank)
        pool = self.front if job.worker < self.back.first else self.back
        if pool.gateway is not None:
            pool.gateway.release(now_ns, job.request, job.worker - pool.first)

    def _wake(self, now_ns: int, group: Group) -> None:
        if group.asleep:
            group.asleep = False
            self._set_pass(group.find_wake(now_ns), group)

    def _choose_worker(self, now_ns: int, pool: _Pool, request: Request) -> int:
        """Choose a worker of a pool, counting from its first."""
        gateway = pool.gateway
        if gateway is None:
            return 0
        gateway.observe(now_ns, [worker.sum_visible(now_ns) for worker in pool.workers])
        believed = list(gateway.believed())
        free = request if request.pinned_rank is None else replace(request, pinned_rank=None)
        chosen = gateway.place(now_ns, free)
        true = [worker.sum_true(now_ns) for worker in pool.workers]
        self._decide(now_ns, request, pool.first + chosen, None, believed, true)
        return chosen

    def _choose_rank(self, now_ns: int, worker: OpenWorker, request: Request) -> int:
        router = worker.spec.router
        worker.tell_router(now_ns)
        believed = list(router.believed())
        rank = router.place(now_ns, request)
        true = [served.levels(now_ns) for served in worker.ranks]
        self._decide(now_ns, request, worker.number, rank, believed, true)
        return rank

    def _decide(
        self,
        now_ns: int,
        request: Request,
        worker: int,
        rank: int | None,
        believed: Sequence[Load | None],
        true: Sequence[Levels],
    ) -> None:
        """Write down a choice and what it was made on."""
        number, self._decisions = self._decisions, self._decisions + 1
        place = ABSENT_ID if rank is None else rank
        pinned = int(rank is not None and request.pinned_rank is not None)
        self.tables.decisions.add((number, now_ns, request.number, worker, place, pinned))
        for choice, (belief, truth) in enumerate(zip(believed, true, strict=True)):
            self.tables.beliefs.add((number, choice, *_tell_belief(now_ns, belief), *truth))

    def _set_pass(self, now_ns: int, group: Group, alarm: bool = False) -> None:
        self._orders += 1
        heapq.heappush(self._passes, (now_ns, self._orders, group, alarm))

    def _pass(self, now_ns: int, group: Group) -> None:
        """Take the result of a group's step and begin its next."""
        if group.batches:
            self._end(now_ns, group.commit(now_ns))
            if not group.goes_on(now_ns):
                self._rest(now_ns, group)
                return
        planned = group.plan(now_ns)
        self._end(now_ns, group.take_ended())
        self._hand_on(now_ns, group)
        if not planned:
            self._rest(now_ns, group)
            return
        end_ns = group.time(now_ns, self._steps)
        self._steps += 1
        self._set_pass(end_ns, group)

    def _rest(self, now_ns: int, group: Group) -> None:
        group.asleep = True
        group.publish_idle(now_ns)
        if group.wave is not None and group.busy:
            self._wake(now_ns, group)

    def _end(self, now_ns: int, jobs: list[Job]) -> None:
        for job in jobs:
            self._release(now_ns, job)
            if job.decode is None:
                self._let_follow(now_ns, job.request.number)
            if job.decode is not None and job.transferred_ns is not None:
                for each in (job, job.decode):
                    self._set_pass(job.transferred_ns, self._group_of(each), alarm=True)

    def _hand_on(self, now_ns: int, group: Group) -> None:
        """Wake the ranks that compute the prompts for which a rank of the group has reserved pages."""
        for rank in group.ranks:
            if isinstance(rank, DecodeRank):
                for job in rank.take_reserved():
                    self._wake(now_ns, self._group_of(self._prompts[job.request.number]))

    def _close(self) -> Outcome:
        if self._followers:
            raise ValueError(f"requests follow {sorted(self._followers)[:5]}, which never ended")
        for job in self.jobs:
            served = job.decode or job
            if served.end_ns is None and not served.refused:
                raise RuntimeError(f"request {job.request.number} was left unserved")
            self.tables.requests.add(_describe(job))
        return self.tables.close()


def _tell_belief(now_ns: int, load: Load | None) -> tuple[int, ...]:
    if load is None:
        return (ABSENT_NS,) * 6
    return (now_ns - load.stamp_ns, *tell_levels(load))


def _draw_room(number: int) -> int:
    """Draw the room of a request as evenly as a gateway would at random (the multiplier of Fibonacci hashing)."""
    return (number + 1) * 0x9E3779B97F4A7C15 % 2**64 >> 1


def _describe(prompt: Job) -> tuple[int, ...]:
    job = prompt.decode or prompt
    request = job.request
    return (
        request.number,
        job.worker,
        job.rank,
        prompt.worker,
        prompt.rank,
        request.arrival_ns,
        job.placed_ns,
        ABSENT_NS if job.reserved_ns is None else job.reserved_ns,
        ABSENT_NS if job.transferred_ns is None else job.transferred_ns,
        ABSENT_NS if job.first_ns is None else job.first_ns,
        ABSENT_NS if job.end_ns is None else job.end_ns,
        job.prompt_tokens,
        job.generated,
        ABSENT_NS if prompt.cached_tokens is None else prompt.cached_tokens,
        prompt.recomputed_tokens,
        job.retractions,
        int(job.refused),
    )
