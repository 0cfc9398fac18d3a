"""Worked examples: the numbers that follow from each scenario, derived beside them."""

from typing import Any

import numpy as np
import pytest

from dprankdiag.harness.scenario import Window
from dprankdiag.harness.scenario_trace import take_ranks, trace_scenario
from dprankdiag.harness.scenarios import SCENARIOS, find_scenario
from dprankdiag.harness.served_costs import ServedCosts
from dprankdiag.simulate.base import StepWork


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, int | float]]:
    return {}


def tell(name: str, figures: dict[str, dict[str, int | float]]) -> dict[str, int | float]:
    if name not in figures:
        scenario = SCENARIOS[name]
        figures[name] = dict(scenario.figures(scenario.serve(), scenario.serve(cured=True)))
    return figures[name]


def test_a_long_context_makes_seven_times_the_pairs(figures: dict[str, Any]) -> None:
    """3 × 8,192 + 204,800 = 229,376 against 4 × 8,192 = 32,768; × 78 layers; 576 bytes a token and layer."""
    told = tell("long_context", figures)
    assert (told["busiest_pairs"], told["other_pairs"], told["pairs_ratio"]) == (229_376, 32_768, 7)
    assert told["missing_pairs_a_layer"] == 196_608
    assert told["missing_pairs_a_step"] == 196_608 * 78 == 15_335_424
    assert told["busiest_read_bytes"] / 1e9 == pytest.approx(10.3, abs=0.05)
    assert told["other_read_bytes"] / 1e9 == pytest.approx(1.47, abs=0.005)


def test_sparse_attention_reads_as_much_on_every_rank_and_its_indexer_does_not(figures: dict[str, Any]) -> None:
    told = tell("long_context", figures)
    assert told["sparse_read_ratio"] == 1
    assert told["indexer_ratio"] == 7


def test_a_router_can_only_give_the_long_request_a_rank_of_its_own(figures: dict[str, Any]) -> None:
    """204,800 pairs remain of 229,376: a small gain, which is what is said to be recoverable."""
    assert 0 < tell("long_context", figures)["gain_ratio"] < 1 - 204_800 / 229_376


def test_twelve_of_26_requests_cost_24_ms_of_a_step_of_28(figures: dict[str, Any]) -> None:
    """12 × 35 µs = 0.42 ms against 26 / 8 × 35 µs = 0.114 ms a layer; 78 layers."""
    told = tell("busy_rank", figures)
    assert told["busiest_attention_ns_a_layer"] == 420_000
    assert told["other_attention_ns_a_layer"] == 70_000
    assert told["lost_ns_a_layer"] == pytest.approx(306_250)
    assert told["lost_ns_a_step"] / 1e6 == pytest.approx(24, abs=0.2)
    assert told["even_step_ns"] / 1e6 == pytest.approx(28, abs=0.3)
    assert told["step_ns"] / 1e6 == pytest.approx(52, abs=0.3)


def test_the_reading_of_two_ms_a_layer_contradicts_the_step(figures: dict[str, Any]) -> None:
    told = tell("busy_rank", figures)
    assert told["other_reading_step_ns"] == 156_000_000
    assert told["other_reading_lost_ratio"] < told["lost_ns_a_step"] / told["step_ns"] / 2


def test_a_burst_goes_to_one_rank_unless_what_was_sent_is_counted(figures: dict[str, Any]) -> None:
    told = tell("burst", figures)
    assert told["burst_requests"] == told["most_on_one_rank"] == 20
    assert told["most_on_one_rank_cured"] == 3


def test_a_million_tokens_hold_seven_ranks_for_128_steps(figures: dict[str, Any]) -> None:
    """1,048,576 / 8,192 = 128."""
    told = tell("prefill", figures)
    assert told["chunk_tokens"] == 8_192
    assert told["prompt_tokens"] // told["chunk_tokens"] == told["held_steps"] == 128


def test_a_ledger_of_prompt_lengths_counts_ten_times_the_work_of_a_cached_prompt(figures: dict[str, Any]) -> None:
    told = tell("cached", figures)
    assert (told["ledger_tokens"], told["computed_tokens"]) == (100_000, 10_000)
    assert told["most_on_one_rank"] == 10
    assert told["most_on_one_rank_cured"] == 3


def test_short_requests_pile_where_no_long_one_is(figures: dict[str, Any]) -> None:
    told = tell("starved", figures)
    assert (told["most_on_one_rank"], told["most_on_one_rank_cured"]) == (48, 12)


def test_rooms_spread_prompts_as_dice_do(figures: dict[str, Any]) -> None:
    """Of 400 dice with 8 faces each face shows 50 times, give or take √(400 × 1/8 × 7/8) = 6.6."""
    told = tell("rooms", figures)
    assert told["chance_spread"] == pytest.approx(6.61, abs=0.01)
    assert 50 + told["chance_spread"] < told["most_on_one_rank"] < 50 + 4 * told["chance_spread"]
    assert told["first_token_cured_ns"] < told["first_token_ns"]


def test_a_rank_that_runs_few_requests_lets_most_wait(figures: dict[str, Any]) -> None:
    told = tell("prealloc", figures)
    assert told["running"] < told["running_elsewhere"] / 2
    assert told["waiting"] > 5 * told["waiting_elsewhere"]
    assert told["first_token_ns"] > 10 * told["first_token_cured_ns"]


def test_retracting_the_longest_computes_more_again_than_was_asked(figures: dict[str, Any]) -> None:
    told = tell("thrash", figures)
    assert told["retractions"] == told["retractions_there"] > 40
    assert told["recomputed_tokens"] > 2 * told["prompt_tokens_there"]


def test_an_idle_rank_takes_graphs_from_all(figures: dict[str, Any]) -> None:
    told = tell("graphs", figures)
    assert told["eager_ratio"] > 5 * told["eager_ratio_cured"]


def test_a_wave_runs_at_most_15_steps_after_its_last_token(figures: dict[str, Any]) -> None:
    told = tell("tail", figures)
    assert 0 < told["steps_after_the_last_token"] < told["check_steps"] == 16
    assert told["dummy_batches"] > told["steps"]


def test_copies_of_hot_experts_even_out_288_slots(figures: dict[str, Any]) -> None:
    told = tell("experts", figures)
    assert (told["slots"], told["slots_a_gpu"]) == (288, 36)
    assert told["busiest_ratio"] > 2
    assert told["busiest_ratio_cured"] < 1.02


def test_nothing_is_gained_where_nothing_is_wrong(figures: dict[str, Any]) -> None:
    assert tell("even", figures)["gain_ratio"] == 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_scenario_says_what_every_view_shows(name: str) -> None:
    scenario = find_scenario(name)
    assert set(scenario.shows) == {"loads", "metrics", "trace", "ledger"}
    assert (scenario.metrics is None) == bool(scenario.metrics_lack)


def test_the_batches_of_a_trace_are_those_of_the_world() -> None:
    scenario = SCENARIOS["busy_rank"]
    world, _ = trace_scenario(scenario)
    ranks = take_ranks(scenario.serve(), scenario.window)
    assert world.dealt is not None
    assert np.array_equal(world.dealt.decode_tokens, ranks["kv_tokens"])
    assert ranks["decode_rows"][:, 3].tolist() == [12] * scenario.window.steps


def test_a_window_without_such_steps_is_refused() -> None:
    outcome = SCENARIOS["even"].serve()
    with pytest.raises(ValueError, match="no 60 such steps after"):
        Window(10**12).find(outcome)


def test_an_unknown_scenario_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no scenario 'dice'; there are long_context, "):
        find_scenario("dice")


def test_costs_follow_what_attention_reads() -> None:
    def work(tokens: int) -> StepWork:
        nothing = np.zeros(2, np.int64)
        rows, held = np.asarray([2, 2]), np.asarray([tokens, 4_000])
        return StepWork(("decode", "decode"), rows, held, held, nothing, nothing, rows, True, False)

    dense, sparse = ServedCosts(), ServedCosts(read_tokens=1_000, index_ps=10)
    longer = dense.time_step(work(104_000)).own_ns - dense.time_step(work(4_000)).own_ns
    assert longer.tolist() == [100_000 * 144 // 1_000 * 61, 0]
    indexed = sparse.time_step(work(104_000)).own_ns - sparse.time_step(work(4_000)).own_ns
    assert indexed.tolist() == [100_000 * 10 // 1_000 * 61, 0]
