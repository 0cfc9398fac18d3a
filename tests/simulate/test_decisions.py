"""What a ledger held at a decision against what was true."""

from __future__ import annotations

import pytest

from dprankdiag.simulate.decisions import Decision, judge_decisions, summarize_errors
from dprankdiag.simulate.routers.gateway import Gateway
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


def test_gateway_and_controller_are_wrong_each_in_its_own_way() -> None:
    # Two engines of two ranks. Another gateway has just sent ten requests to engine 0: six to rank 0, four to rank 1.
    # Ours has sent nothing and takes both engines for empty; the controller of engine 0 believes snapshots 40 ms old
    # that show one request on each rank, and takes rank 0, which has two more than rank 1.
    gateway, controller = Gateway(2, "power_of_two", seed=1), SglangController(2, "total_requests")
    controller.observe(50 * MS, [show(1, stamp=10 * MS), show(1, stamp=10 * MS)])
    worker = gateway.place(50 * MS, ask(1))
    controller.place(50 * MS, ask(1))
    of_engines = [show(2, 10), show(1)]
    of_ranks = [show(1, 6), show(1, 4)]
    (first,) = judge_decisions("gateway", gateway.decisions, [of_engines], gateway.measure)
    (second,) = judge_decisions("controller", controller.decisions, [of_ranks], controller.measure)
    assert first.requests_error == (-12, -1)
    assert first.regret == (11.0 if worker == 0 else 0.0)
    assert second.requests_error == (-6, -4)
    assert (second.age_ns, second.better_rank, second.regret) == ((40 * MS, 40 * MS), 1, 2.0)


def test_a_summary_counts_what_is_known() -> None:
    decisions = [
        Decision(10, 0, 0, "policy", (1, 0), None, (3, None)),
        Decision(20, 1, 1, "policy", (1, 5), None, (3, 19)),
        Decision(30, 2, 1, "pinned", (1, 1), None, (29, 30)),
    ]
    truths = [[show(1), show(0)], [show(9), show(2)], [show(1), show(1)]]
    summary = summarize_errors("controller", judge_decisions("controller", decisions, truths, count_requests))
    assert (summary.decisions, summary.judged, summary.regretted) == (3, 2, 1)
    # Ages 7, 17, 1, 1 and 0 ns; the first choice has one request more than the best, the second none.
    assert (summary.median_age_ns, summary.oldest_age_ns) == (1, 17)
    assert (summary.largest_requests_error, summary.largest_tokens_error) == (8, None)
    assert summary.mean_regret == 0.5
    empty = summarize_errors("controller", [])
    assert (empty.median_age_ns, empty.largest_requests_error, empty.mean_regret) == (None, None, None)
