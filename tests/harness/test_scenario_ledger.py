"""The three ledgers of a scenario: what each believed, how old that was and how wrong."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from dprankdiag.harness.scenario import Deployment
from dprankdiag.harness.scenario_ledger import account, record_ledgers
from dprankdiag.harness.scenario_parts import MS_NS, POOL_TOKENS, ask
from dprankdiag.harness.scenarios import find_scenario
from dprankdiag.harness.served_costs import ServedCosts
from dprankdiag.model.dispatches import Dispatch, LedgerRecord, LedgerRun, LedgerTotals
from dprankdiag.simulate.routers.gateway import POLL_NS
from dprankdiag.simulate.routers.sglang import REFRESH_EVERY_DISPATCH, SINCE_0_5_13, Budget, worst_age_ns
from dprankdiag.simulate.routers.vllm import Layout, VllmRouter
from dprankdiag.simulate.vllm_scheduler import VllmRules
from dprankdiag.simulate.waves import WaveRules
from dprankdiag.simulate.workers import VLLM_PUBLISHING, Worker
from dprankdiag.views.dispatches import choose_dispatches, find_request, render_text

BURST = 20


@cache
def keep(name: str) -> LedgerRecord:
    return record_ledgers(find_scenario(name))


def total(run: LedgerRun, ledger: str) -> LedgerTotals:
    (found,) = [totals for totals in run.totals if totals.ledger == ledger]
    return found


def list_free(run: LedgerRun) -> list[Dispatch]:
    return [dispatch for dispatch in run.dispatches if dispatch.router.reason == "policy"]


def test_a_ledger_read_anew_at_each_dispatch_shows_one_belief_to_a_whole_burst() -> None:
    # Rank 7 has 7 requests, all others 8. Each of the burst goes to it, and none of them is seen by the next.
    free = list_free(keep("burst").runs[0])
    assert [(each.rank, each.router.requests) for each in free] == [(7, 7)] * BURST
    assert [each.router.requests_error for each in free] == [-sent for sent in range(BURST)]
    assert [each.scheduler.requests for each in free] == [7 + sent for sent in range(BURST)]


def test_the_truth_would_have_taken_another_rank_as_soon_as_one_is_shorter() -> None:
    # The other seven have 8 requests: the first two of the burst are right, and the n-th after them n too many.
    free = list_free(keep("burst").runs[0])
    assert [each.router.better for each in free] == [None] * 2 + [0] * (BURST - 2)
    assert [each.router.regret for each in free] == [0.0, *(float(more) for more in range(BURST - 1))]
    controller = total(keep("burst").runs[0], "controller")
    assert (controller.otherwise, controller.judged, controller.regret) == (18, BURST, sum(range(BURST - 1)))


def test_what_is_counted_when_it_is_sent_is_never_wrong_in_requests() -> None:
    cured = keep("burst").runs[1]
    assert {each.router.requests_error for each in list_free(cured)} == {0}
    controller = total(cured, "controller")
    assert (controller.worst_requests_error, controller.otherwise, controller.regret) == (0, 0, 0.0)
    assert {each.rank for each in list_free(cured)} == set(range(8))


def test_the_scheduler_leaves_out_the_prompts_that_its_step_computes() -> None:
    # The first six wait for the step under way to end; the next one takes them up, and neither runs nor queues them.
    errors = [each.scheduler.requests_error for each in list_free(keep("burst").runs[0])]
    assert errors[:6] == [0] * 6
    assert set(errors[6:]) == {-6}


@pytest.mark.parametrize("place, budget", [(0, REFRESH_EVERY_DISPATCH), (1, SINCE_0_5_13)], ids=["as it is", "cured"])
def test_no_belief_is_older_than_the_rule_says(place: int, budget: Budget) -> None:
    publishes = find_scenario("burst").serve(cured=bool(place)).publishes
    gaps = [np.diff(publishes["time_ns"][publishes["rank"] == rank]).max() for rank in range(8)]
    ages = [each.router.age_ns for each in list_free(keep("burst").runs[place])]
    assert all(age is not None and 0 < age <= worst_age_ns(int(max(gaps)), budget) for age in ages)


def test_a_demanded_choice_is_counted_but_neither_judged_nor_regretted() -> None:
    run = keep("burst").runs[0]
    controller = total(run, "controller")
    assert (controller.choices, controller.demanded) == (83, 63)
    pinned = [each.router for each in run.dispatches if each.router.reason == "pinned"]
    assert {(belief.better, belief.regret) for belief in pinned} == {(None, None)}


def test_a_router_that_looks_at_no_load_believes_nothing() -> None:
    run = keep("long_context").runs[0]
    assert {(each.router.requests, each.router.tokens, each.router.age_ns) for each in run.dispatches} == {(None,) * 3}
    controller = total(run, "controller")
    assert (controller.compares, controller.worst_age_ns, controller.judged, controller.regret) == (None, None, 0, None)


def test_what_a_front_end_is_not_told_is_unknown_and_not_zero() -> None:
    run = keep("tail").runs[0]
    assert {each.router.tokens for each in run.dispatches} == {None}
    assert total(run, "front end").worst_tokens_error is None
    assert total(run, "front end").compares == "points"


def test_every_dispatch_is_there_once_in_order_of_time() -> None:
    for run in keep("burst").runs:
        assert [each.request for each in run.dispatches] == list(range(83))
        times = [each.time_ns for each in run.dispatches]
        assert times == sorted(times)


def test_the_line_of_the_truth_ends_at_nothing_and_passes_what_the_ranks_had() -> None:
    run = keep("burst").runs[0]
    for track in run.tracks:
        assert track.true.value[-1] == 0
        assert len(track.believed.value) == len(run.dispatches)
    (last,) = [track for track in run.tracks if track.choice == 7]
    assert max(value for value in last.true.value if value is not None) == 7 + BURST
    assert len(last.chosen_ns) == 7 + BURST


def test_the_rows_shown_are_the_first_the_worst_and_the_last_that_a_policy_chose() -> None:
    run = keep("burst").runs[0]
    shown = choose_dispatches(run)
    assert [each.request for each in shown] == [*range(63, 71), *range(75, 83)]
    text = render_text(keep("burst"), run, shown)
    assert "16 of 83 dispatches" in text
    assert "..." in text


def test_a_request_is_found_by_its_number() -> None:
    run = keep("burst").runs[0]
    assert [each.request for each in find_request(run, 70)] == [70]
    with pytest.raises(ValueError, match="there are 0 to 82"):
        find_request(run, 83)


def test_gateway_controller_and_scheduler_each_believe_something_else() -> None:
    run = keep("polled").runs[0]
    gateway, controller, scheduler = (total(run, name) for name in ("gateway", "controller", "scheduler"))
    ages = gateway.worst_age_ns, controller.worst_age_ns, scheduler.worst_age_ns
    assert ages[0] is not None
    assert ages[1] is not None
    assert 10 * ages[1] < ages[0] <= POLL_NS
    assert ages[2] == 0
    assert (gateway.compares, controller.compares) == ("tokens", "requests")
    late = [each for each in run.dispatches if each.time_ns >= POLL_NS]
    apart = [each for each in late if each.gateway is not None and each.gateway.tokens_error]
    assert len(apart) > len(late) // 2
    assert {each.gateway.chosen for each in late if each.gateway is not None} == {each.worker for each in late}


def test_a_gateway_that_counts_what_it_sent_is_never_wrong_in_requests() -> None:
    gateway = total(keep("polled").runs[1], "gateway")
    assert (gateway.worst_requests_error, gateway.worst_age_ns, gateway.worst_tokens_error) == (0, None, None)
    assert gateway.judged == len(keep("polled").runs[1].dispatches)


def deploy_vllm(router: VllmRouter) -> Deployment:
    requests = [ask(number, number * 20 * MS_NS, 2_000, 60) for number in range(60)]
    worker = Worker((VllmRules(POOL_TOKENS),) * 4, router, ServedCosts(), publishing=VLLM_PUBLISHING, waves=WaveRules())
    return Deployment(requests, [worker], ServedCosts())


def test_each_front_end_is_judged_by_what_it_believed_itself() -> None:
    run = account("two nodes", deploy_vllm(VllmRouter(Layout(4, nodes=2, clients=2))), "front end")
    # Front ends 0 and 1 see ranks 0 and 1, front ends 2 and 3 the others; requests reach them in turn.
    assert [each.rank // 2 for each in run.dispatches] == [number % 4 // 2 for number in range(60)]
    for track in run.tracks:
        seen = [value is not None for value in track.believed.value]
        assert seen == [number % 4 // 2 == track.choice // 2 for number in range(60)]
    assert all(each.router.better is None or each.router.better // 2 == each.rank // 2 for each in run.dispatches)


def test_a_router_that_kept_no_decisions_is_refused() -> None:
    with pytest.raises(ValueError, match="the front end did not keep"):
        account("forgetful", deploy_vllm(VllmRouter(Layout(4), keep=False)), "front end")


def test_the_worker_that_was_emptiest_at_a_poll_gets_half_of_all_until_the_next() -> None:
    """Of two random workers of four it is one in 6 of 12 ordered pairs, and 240 draws spread by √(240 / 4) = 7.7."""
    scenario = find_scenario("polled")
    told = scenario.figures(scenario.serve(), scenario.serve(cured=True))
    assert told["share_of_busiest"] == pytest.approx(1 / 2, abs=3 * 7.7 / 240)
    assert told["share_of_busiest_cured"] == pytest.approx(1 / 4, abs=0.05)
    assert 0 < told["gain_ratio"] < 0.1
