"""Options out of hand-made recordings: what is priced, what is a bound, and what cannot be told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.errors import InputError, UsageError
from dprankdiag.model.expert_counts import ExpertCounts
from dprankdiag.model.serving import UNKNOWN_SERVING, Serving
from dprankdiag.model.whatif import Option, WhatIf
from dprankdiag.pipelines.compare import Input
from dprankdiag.pipelines.remedies import advise
from dprankdiag.pipelines.whatif_bundle import ask_bundle
from dprankdiag.pipelines.whatif_experts import ExpertPlan, list_redundant, price_experts, write_command
from tests.analysis.builders import observe_grids, run_grid
from tests.pipelines.builders import EVEN_NS, RANKS, STEP_NS, TRANSFER_NS, claim, late_for, see
from tests.pipelines.sides import give

LAYERS, EXPERTS = 6, 16


def ask(side: Input, counts: ExpertCounts | None = None, plan: ExpertPlan | None = None) -> WhatIf:
    return ask_bundle(advise(side.diagnosis), side.tables, ("x.dprank",), counts, plan)


def find(result: WhatIf, key: str) -> Option:
    (option,) = [item for item in result.options if item.key == key]
    return option


def late() -> Input:
    seen = see(late_for(0.2))
    return give(seen, claim(seen))


def test_a_finding_taken_away_gains_what_it_costs_and_shortens_every_step() -> None:
    result = ask(late())
    option = find(result, "load.f1")
    assert (option.kind, option.basis, option.gain_of) == ("load", "replayed", "step_time")
    assert option.gain_ratio.value == pytest.approx(0.2, abs=1e-3)
    assert option.served.step_p50_ns.value == pytest.approx(STEP_NS, rel=1e-3)
    assert result.measured.step_p50_ns.value == pytest.approx(STEP_NS / 0.8, rel=1e-3)
    assert (result.verdict, result.best) == ("better", ("load.f1",))
    assert "saves 20 % of the step" in result.headline


def test_all_findings_together_gain_the_whole_loss_and_are_not_the_best_choice() -> None:
    seen = see(late_for(0.2))
    side = give(seen, claim(seen, slice(0, 20)), claim(seen, slice(20, 40), cause="single_point.gpu"))
    result = ask(side)
    assert find(result, "fault.all").gain_ratio.value == pytest.approx(0.2, abs=1e-3)
    assert "fault.all" not in result.best
    assert set(result.best) == {"load.f1", "fault.f2"} or set(result.best) == {"fault.f1", "load.f2"}
    assert result.verdict == "tied"


def test_the_bound_of_routing_is_a_bound() -> None:
    option = find(ask(late()), "load.even_steps")
    assert (option.basis, option.gain_ratio.value, option.command) == ("bound", None, None)
    assert option.gain_ratio.interval is not None
    low, high = option.gain_ratio.interval
    assert low == 0 < high < 0.2  # the late rank's work is spread, not gone


def test_attention_shared_by_neighbours_is_bounded_where_its_kernels_are_known() -> None:
    told = {item.about: item.reason for item in ask(late()).abstentions}
    assert told["layout.attention_tp_2"] == "no attention kernels were seen"
    assert "other collectives" in told["layout"]


def test_a_finding_without_a_price_is_not_an_option_and_says_why() -> None:
    seen = see(late_for(0.2))
    side = give(seen, claim(seen, loss_known=False, undo=()))
    result = ask(side)
    assert [option.key for option in result.options] == ["load.even_steps"]
    told = {item.about: item.reason for item in result.abstentions}
    assert told["load.f1"]
    assert result.verdict == "none_better"


def test_a_recording_without_steps_is_refused_with_what_to_give() -> None:
    side = late()
    empty = {**side.tables, "groups": {name: values[:0] for name, values in side.tables["groups"].items()}}
    with pytest.raises(InputError, match="no steps"):
        ask(replace(side, tables=empty))


def serve(tokens: np.ndarray, noise: float = 0.0) -> Input:
    """Record layers whose experts take as long as their tokens say, placed in order."""
    share = tokens.reshape(len(tokens), LAYERS, RANKS, -1).sum(axis=3)
    share = share / share.mean(axis=2, keepdims=True)
    expert = (EVEN_NS * (0.2 + 0.8 * share)).round().astype(np.int64)
    attention = np.full_like(expert, EVEN_NS)
    both = np.zeros((len(tokens), 2 * LAYERS, RANKS), np.int64)
    experts = both.copy()
    both[:, ::2], experts[:, 1::2] = attention, expert
    del noise
    layer = np.repeat(np.arange(LAYERS), 2)
    grid = run_grid({"attention": both, "expert": experts}, transfer=TRANSFER_NS)
    return give(observe_grids([replace(grid, layer=layer, side=("pre", "post") * LAYERS)]))


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    random = np.random.default_rng(0)
    popular = np.exp(0.7 * random.standard_normal((LAYERS, EXPERTS)))
    drawn: np.ndarray = random.poisson(300 * popular, (40, LAYERS, EXPERTS)).astype(np.int64)
    return drawn


def price(
    side: Input, counts: ExpertCounts | None, plan: ExpertPlan | None = None
) -> tuple[dict[str, Option], list[str]]:
    options, unpriced = price_experts(side.tables, 0, counts, plan or ExpertPlan(), UNKNOWN_SERVING)
    return {option.key: option for option in options}, [item.reason for item in unpriced]


def test_counts_that_fit_price_every_number_of_copies_that_divides(tokens: np.ndarray) -> None:
    options, _ = price(serve(tokens), ExpertCounts(("x",), tokens, False))
    assert list(options) == [f"experts.redundant_{n}" for n in list_redundant(EXPERTS, RANKS)]
    gains = [option.gain_ratio.value or 0.0 for option in options.values()]
    assert min(gains) > 0.03
    assert all("--expert-bytes" in option.reasons[0] for option in options.values())


def test_other_sizes_of_expert_parallelism_are_told_for_their_tokens_and_not_priced(tokens: np.ndarray) -> None:
    _, (half, twice) = price(serve(tokens), ExpertCounts(("x",), tokens, False))

    def busiest(size: int) -> str:
        by_gpu = tokens.reshape(len(tokens), LAYERS, size, -1).sum(axis=3)
        return f"{(by_gpu.max(axis=2) / by_gpu.mean(axis=2)).mean():.2f} ×"

    for reason, size in ((half, RANKS // 2), (twice, 2 * RANKS)):
        assert reason.startswith(f"over {size} GPUs")
        assert f"the busiest would get {busiest(size)}" in reason
        assert f"over {RANKS} now {busiest(RANKS)}" in reason


def test_moving_experts_is_taken_off_once_weights_and_links_are_told(tokens: np.ndarray) -> None:
    side, counts = serve(tokens), ExpertCounts(("x",), tokens, False)
    bare, _ = price(side, counts)
    plan = ExpertPlan(expert_bytes=1 << 20, link_bytes_s=50_000_000_000, steps_between=20)
    net, _ = price(side, counts, plan)
    for key, option in net.items():
        assert (option.gain_ratio.value or 0.0) <= (bare[key].gain_ratio.value or 0.0)
        assert "is taken off" in option.reasons[0]
    rare, _ = price(side, counts, replace(plan, steps_between=2_000_000))
    key = f"experts.redundant_{list_redundant(EXPERTS, RANKS)[0]}"
    assert (rare[key].gain_ratio.value or 0.0) >= (net[key].gain_ratio.value or 0.0)


def test_sums_over_time_are_priced_and_say_that_they_are(tokens: np.ndarray) -> None:
    options, _ = price(serve(tokens), ExpertCounts(("x",), tokens.sum(axis=0)[None], True))
    assert all("sums over time" in option.reasons[-1] for option in options.values())


@pytest.mark.parametrize(
    "counts,why",
    [
        (None, "no counts"),
        ("layers", "tokens are counted in 5 layers, experts were recorded in 6"),
        ("experts", "15 experts do not divide by the"),
        ("shuffled", "do not go with the counted tokens"),
    ],
)
def test_counts_that_do_not_fit_price_nothing_and_say_why(counts: str | None, why: str, tokens: np.ndarray) -> None:
    given = {
        "layers": tokens[:, 1:],
        "experts": tokens[:, :, 1:],
        "shuffled": np.random.default_rng(1).permuted(tokens, axis=2),
    }
    told = None if counts is None else ExpertCounts(("x",), given[counts], False)
    options, (reason,) = price(serve(tokens), told)
    assert options == {}
    assert why in reason


def test_a_plan_that_does_not_divide_is_refused(tokens: np.ndarray) -> None:
    with pytest.raises(UsageError, match="do not divide by 3 nodes"):
        price(serve(tokens), ExpertCounts(("x",), tokens, False), ExpertPlan(nodes=3))


@pytest.mark.parametrize(
    "n_logical,n_gpus,expected",
    [(256, 8, (0, 32, 64, 96, 128)), (128, 48, (64,)), (60, 8, (4, 12)), (64, 8, (0, 32, 64)), (16, 4, (0, 4, 8))],
)
def test_copies_are_as_many_as_leave_every_gpu_as_many_slots(
    n_logical: int, n_gpus: int, expected: tuple[int, ...]
) -> None:
    found = list_redundant(n_logical, n_gpus)
    assert all((n_logical + n) % n_gpus == 0 for n in found)
    assert found == expected


def test_the_command_is_the_engines_own() -> None:
    assert write_command(32, 1000, Serving("sglang")).startswith("--enable-eplb --ep-num-redundant-experts 32")
    assert '"num_redundant_experts": 32' in write_command(32, 3000, Serving("vllm"))
    both = write_command(32, 1000, UNKNOWN_SERVING)
    assert both.startswith("SGLang: ")
    assert "; vLLM: " in both
