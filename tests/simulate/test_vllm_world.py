from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprankdiag.simulate.base import Load, Part, Request
from dprankdiag.simulate.engine import serve
from dprankdiag.simulate.ranks import Acceptance
from dprankdiag.simulate.vllm_scheduler import VllmRules
from dprankdiag.simulate.waves import Pause, WaveRules
from dprankdiag.simulate.workers import Publishing, Worker
from dprankdiag.simulate.world_tables import MODES
from tests.simulate.worlds import PlainCosts, RoundRobin, ask, by_rank, run_one

ROOMY = VllmRules(1_000_000)


def test_a_wave_goes_on_to_the_next_check_with_dummies() -> None:
    outcome = run_one([ask(0, 100, 20, rank=0)], [ROOMY] * 4, waves=WaveRules())
    assert len(outcome.steps["step"]) == 32
    assert (by_rank(outcome, "mode", 4)[:, 1:] == MODES.index("idle")).all()
    assert (by_rank(outcome, "decode_rows", 4)[:, 1:] == 1).all()


@given(st.integers(1, 70))
@settings(max_examples=30, deadline=None)
def test_a_wave_has_at_most_fifteen_steps_after_its_last_token(output: int) -> None:
    outcome = run_one([ask(0, 100, output, rank=0)], [ROOMY] * 2, waves=WaveRules())
    steps = len(outcome.steps["step"])
    assert steps - output <= 15
    assert steps == 1 or steps % 16 == 0


def test_a_request_on_an_idle_group_waits_until_the_others_are_woken() -> None:
    outcome = run_one([ask(0, 100, 5, at_ns=1_000)], [ROOMY] * 2, waves=WaveRules(wake_ns=50_000))
    assert outcome.steps["start_ns"][0] == 51_000


def test_a_pause_takes_effect_at_the_check_where_all_have_asked() -> None:
    step_ns = int(run_one([ask(0, 10, 200)], [ROOMY] * 2, waves=WaveRules()).steps["total_ns"][5])
    asked = (20 * step_ns, 40 * step_ns)
    rules = WaveRules(pauses=(Pause(asked, 1_000_000_000),))
    outcome = run_one([ask(0, 10, 200, rank=0)], [ROOMY] * 2, waves=rules)
    before = outcome.steps["start_ns"] < 1_000_000_000
    assert before.sum() == 48
    after_first = (outcome.steps["start_ns"] > asked[0]) & before
    assert (by_rank(outcome, "mode", 2)[after_first] == MODES.index("idle")).all()
    assert outcome.requests["output_tokens"].tolist() == [200]


def test_new_prompts_begin_only_in_steps_of_the_cadence() -> None:
    requests = [ask(0, 10, 60, rank=0), ask(1, 10, 5, at_ns=1_500_000, rank=1), ask(2, 10, 5, at_ns=9_000_000, rank=1)]
    outcome = run_one(requests, [VllmRules(1_000_000, prefill_every=4)] * 2, waves=WaveRules())
    prompts = np.flatnonzero(by_rank(outcome, "prompt_tokens", 2).sum(axis=1)) + 1
    assert (prompts % 4 == 0).all()


def test_decoders_go_on_while_a_long_prompt_is_computed_in_chunks() -> None:
    requests = [ask(0, 10, 100), ask(1, 4_000, 5, at_ns=10_000_000)]
    outcome = run_one(requests, [VllmRules(100_000, budget_tokens=1_024, max_running=64)])
    mixed = outcome.rank_steps["mode"] == MODES.index("mixed")
    assert mixed.sum() == 4
    assert (outcome.rank_steps["decode_rows"][mixed] + outcome.rank_steps["prompt_tokens"][mixed] <= 1_024).all()


def test_the_newest_is_preempted_and_recomputes() -> None:
    rules = VllmRules(320, page_tokens=16, share_prefixes=False)
    outcome = run_one([ask(0, 100, 80), ask(1, 100, 80, at_ns=1)], [rules])
    assert outcome.requests["retractions"].tolist() == [0, 1]
    assert outcome.requests["output_tokens"].tolist() == [80, 80]


def test_a_budget_below_the_running_requests_is_an_error() -> None:
    with pytest.raises(ValueError, match="budget"):
        VllmRules(1_000, budget_tokens=128, max_running=256)


def test_ranks_publish_when_their_counts_change() -> None:
    outcome = run_one([ask(0, 10, 40)], [ROOMY], publishing=Publishing(None, False, True))
    assert outcome.publishes["waiting"].tolist()[:2] == [1, 0]
    assert len(outcome.publishes["rank"]) <= 4


class Watcher(RoundRobin):
    """Takes down the step of each load that it is shown, by the moment at which it was written."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks)
        self.steps: dict[tuple[int, int], int | None] = {}

    def observe(self, now_ns: int, loads: Sequence[Load | None]) -> None:
        super().observe(now_ns, loads)
        self.steps |= {(load.stamp_ns, rank): load.step for rank, load in enumerate(loads) if load is not None}


def test_what_is_published_amid_a_step_is_of_that_step() -> None:
    requests = [ask(number, 10, 400, at_ns=number * 2_700_000, rank=number % 2) for number in range(20)]
    router = Watcher(2)
    worker = Worker((ROOMY,) * 2, router, PlainCosts(), publishing=Publishing(None, False, True), waves=WaveRules())
    steps = serve(requests, [worker]).steps
    begun = {stamp: int(np.searchsorted(steps["start_ns"], stamp)) for stamp, _ in router.steps}
    assert {stamp: step for (stamp, _), step in router.steps.items()} == begun
    amid = set(begun) - set(steps["start_ns"].tolist())
    assert len(amid) > 10


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40_000_000), st.integers(1, 300), st.integers(1, 60)), min_size=1, max_size=25),
    st.builds(
        VllmRules,
        capacity_tokens=st.sampled_from([400, 600, 5_000]),
        page_tokens=st.sampled_from([1, 16]),
        budget_tokens=st.sampled_from([128, 8_192]),
        max_running=st.just(30),
        share_prefixes=st.booleans(),
        prefill_every=st.sampled_from([1, 3]),
        acceptance=st.sampled_from([Acceptance(), Acceptance(4, 2.6)]),
    ),
    st.sampled_from([None, WaveRules()]),
)
def test_tokens_are_conserved(drawn: list[tuple[int, int, int]], rules: VllmRules, waves: WaveRules | None) -> None:
    requests = [
        Request(n, at, (Part(prompt % 3, 7), Part(100 + prompt, prompt)), output, output_key=1_000 + n)
        for n, (at, prompt, output) in enumerate(sorted(drawn))
    ]
    outcome = run_one(requests, [rules] * 2, waves=waves)
    assert outcome.requests["output_tokens"].tolist() == [r.output_tokens for r in requests]
    assert (outcome.rank_steps["used_tokens"] <= rules.capacity_tokens).all()
    parts = outcome.rank_steps["own_ns"] + outcome.rank_steps["shared_ns"] + outcome.rank_steps["waiting_ns"]
    whole = (outcome.steps["total_ns"] - outcome.steps["common_ns"])[outcome.rank_steps["step"]]
    assert (parts == whole).all()
