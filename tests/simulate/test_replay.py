"""Serving logged requests again: where they were served, after whom, and by which policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.model.request_log import LoggedRequest
from dprankdiag.simulate.costs import FittedCosts
from dprankdiag.simulate.policies import Situation, list_policies
from dprankdiag.simulate.replay import AS_RECORDED, Choosers, Site, list_traffic, serve_again
from dprankdiag.simulate.replay_figures import Run, compare_runs, measure_run

COSTS = FittedCosts((5e6, 0.0, 0.0, 300.0, 2_000.0, 0.0, 0.0))
MS = 1_000_000
SITUATION = Situation("sglang", None, 1, True, "unified", True, False, False, 5 * MS, 60.0)


def log(ranks: list[int], tokens: int = 1_000, **rest: object) -> list[LoggedRequest]:
    return [
        replace(LoggedRequest(number * MS, tokens, 60, rank=rank), **rest)  # type: ignore[arg-type]
        for number, rank in enumerate(ranks)
    ]


def test_requests_are_served_where_they_were() -> None:
    ranks = [0, 2, 2, 1, 0, 2]
    outcome = serve_again(Site("sglang", 1, 3), list_traffic(log(ranks), 512), AS_RECORDED, COSTS)
    assert outcome.requests["rank"].tolist() == ranks


def test_several_engines_serve_as_recorded() -> None:
    logged = [replace(one, worker=number % 2) for number, one in enumerate(log([1, 0, 1, 0]))]
    outcome = serve_again(Site("sglang", 2, 2), list_traffic(logged, 512), AS_RECORDED, COSTS)
    assert outcome.requests["worker"].tolist() == [0, 1, 0, 1]


def test_engines_that_compute_prompts_for_others_serve_as_recorded() -> None:
    logged = [
        replace(one, worker=1, prefill_worker=0, prefill_rank=number % 2, room=number)
        for number, one in enumerate(log([1, 0, 1, 0]))
    ]
    site = Site("sglang", 1, 2, decoders=1, decode_ranks=2)
    outcome = serve_again(site, list_traffic(logged, 512), AS_RECORDED, COSTS)
    assert outcome.requests["prefill_rank"].tolist() == [0, 1, 0, 1]
    assert outcome.requests["rank"].tolist() == [1, 0, 1, 0]


def test_a_request_that_came_after_the_answer_before_follows_it() -> None:
    first = LoggedRequest(0, 100, 10, end_ns=200 * MS, rank=0, session="a")
    second = LoggedRequest(250 * MS, 100, 10, end_ns=200 * MS, rank=0, session="a")
    traffic = list_traffic([first, second], 512)
    assert (traffic.requests[1].follows, traffic.requests[1].think_ns) == (0, 50 * MS)
    early = replace(second, arrival_ns=100 * MS)
    assert list_traffic([first, early], 512).requests[1].follows is None


def test_equal_blocks_are_equal_tokens() -> None:
    one, other, third = (
        list_traffic([replace(log([0])[0], prefix=prefix)], 256).requests[0].parts
        for prefix in ((7, "x"), (7, "x"), (7, "y"))
    )
    assert one[:2] == other[:2]
    assert one[0] == third[0]
    assert one[1] != third[1]
    assert sum(part.tokens for part in one) == 1_000


def test_cached_tokens_without_a_prefix_are_found_by_all() -> None:
    traffic = list_traffic(log([0, 0], cached_tokens=600), 512)
    outcome = serve_again(Site("sglang", 1, 1), traffic, AS_RECORDED, COSTS)
    assert outcome.requests["cached_tokens"].tolist()[1] == 512


def test_lifted_pins_let_the_policy_choose() -> None:
    traffic = list_traffic(log([0] * 8, pinned=True), 512)
    turns = next(one for one in list_policies(SITUATION) if one.key == "policy.round_robin").choosers[0]
    site = Site("sglang", 1, 4)
    assert set(serve_again(site, traffic, turns, COSTS).requests["rank"].tolist()) == {0}
    lifted = serve_again(site, traffic, Choosers(turns.rank, lifts_pins=True), COSTS)
    assert np.bincount(lifted.requests["rank"]).tolist() == [2, 2, 2, 2]


def list_keys(situation: Situation) -> list[str]:
    return [one.key for one in list_policies(situation)]


def test_policies_follow_the_release() -> None:
    assert "policy.shortest_queue" in list_keys(replace(SITUATION, version=(0, 5, 5)))
    assert "policy.minimum_tokens" in list_keys(replace(SITUATION, version=(0, 5, 0)))
    assert "policy.total_tokens@0.5.13" in list_keys(replace(SITUATION, version=(0, 5, 10)))
    assert not [key for key in list_keys(SITUATION) if "@" in key or "shortest" in key]


def test_an_older_release_is_told_to_be_renewed_for_newer_policies() -> None:
    old = list_policies(replace(SITUATION, version=(0, 5, 5)))
    command = next(one.command for one in old if one.key == "policy.total_requests")
    assert command == "SGLang 0.5.8 or newer, and --load-balance-method total_requests"


def test_gateways_are_asked_only_where_there_are_several_engines() -> None:
    assert not [key for key in list_keys(SITUATION) if key.startswith("gateway.")]
    several = list_keys(replace(SITUATION, workers=3))
    assert {"gateway.power_of_two", "gateway.cache_aware"} <= set(several)
    assert "gateway.cache_aware" not in list_keys(replace(SITUATION, workers=3, has_prefixes=False))


def test_vllm_has_its_score_and_no_flags_of_sglang() -> None:
    vllm = replace(SITUATION, engine="vllm", version=(0, 33, 0))
    assert list_keys(vllm) == ["policy.score", "policy.uncached_tokens", "policy.remaining_pairs"]
    assert "policy.score@0.33" in list_keys(replace(vllm, version=(0, 22, 1)))


def test_even_ranks_save_what_the_busiest_made_all_wait() -> None:
    """All on one rank: 8 rows of 1,000 tokens and more; spread over four, a quarter."""
    site, traffic = Site("sglang", 1, 4), list_traffic(log([0] * 8), 512)
    turns = next(one for one in list_policies(SITUATION) if one.key == "policy.round_robin").choosers[0]
    terms = np.array(COSTS.terms)
    base, run = (Run(site, serve_again(site, traffic, one, COSTS), 4) for one in (AS_RECORDED, turns))
    gain = compare_runs(run, base, terms, terms[None])
    assert gain.value == pytest.approx(1 - run.whole_ns.sum() / base.whole_ns.sum())
    assert gain.value > 0.1
    told = measure_run(base, terms, terms[None])
    assert told["imbalance_ratio"].value == pytest.approx(4)
    assert told["waiting_ratio"].value > measure_run(run, terms, terms[None])["waiting_ratio"].value
