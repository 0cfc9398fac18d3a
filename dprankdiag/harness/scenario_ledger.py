"""Hold what gateways, controllers and schedulers of a scenario believed at each dispatch against what was true."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median_low
from typing import cast

import numpy as np

from dprankdiag.harness.scenario import Deployment, Scenario
from dprankdiag.harness.scenario_tracks import Book, draw_tracks
from dprankdiag.harness.scenario_truths import HeldRequests, list_capacities, take_levels
from dprankdiag.model.dispatches import (
    KIND,
    SCHEMA_VERSION,
    Belief,
    Dispatch,
    LedgerRecord,
    LedgerRun,
    LedgerTotals,
    RankLoad,
    Role,
)
from dprankdiag.model.schema import ABSENT_ID
from dprankdiag.simulate.base import Load, Router
from dprankdiag.simulate.decisions import AccountableRouter, Decision, LedgerError, Measure, judge_decisions
from dprankdiag.simulate.routers.ours import UncachedTokens
from dprankdiag.simulate.routers.sglang import count_requests
from dprankdiag.simulate.routers.vllm import measure_four_waiting, measure_kv
from dprankdiag.simulate.workers import Worker
from dprankdiag.simulate.world_tables import Outcome

AS_IT_IS, CURED = "as it is", "cured"
GATEWAY, SCHEDULER = "gateway", "scheduler"
ROUTERS = {"sglang": "controller", "vllm": "front end"}
"""What the router inside an engine is called."""
_COMPARED: dict[Measure, str] = {count_requests: "requests", measure_kv: "points", measure_four_waiting: "points"}
"""What a policy compares first, in words; of all others tokens. Points are vLLM's score."""


def record_ledgers(scenario: Scenario) -> LedgerRecord:
    """Serve a scenario as it is and with its cure, and hold the ledgers of both against the truth."""
    router = ROUTERS[scenario.engine]
    runs = tuple(account(name, scenario.deploy(name == CURED), router) for name in (AS_IT_IS, CURED))
    return LedgerRecord(KIND, SCHEMA_VERSION, scenario.name, scenario.title, scenario.why, scenario.cure, runs)


def account(name: str, deployment: Deployment, router: str) -> LedgerRun:
    """Serve a deployment and hold its ledgers against the truth.

    Args:
        name: of the deployment.
        router: what the router inside a worker is called.

    Raises:
        ValueError: a router did not keep its decisions.
    """
    outcome = deployment.serve()
    held = HeldRequests(outcome)
    books = [book for pool in _list_pools(deployment) for book in pool.open(outcome, held, router)]
    ledgers = dict.fromkeys(book.ledger for book in books)
    dispatches = tuple(_list_dispatches(books))
    totals = [_sum_up(ledger, [book for book in books if book.ledger == ledger]) for ledger in ledgers]
    return LedgerRun(
        name=name,
        router=router,
        waiting_ratio=_share_waits(outcome),
        totals=(*totals, _sum_up_schedulers(dispatches)),
        dispatches=dispatches,
        tracks=tuple(track for book in books for track in draw_tracks(book, outcome, held)),
    )


class _Pool:
    """Engines of one role, and who chooses among them."""

    def __init__(self, workers: Sequence[Worker], first: int, gateway: Router | None, role: Role | None) -> None:
        self._workers = workers
        self._first = first
        self._gateway = gateway
        self._role = role

    def open(self, outcome: Outcome, held: HeldRequests, router: str) -> Iterator[Book]:
        """Give the book of the gateway, if there is one, and of the router in each worker."""
        workers, ranks = outcome.decisions["worker"], outcome.decisions["rank"]
        prefix = f"{self._role} " if self._role else ""
        numbers = [self._first + place for place in range(len(self._workers))]
        places = [
            tuple((number, rank) for rank in range(len(spec.ranks)))
            for number, spec in zip(numbers, self._workers, strict=True)
        ]
        capacities = [list_capacities(spec) for spec in self._workers]
        if self._gateway is not None:
            here = np.flatnonzero((ranks == ABSENT_ID) & np.isin(workers, numbers))
            book = Book(f"{prefix}{GATEWAY}", None, self._role, self._first, tuple(places), here)
            yield _fill(book, self._gateway, outcome, held, [sum(each) for each in capacities])
        for number, spec, own, sizes in zip(numbers, self._workers, places, capacities, strict=True):
            here = np.flatnonzero((ranks != ABSENT_ID) & (workers == number))
            book = Book(f"{prefix}{router}", number, self._role, 0, tuple((place,) for place in own), here)
            yield _fill(book, spec.router, outcome, held, sizes)


def _list_pools(deployment: Deployment) -> Iterator[_Pool]:
    apart = bool(deployment.decoders)
    yield _Pool(deployment.workers, 0, deployment.gateway, "prefill" if apart else None)
    if apart:
        yield _Pool(deployment.decoders, len(deployment.workers), deployment.decode_gateway, "decode")


def _fill(book: Book, router: Router, outcome: Outcome, held: HeldRequests, capacities: Sequence[int]) -> Book:
    """Hold the decisions of a router against the truth."""
    kept = cast(AccountableRouter, router)
    decisions, measure = kept.decisions, kept.measure
    if [decision.request for decision in decisions] != outcome.decisions["request"][book.numbers].tolist():
        raise ValueError(f"the {book.ledger} did not keep the decisions it made")
    levels = take_levels(outcome, book.numbers, capacities)
    truths = [
        [_correct(load, book.count_held(held, number, decision.at_ns, choice)) for choice, load in enumerate(loads)]
        for number, decision, loads in zip(book.numbers.tolist(), decisions, levels, strict=True)
    ]
    errors = judge_decisions(book.ledger, decisions, truths, measure)
    compares = None if measure is None else _COMPARED.get(measure, "tokens")
    if isinstance(router, UncachedTokens):
        compares = "uncached tokens"
    return replace(book, compares=compares, decisions=decisions, levels=levels, truths=truths, errors=errors)


def _correct(load: Load, requests: int | None) -> Load:
    """Count as waiting what the scheduler's own count leaves out."""
    return load if requests is None else replace(load, waiting=requests - load.running)


def _list_dispatches(books: Sequence[Book]) -> list[Dispatch]:
    """Join the gateway's and the router's choice of each request and role, in the order in which they were made."""
    gateways = {
        (book.role, decision.request): _tell(decision, error, book.first)
        for book in books
        if book.worker is None
        for decision, error in book.pairs()
    }
    numbered: list[tuple[int, Dispatch]] = []
    for book in books:
        if book.worker is None:
            continue
        for place, (decision, error) in enumerate(book.pairs()):
            dispatch = Dispatch(
                time_ns=decision.at_ns,
                request=decision.request,
                role=book.role,
                worker=book.worker,
                rank=decision.rank,
                gateway=gateways.get((book.role, decision.request)),
                router=_tell(decision, error, 0),
                scheduler=_tell_load(book, place, decision.rank),
            )
            numbered.append((int(book.numbers[place]), dispatch))
    return [dispatch for _, dispatch in sorted(numbered, key=lambda each: each[0])]


def _tell_load(book: Book, place: int, rank: int) -> RankLoad:
    own, true = book.levels[place][rank], book.truths[place][rank]
    # Of a rank whose requests are untold the truth is the scheduler's own load.
    requests = None if true is own else true.running + true.waiting
    return RankLoad(own.running, own.waiting, own.total_tokens, own.waiting_uncached_tokens, requests)


def _tell(decision: Decision, error: LedgerError, first: int) -> Belief:
    """Tell what was believed of the choice."""
    rank = decision.rank
    return Belief(
        chosen=first + rank,
        reason=decision.reason,
        requests=_pick(decision.requests, rank),
        tokens=_pick(decision.tokens, rank),
        age_ns=error.age_ns[rank],
        requests_error=_pick(error.requests_error, rank),
        tokens_error=_pick(error.tokens_error, rank),
        better=None if error.better_rank is None else first + error.better_rank,
        regret=None if error.regret is None else _shorten(error.regret),
    )


def _pick(values: Sequence[int | None] | None, rank: int) -> int | None:
    return None if values is None else values[rank]


def _sum_up(ledger: str, books: Sequence[Book]) -> LedgerTotals:
    """Sum up the ledgers of one kind."""
    beliefs = [_tell(decision, error, book.first) for book in books for decision, error in book.pairs()]
    own = [belief for belief in beliefs if belief.reason == "policy"]
    regrets = [belief.regret for belief in own if belief.regret is not None]
    return LedgerTotals(
        ledger,
        next((book.compares for book in books), None),
        len(beliefs),
        len(beliefs) - len(own),
        *_find_middle_and_worst(belief.age_ns for belief in own),
        *_find_middle_and_worst(belief.requests_error for belief in own),
        *_find_middle_and_worst(belief.tokens_error for belief in own),
        judged=len(regrets),
        otherwise=sum(belief.better is not None for belief in own),
        regret=_shorten(sum(regrets)) if regrets else None,
    )


def _sum_up_schedulers(dispatches: Sequence[Dispatch]) -> LedgerTotals:
    """Sum up how far the schedulers' own counts were from what their ranks had."""
    middle, worst = _find_middle_and_worst(dispatch.scheduler.requests_error for dispatch in dispatches)
    return LedgerTotals(SCHEDULER, None, len(dispatches), 0, 0, 0, middle, worst, None, None, 0, 0, None)


def _find_middle_and_worst(values: Iterable[int | None]) -> tuple[int | None, int | None]:
    """Find the median and the largest of the known values, without sign; the lower of two medians."""
    sizes = [abs(value) for value in values if value is not None]
    return (median_low(sizes), max(sizes)) if sizes else (None, None)


def _share_waits(outcome: Outcome) -> float | None:
    """Give the part of the time of all ranks' steps that they waited for the slowest."""
    steps, rows = outcome.steps, outcome.rank_steps
    order = np.argsort(steps["step"], kind="stable")
    place = order[np.searchsorted(steps["step"], rows["step"], sorter=order)]
    total_ns = int(steps["total_ns"][place].sum())
    return _shorten(int(rows["waiting_ns"].sum()) / total_ns) if total_ns else None


def _shorten(value: float) -> float:
    """Keep six significant digits, so that equal runs give equal bytes on every machine."""
    return float(f"{value:.6g}")
