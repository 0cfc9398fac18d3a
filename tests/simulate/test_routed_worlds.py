"""The engine under the routers that deployments have."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.model.schema import ABSENT_NS
from dprankdiag.simulate.engine import serve
from dprankdiag.simulate.lockstep_vllm import VllmMeeting
from dprankdiag.simulate.routers.sglang import REFRESH_NS, Policy, SglangController
from dprankdiag.simulate.routers.vllm import Layout, VllmRouter
from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.traffic import LogNormal, Pareto, come_at_random
from dprankdiag.simulate.vllm_scheduler import VllmRules
from dprankdiag.simulate.waves import WaveRules
from dprankdiag.simulate.workers import VLLM_PUBLISHING, Worker
from dprankdiag.simulate.world_tables import Outcome
from tests.simulate.worlds import PlainCosts, same_bytes

RANKS = 4
LONG_TAIL = come_at_random(300, 150.0, Pareto(200, 1.1, 60_000), LogNormal(80, 0.8, 600), 5)


def _serve_sglang(policy: Policy) -> Outcome:
    worker = Worker((SglangRules(500_000),) * RANKS, SglangController(RANKS, policy), PlainCosts())
    return serve(LONG_TAIL, [worker])


def _serve_vllm() -> Outcome:
    worker = Worker(
        (VllmRules(500_000),) * RANKS,
        VllmRouter(Layout(RANKS)),
        PlainCosts(),
        meeting=VllmMeeting(),
        publishing=VLLM_PUBLISHING,
        waves=WaveRules(),
    )
    return serve(LONG_TAIL, [worker])


@pytest.mark.parametrize("policy", ["round_robin", "total_requests", "total_tokens"])
def test_every_policy_of_sglang_serves_all_and_repeats_itself(policy: Policy) -> None:
    outcome = _serve_sglang(policy)
    assert outcome.requests["output_tokens"].tolist() == [r.output_tokens for r in LONG_TAIL]
    assert same_bytes(outcome, _serve_sglang(policy))


def test_the_front_ends_of_vllm_serve_all_and_repeat_themselves() -> None:
    outcome = _serve_vllm()
    assert outcome.requests["output_tokens"].tolist() == [r.output_tokens for r in LONG_TAIL]
    assert same_bytes(outcome, _serve_vllm())


def test_tokens_tell_a_long_tail_better_than_turns() -> None:
    def spread(outcome: Outcome) -> float:
        used = outcome.rank_steps["used_tokens"].reshape(-1, RANKS)
        return float(np.mean(used.max(axis=1)) / np.mean(used))

    assert spread(_serve_sglang("total_tokens")) < spread(_serve_sglang("round_robin"))


def test_what_a_controller_believes_is_no_older_than_fifteen_steps_and_its_refresh() -> None:
    outcome = _serve_sglang("total_tokens")
    age = outcome.beliefs["age_ns"]
    longest = int(outcome.steps["total_ns"].max())
    assert (age[age != ABSENT_NS] <= 15 * longest + REFRESH_NS).all()
    assert (age != ABSENT_NS).mean() > 0.9
