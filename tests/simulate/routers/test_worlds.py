"""Every router in a small world: it places all requests, and its ledger is the one that the world writes down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest

from dprankdiag.simulate.base import Load, Request
from dprankdiag.simulate.decisions import AccountableRouter, judge_decisions, summarize_errors
from dprankdiag.simulate.engine import serve
from dprankdiag.simulate.routers.gateway import Gateway
from dprankdiag.simulate.routers.ours import RemainingPairs, UncachedTokens
from dprankdiag.simulate.routers.sglang import SglangController, worst_age_ns
from dprankdiag.simulate.routers.sglang_older import MinimumTokens, ShortestQueue
from dprankdiag.simulate.routers.vllm import Layout, VllmRouter
from dprankdiag.simulate.workers import SGLANG_PUBLISHING, VLLM_PUBLISHING, Worker
from dprankdiag.simulate.world_tables import Outcome
from tests.simulate.routers.builders import MS
from tests.simulate.worlds import ROOMY, PlainCosts, ask

RANKS = 4

ROUTERS: dict[str, Callable[[], AccountableRouter]] = {
    "round_robin": lambda: SglangController(RANKS),
    "total_requests": lambda: SglangController(RANKS, "total_requests"),
    "total_tokens": lambda: SglangController(RANKS, "total_tokens"),
    "shortest_queue": lambda: ShortestQueue(RANKS),
    "minimum_tokens": lambda: MinimumTokens(RANKS, counts_sent=True),
    "vllm": lambda: VllmRouter(Layout(RANKS)),
    "vllm, two nodes of two": lambda: VllmRouter(Layout(RANKS, nodes=2, clients=2)),
    "uncached": lambda: UncachedTokens(RANKS),
    "pairs": lambda: RemainingPairs(RANKS, step_ns=2 * MS, guess_output=lambda request: 30.0),
    "two choices": lambda: Gateway(RANKS, "power_of_two"),
    "two choices, polled": lambda: Gateway(RANKS, "power_of_two", poll_ns=50 * MS),
    "prefix hash": lambda: Gateway(RANKS, "prefix_hash"),
    "cache aware": lambda: Gateway(RANKS, "cache_aware"),
}


def make_requests(count: int = 120) -> list[Request]:
    random = Random(4)
    return [
        ask(number, random.randint(10, 3_000), random.randint(1, 60), at_ns=number * 2 * MS) for number in range(count)
    ]


def run_world(router: AccountableRouter, requests: Sequence[Request]) -> Outcome:
    publishing = VLLM_PUBLISHING if isinstance(router, VllmRouter) else SGLANG_PUBLISHING
    return serve(requests, [Worker((ROOMY,) * RANKS, router, PlainCosts(), publishing=publishing)])


@pytest.mark.parametrize("name", ROUTERS)
def test_all_requests_are_served_the_same_way_each_time(name: str) -> None:
    requests = make_requests()
    router = ROUTERS[name]()
    outcome, again = run_world(router, requests), run_world(ROUTERS[name](), requests)
    assert outcome.requests["rank"].tolist() == again.requests["rank"].tolist()
    chosen = [decision.rank for decision in router.decisions]
    assert sorted(zip(outcome.decisions["request"].tolist(), outcome.decisions["rank"].tolist(), strict=True)) == list(
        enumerate(chosen)
    )


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_can_be_judged_afterwards(name: str) -> None:
    router = ROUTERS[name]()
    outcome = run_world(router, make_requests())
    errors = judge_decisions(name, router.decisions, true_loads(outcome), router.measure)
    summary = summarize_errors(name, errors)
    assert summary.decisions == len(outcome.requests["request"])
    assert (summary.judged > 0) is (router.measure is not None)
    assert all(age >= 0 for error in errors for age in error.age_ns if age is not None)


def true_loads(outcome: Outcome) -> list[list[Load | None]]:
    columns = [
        outcome.beliefs[f"true_{name}"].reshape(-1, RANKS)
        for name in ("running", "waiting", "waiting_uncached_tokens", "used_tokens", "total_tokens")
    ]
    times = outcome.decisions["time_ns"]
    return [
        [Load(int(times[at]), *(int(column[at, rank]) for column in columns), 1_000_000) for rank in range(RANKS)]
        for at in range(len(times))
    ]


@pytest.mark.parametrize("policy", ["total_requests", "total_tokens"])
def test_the_world_and_the_router_agree_on_what_was_believed_and_how_wrong_it_was(policy: str) -> None:
    router = SglangController(RANKS, policy)  # type: ignore[arg-type]
    outcome = run_world(router, make_requests())
    errors = judge_decisions("controller", router.decisions, true_loads(outcome), router.measure)
    beliefs = outcome.beliefs
    known = beliefs["age_ns"].reshape(-1, RANKS) >= 0
    shown = (beliefs["believed_running"] + beliefs["believed_waiting"]).reshape(-1, RANKS)
    true = (beliefs["true_running"] + beliefs["true_waiting"]).reshape(-1, RANKS)
    told = np.array([error.requests_error for error in errors])
    assert known.any()
    assert (told[known] == (shown - true)[known]).all()
    ages = np.array([[-1 if age is None else age for age in error.age_ns] for error in errors])
    assert (ages[known] == beliefs["age_ns"].reshape(-1, RANKS)[known]).all()
    assert any(error.regret for error in errors)


def test_in_a_busy_world_no_belief_is_older_than_publishing_and_throttling_allow() -> None:
    # Fifteen steps; the longest step of this world bounds the time between two snapshots of a rank.
    router = SglangController(RANKS, "total_tokens")
    outcome = run_world(router, make_requests())
    longest_ns = int(outcome.steps["total_ns"].max())
    ages = [
        decision.at_ns - stamp for decision in router.decisions for stamp in decision.stamps_ns if stamp is not None
    ]
    assert max(ages) <= worst_age_ns(16 * longest_ns)
