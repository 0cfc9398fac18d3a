"""What a ledger held at a decision against what was true."""

from __future__ import annotations

import pytest

from dprankdiag.simulate.decisions import Decision, judge_decisions
from dprankdiag.simulate.routers.sglang import SglangController, count_requests, count_tokens
from dprankdiag.simulate.routers.vllm import Layout, VllmRouter
from tests.simulate.routers.builders import MS, ask, show


def test_age_error_and_regret_of_a_choice_by_an_old_snapshot() -> None:
    # The snapshots are 90 and 40 ms old. Rank 0 showed 2 requests and 700 tokens and now has 9 and 9,000; rank 1
    # showed 3 and 800 and has them still. The controller takes rank 0; with the truth it would have taken rank 1,
    # which has 6 requests less.
    router = SglangController(2, "total_requests")
    router.observe(95 * MS, [show(2, 0, 700, stamp=10 * MS), show(1, 2, 800, stamp=60 * MS)])
    assert router.place(100 * MS, ask(7, 30)) == 0
    truth = [show(4, 5, 9_000), show(1, 2, 800)]
    (error,) = judge_decisions("controller", router.decisions, [truth], router.measure)
    assert (error.ledger, error.at_ns, error.request, error.rank) == ("controller", 100 * MS, 7, 0)
    assert error.age_ns == (90 * MS, 40 * MS)
    assert error.requests_error == (2 - 9, 0)
    assert error.tokens_error == (700 - 9_000, 0)
    assert error.better_rank == 1
    assert error.regret == 6.0


def test_a_choice_that_ties_with_the_best_is_not_regretted() -> None:
    decision = Decision(5, 0, 1, "policy", (1, 0), (0, 0), (0, 0))
    (error,) = judge_decisions("controller", [decision], [[show(2), show(1, 1)]], count_requests)
    assert (error.better_rank, error.regret) == (None, 0.0)


def test_equal_tokens_with_more_requests_are_worse_by_no_token() -> None:
    decision = Decision(5, 0, 0, "policy", (1, 0), (0, 0), (0, 0))
    (error,) = judge_decisions("controller", [decision], [[show(2, total=9), show(1, total=9)]], count_tokens)
    assert (error.better_rank, error.regret) == (1, 0.0)


@pytest.mark.parametrize("reason", ["pinned", "probe"])
def test_what_no_policy_chose_is_not_regretted(reason: str) -> None:
    decision = Decision(5, 0, 0, reason, (9, 0), None, (0, 0))  # type: ignore[arg-type]
    (error,) = judge_decisions("controller", [decision], [[show(9), show(0)]], count_requests)
    assert (error.better_rank, error.regret, error.requests_error) == (None, None, (0, 0))


def test_an_unknown_truth_gives_no_error_and_no_regret() -> None:
    decision = Decision(5, 0, 0, "policy", (9, 0), None, (None, 0))
    (error,) = judge_decisions("controller", [decision], [[None, show(0)]], count_requests)
    assert error.requests_error == (None, 0)
    assert error.tokens_error is None
    assert error.age_ns == (None, 5)
    assert error.regret is None


def test_a_round_robin_believes_nothing_and_regrets_nothing() -> None:
    router = SglangController(2, "round_robin")
    router.observe(0, [show(9, stamp=1), show(0, stamp=1)])
    router.place(0, ask())
    (error,) = judge_decisions("controller", router.decisions, [[show(9), show(0)]], router.measure)
    assert (error.requests_error, error.age_ns, error.regret) == (None, (None, None), None)


def test_a_front_end_is_judged_by_the_engines_that_it_sees() -> None:
    # Engines 2 and 3 are empty, but on another node.
    router = VllmRouter(Layout(4, nodes=2), door=lambda request: 0)
    router.observe(1 * MS, [show(5, 1, stamp=1 * MS)] * 2 + [show(0, 1, stamp=1 * MS)] * 2)
    router.place(300 * MS, ask())
    (error,) = judge_decisions("front end 0", router.decisions, [[show(5), show(5), show(), show()]], router.measure)
    assert error.requests_error == (1, 1, None, None)
    assert error.age_ns == (299 * MS, 299 * MS, None, None)
    assert (error.better_rank, error.regret) == (None, 0.0)


def test_decisions_and_truths_of_different_number_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        judge_decisions("controller", [Decision(5, 0, 0, "policy", (9,), None, (0,))], [], count_requests)
