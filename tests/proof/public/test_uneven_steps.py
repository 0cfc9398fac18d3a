"""Reports of work that is uneven within a step: prompts on one rank at a time, a hot expert that barrier times hide."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.proof.command import analyze_here
from tests.proof.conftest import Analyze
from tests.proof.scenario import Event, Factor, Scenario, play
from tests.proof.torch_filler import fill_traces, mark_steps
from tests.proof.verdicts import list_warned


def evidence_of(finding: dict[str, Any], name: str) -> float:
    (value,) = [item["value"] for item in finding["evidence"] if item["name"] == name]
    return float(value)


def prefill_in_turn(key: str, step: int, layer: int, rank: int) -> str:
    return "prefill_attention" if key == "attention" and rank == step % 8 else key


def eight_times_in_turn(key: str, step: int, layer: int, rank: int) -> float:
    """A49: 800 tokens where the others have 100."""
    return 8.0 if rank == step % 8 and key in ("qkv_gemm", "attention", "o_proj_gemm") else 1.0


def test_a_prompt_on_another_rank_in_every_step_is_load_and_nobodys_fault(analyze: Analyze) -> None:
    """A49: totals are equal, so that sums over the ranks show nothing; the steps do."""
    events = play(Scenario(ranks=8, steps=40, alias=prefill_in_turn, factor=eight_times_in_turn))
    said = analyze(events)
    assert list_warned(said) == [("load.prefill", [])]
    (finding,) = said["findings"]
    assert (finding["who"], finding["when"]) == ("all", "steady")
    assert evidence_of(finding, "held_up_steps_ratio") == 1.0
    assert finding["summary"].startswith("every rank in turn: ")
    assert "in 39 of 39 steps" in finding["summary"]
    work = [rank["work_ns"] for rank in said["ranks"]]
    assert max(work) < 1.15 * min(work)


def test_prompts_in_every_fourth_step_say_in_how_many_steps(analyze: Analyze) -> None:
    def factor(key: str, step: int, layer: int, rank: int) -> float:
        turn = step // 4 % 8
        return 8.0 if step % 4 == 3 and rank == turn and key in ("qkv_gemm", "attention", "o_proj_gemm") else 1.0

    def alias(key: str, step: int, layer: int, rank: int) -> str:
        return "prefill_attention" if factor(key, step, layer, rank) > 1 and key == "attention" else key

    said = analyze(play(Scenario(ranks=8, steps=80, alias=alias, factor=factor)))
    assert list_warned(said) == [("load.prefill", [])]
    assert evidence_of(said["findings"][0], "held_up_steps_ratio") == pytest.approx(0.25, abs=0.02)


NEW_TOKENS = {13: 12_295, 14: 4}
"""A82, as reported for two of sixteen ranks; the others are given 600."""


def follow_tokens(key: str, step: int, layer: int, rank: int) -> float:
    tokens = NEW_TOKENS.get(rank, 600)
    return {"attention": 0.2 + tokens / 400, "qkv_gemm": 1 + tokens / 1_500, "o_proj_gemm": 1 + tokens / 1_500}.get(
        key, 1.0
    )


def all_prefill(key: str, step: int, layer: int, rank: int) -> str:
    return "prefill_attention" if key == "attention" else key


@pytest.fixture(scope="module")
def prompts() -> list[Event]:
    return play(Scenario(ranks=16, steps=16, layers=2, alias=all_prefill, factor=follow_tokens))


def test_the_rank_with_twelve_thousand_new_tokens_sets_the_pace(analyze: Analyze, prompts: list[Event]) -> None:
    """A82: without batch annotations the work shows, and not that it is prompts: all ranks run the same kernels."""
    said = analyze(prompts)
    assert list_warned(said) == [("load.unknown", [13])]
    assert [item["ranks"] for item in said["findings"]] == [[13]]


def test_annotated_prompt_tokens_name_the_prompt(tmp_path: Path, prompts: list[Event]) -> None:
    """A82, with what the log says of a batch in the program's own ranges."""

    def tell(step: int, rank: int) -> str:
        return f"step[EXTEND bs={4 if rank == 13 else 1} toks={NEW_TOKENS.get(rank, 600)}]"

    said = analyze_here(*fill_traces(tmp_path, prompts, extra=mark_steps(prompts, tell)))
    assert list_warned(said) == [("load.prefill", [13])]
    assert evidence_of(said["findings"][0], "prompt_token_ratio") == pytest.approx(12_295 / 600, rel=1e-5)


def test_annotations_of_equal_prompts_do_not_blame_prompts(tmp_path: Path, prompts: list[Event]) -> None:
    said = analyze_here(
        *fill_traces(tmp_path, prompts, extra=mark_steps(prompts, lambda step, rank: "step[EXTEND bs=1 toks=600]"))
    )
    assert [ranks for _, ranks in list_warned(said)] == [[13]]
    assert "load.prefill" not in {cause for cause, _ in list_warned(said)}


EXPERT_US, LIGHTEST_US = 63.0, 56.8
"""A53: expert GEMMs a layer of the busiest and of a lighter rank."""

LAYERS = 48


def spread_experts(expert_us: Sequence[float]) -> Factor:
    """Give every rank its time in the experts, the same in all layers and steps."""
    return lambda key, step, layer, rank: expert_us[rank] / 75.0 if key == "experts" else 1.0


def test_equal_sums_hide_a_busy_expert_rank_and_the_split_shows_it(analyze: Analyze) -> None:
    """A53: 63.0 + 28.2 µs on one rank, 56.8 + 34.5 on another: step times are equal on all."""
    others = [LIGHTEST_US + 0.45 * place for place in range(7)]
    factor = spread_experts([EXPERT_US, *others])
    said = analyze(play(Scenario(ranks=8, steps=10, layers=LAYERS, factor=factor, noise=0.001)))
    (finding,) = said["findings"]
    assert (finding["cause"], finding["ranks"], finding["severity"]) == ("structural.expert", [0], "info")
    saved_us = finding["lost_ns"] / 1_000 / said["time"]["steps"] / LAYERS
    mean_us = (EXPERT_US + sum(others)) / 8
    assert saved_us == pytest.approx(EXPERT_US - mean_us, rel=0.15)
    assert len(finding["layers"]) >= LAYERS - 1
    waits = {rank["rank"]: rank["wait_ns"] for rank in said["ranks"]}
    assert min(waits, key=lambda rank: waits[rank]) == 0
    assert finding["lost_ratio"] < 0.03


def test_two_ranks_alone_warn_of_nothing(analyze: Analyze) -> None:
    """A53, the two ranks of the table: two have no spread to judge six microseconds by."""
    events = play(Scenario(ranks=2, steps=10, layers=LAYERS, factor=spread_experts([EXPERT_US, LIGHTEST_US])))
    said = analyze(events)
    assert list_warned(said) == []
    assert all(item["ranks"] == [0] and item["confidence"] <= 0.8 for item in said["findings"])
    assert any("two ranks have no spread" in note for note in said["notes"])


OPTIMIZER_MS = (9.98, 10.12, 9.46, 9.40, 9.17, 9.58)
"""C10: optimizer time by rank, 1.10 × from least to most."""


def step_optimizer(key: str, step: int, layer: int, rank: int) -> float:
    return OPTIMIZER_MS[rank] / 9.55 if key == "optimizer" else 1.0


def test_a_tenth_between_optimizers_makes_no_straggler(analyze: Analyze) -> None:
    """C10: nobody is named, and where the rest of a training step is in the trace the ranks are even."""
    layer = ("qkv_gemm", "attention", "o_proj_gemm", "all_reduce", "experts", "all_reduce")
    tail = ("optimizer", "all_reduce")
    bare = analyze(play(Scenario(ranks=6, steps=20, layers=2, layer=layer, tail=tail, factor=step_optimizer)))
    assert (bare["findings"], bare["status"] in ("healthy", "inconclusive")) == ([], True)


def test_optimizers_in_whole_training_steps_leave_the_ranks_even(analyze: Analyze) -> None:
    def factor(key: str, step: int, layer: int, rank: int) -> float:
        return 300.0 if key in ("attention", "experts") else step_optimizer(key, step, layer, rank)

    layer = ("qkv_gemm", "attention", "o_proj_gemm", "all_reduce", "experts", "all_reduce")
    tail = ("optimizer", "all_reduce")
    said = analyze(play(Scenario(ranks=6, steps=20, layers=2, layer=layer, tail=tail, factor=factor, noise=0.002)))
    assert (said["findings"], said["status"]) == ([], "healthy")


@pytest.mark.parametrize("slow", [0, 5])
def test_the_cost_is_the_slowest_ranks_whichever_number_it_has(analyze: Analyze, slow: int) -> None:
    """C14: rank 0 minus the fastest is nothing where another rank is the slow one."""

    def factor(key: str, step: int, layer: int, rank: int) -> float:
        return 2.5 if key == "attention" and rank == slow else 1.0

    scenario = Scenario(ranks=8, steps=24, factor=factor, noise=0.004)
    said = analyze(play(scenario))
    assert list_warned(said) == [("load.unknown", [slow])]
    per_step = said["findings"][0]["lost_ns"] / said["time"]["steps"]
    # 60 µs of attention a layer: one rank at 2.5 ×, the mean at 1.1875 ×.
    assert per_step == pytest.approx(scenario.layers * 60_000 * (2.5 - 1.1875), rel=0.03)
