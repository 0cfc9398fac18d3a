"""The roofline physics follows from bytes, operations and requests, and shares nothing with the fixed one."""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import dprankdiag.harness
from dprankdiag.harness.faults import (
    Fault,
    burst,
    host_late,
    hot_expert,
    load_context,
    load_idle,
    load_prefill,
    load_requests,
    onset,
    periodic,
    receiver_queue,
    slow_gpu,
    slow_link,
    structural_graph,
    structural_layout,
)
from dprankdiag.harness.roofline import count_rows
from dprankdiag.harness.roofline_batches import Work, deal_work, run_requests
from dprankdiag.harness.roofline_kernels import (
    attend_cache,
    attend_prompt,
    exchange,
    move_bytes,
    multiply_groups,
    multiply_matrices,
)
from dprankdiag.harness.roofline_presets import MODELS, Chip, choose_chip, choose_model
from dprankdiag.harness.roofline_routing import copy_popular, draw_popularity, place_experts, route_tokens
from dprankdiag.harness.sampling import fit_slowdown
from dprankdiag.harness.timeline import Timeline, play
from dprankdiag.harness.world import World
from dprankdiag.harness.worlds import simulate_world, truth, twin

SMALL = World(
    seed=5,
    physics="roofline",
    model="glm-4.5",
    chip="h200",
    ranks=4,
    steps=8,
    layers=2,
    requests=12,
    context_tokens=3000,
)
CHIP = Chip(100, 1_000, 2_000, 1_000, 400, link_ns=1_000, floor_ns=2_000)
ONE = np.ones(1)

FAULTS = [
    (SMALL, slow_gpu(1, 1.4)),
    (SMALL, slow_gpu(1, 1.4, memory_only=True)),
    (SMALL, load_context(2, 3.0)),
    (SMALL, load_requests(2, 2.0)),
    (SMALL, load_prefill(1, 1.2, when=periodic(3))),
    (SMALL, load_idle((0, 3), 1.5)),
    (replace(SMALL, load_levels=(1.0, 2.0)), structural_layout(1, 1.8)),
    (replace(SMALL, load_levels=(1.0, 2.0)), structural_layout(1, 1.8, side="after")),
    (replace(SMALL, model="qwen3-30b"), structural_graph(2, when=burst(0.5))),
    (SMALL, host_late((2, 3), 400_000)),
    (replace(SMALL, requests=400, chip="h20"), hot_expert({0: 1, 1: 3}, 4.0)),
    (replace(SMALL, communication="deepep"), receiver_queue(1, 60_000)),
    (SMALL, slow_link(2, 60_000)),
]


def last(roof: object) -> float:
    """Give the duration on a chip of ordinary speed."""
    return float(roof.last(ONE, ONE)[0])  # type: ignore[attr-defined]


def test_a_kernel_that_moves_bytes_takes_the_time_of_the_bandwidth() -> None:
    assert last(move_bytes(CHIP, np.asarray([850_000.0]))) == pytest.approx(1_000 + 2_000)


def test_a_product_of_few_rows_takes_the_time_of_reading_the_weights() -> None:
    moved = 4_096 * 7_168 + 2 * 8 * (4_096 + 7_168)
    assert last(multiply_matrices(CHIP, np.asarray([8]), 4_096, 7_168, 1)) == pytest.approx(moved / 850 + 2_000)


def test_a_product_of_many_rows_takes_whole_waves_of_tiles() -> None:
    tile_ns = 2 * 64 * 128 * 4_000 / (1e3 * 1_000 * 0.7 / 100)

    def waves(rows: int) -> float:
        return (last(multiply_matrices(CHIP, np.asarray([rows]), 12_800, 4_000, 2)) - 2_000) / tile_ns

    assert [waves(64 * count) for count in (20, 21)] == pytest.approx([20, 21])
    assert waves(64 * 20 + 1) == pytest.approx(21)


def test_experts_take_the_time_of_the_weights_they_touch_until_their_tiles_take_longer() -> None:
    def time(tokens: int, touched: int, tiles: int) -> float:
        return last(multiply_groups(CHIP, *np.asarray([[tokens], [touched], [tiles]]), 2_560, 1_000, 1))

    weights, rows = 2_560 * 1_000, 2 * 10 * (2_560 + 1_000)
    assert time(10, 5, 5) == pytest.approx((5 * weights + rows) / 850 + 4_000)
    tile_ns = 2 * 64 * 128 * 1_000 / (1e3 * 2_000 * 0.7 / 100)
    assert time(100, 1, 100) == pytest.approx(20 * tile_ns + 4_000)


def test_decode_attention_reads_pages_in_waves() -> None:
    page_ns = 64 * 1_000 * 100 / 850
    times = [last(attend_cache(CHIP, np.asarray([pages]), 1_000, 1.0)) for pages in (1, 100, 101)]
    assert times == pytest.approx([page_ns + 4_000, page_ns + 4_000, 2 * page_ns + 4_000])


def test_prompt_attention_takes_the_time_of_its_arithmetic() -> None:
    assert last(attend_prompt(CHIP, np.asarray([7e9]), np.asarray([0.0]))) == pytest.approx(10_000 + 4_000)


def test_a_ring_takes_a_hop_for_every_doubling_and_the_time_of_its_bytes() -> None:
    sent = np.asarray([340_000.0])
    assert exchange(CHIP, sent, 8, False)[0] == pytest.approx(3_500 + 3 * 1_000 + 1_000)
    assert exchange(CHIP, sent, 8, False, one_shot=True)[0] == pytest.approx(1_750 + 1_000 + 1_000)
    assert exchange(CHIP, sent, 8, True)[0] == pytest.approx(3_500 + 3 * 4_800 + 8_000)


def test_a_slow_memory_lengthens_what_it_limits_and_nothing_else() -> None:
    bound, free = move_bytes(CHIP, np.asarray([850_000.0])), attend_prompt(CHIP, np.asarray([7e9]), np.asarray([0.0]))
    assert float(bound.last(ONE, 1.5 * ONE)[0]) == pytest.approx(1_500 + 2_000)
    assert float(free.last(ONE, 1.5 * ONE)[0]) == last(free)


def test_requests_grow_by_a_token_a_step_and_whoever_ends_is_replaced() -> None:
    history = run_requests(replace(SMALL, steps=300))
    counts = [sum(map(len, step)) for step in history]
    assert set(counts) == {SMALL.requests * SMALL.dp_size}
    before, after = (np.concatenate(step) for step in history[:2])
    stayed = np.isin(after - 1, before).sum()
    assert stayed >= len(before) - 3
    steps = [np.concatenate(step) for step in history]
    starts = [len(now) - np.isin(now - 1, last).sum() for last, now in pairwise(steps)]
    assert 0 < np.mean(starts) < 1


def test_drafts_let_requests_grow_by_more_than_a_token() -> None:
    first, second = run_requests(replace(SMALL, verify_tokens=4, steps=2))
    grown = sum(int(own.sum()) for own in second) - sum(int(own.sum()) for own in first)
    assert 1.5 < grown / (SMALL.requests * SMALL.dp_size) < 4


def test_load_levels_change_the_number_of_requests() -> None:
    counts = deal_work(replace(SMALL, load_levels=(1.0, 2.5))).batches.decode_requests.sum(axis=1)
    assert counts.tolist() == [48] * 4 + [120] * 4


def total(world: World, name: str) -> np.ndarray:
    """Sum a count over the DP ranks: `(steps,)`."""
    batches = deal_work(world).batches
    summed: np.ndarray = getattr(batches, name)[:, :: world.attention_tp].sum(axis=1)
    return summed


@pytest.mark.parametrize(
    "fault", [load_requests(1, 2.3, when=onset(3)), load_idle((0, 2), 1.5), load_idle(1, when=burst(0.6))]
)
def test_the_twin_of_uneven_requests_serves_the_same_ones(fault: Fault) -> None:
    world = replace(SMALL, ranks=8, attention_tp=2, length_spread=0.3, faults=(fault,))
    for name in ("decode_requests", "decode_tokens"):
        assert (total(world, name) == total(twin(world), name)).all()
    spread = deal_work(twin(world)).batches.decode_tokens
    assert (np.ptp(spread, axis=1) < 0.4 * spread.mean(axis=1)).all()


def test_the_twin_of_long_contexts_holds_as_many_tokens() -> None:
    world = replace(SMALL, faults=(load_context(2, 2.5),))
    np.testing.assert_allclose(total(world, "decode_tokens"), total(twin(world), "decode_tokens"), rtol=1e-3)
    assert (total(world, "decode_requests") == total(twin(world), "decode_requests")).all()


def test_the_twin_of_a_prompt_on_one_rank_computes_the_same_tokens_on_all() -> None:
    world = replace(SMALL, faults=(load_prefill(2, 1.201, when=periodic(4, 1)),))
    assert total(world, "prompt_tokens").tolist() == total(twin(world), "prompt_tokens").tolist()
    own, even = deal_work(world).batches.prompt_tokens, deal_work(twin(world)).batches.prompt_tokens
    assert np.flatnonzero(own[:, 2]).tolist() == [1, 5]
    assert not np.delete(own, 2, axis=1).any()
    assert np.ptp(even, axis=1).max() <= 1


def test_ranks_without_work_keep_step() -> None:
    batches = deal_work(replace(SMALL, faults=(load_idle(1, 2.0),))).batches
    assert not np.delete(batches.decode_requests, 1, axis=1).any()
    assert (batches.decode_requests[:, 1] >= 20).all()


@pytest.mark.parametrize("gini", [0.2, 0.4, 0.6])
def test_experts_are_as_unequal_as_asked_for(gini: float) -> None:
    model = replace(MODELS["deepseek-v3"], experts=4_096)
    popular = np.sort(draw_popularity(replace(SMALL, routing_gini=gini), model, 0))
    place = np.arange(1, len(popular) + 1)
    assert (2 * (place * popular).sum() / len(popular) - (len(popular) + 1) / len(popular)) == pytest.approx(
        gini, abs=0.03
    )


@pytest.mark.parametrize("ranks", [4, 16, 64])
def test_experts_are_copied_and_placed_so_that_ranks_are_even(ranks: int) -> None:
    popular = draw_popularity(replace(SMALL, routing_gini=0.6), MODELS["deepseek-v3"], 0)
    weights = copy_popular(popular, ranks)
    owner = place_experts(weights, ranks)
    assert weights.sum() == pytest.approx(1.0)
    assert set(np.bincount(owner)) == {(256 + ranks) // ranks}
    on_ranks = np.bincount(owner, weights)
    assert on_ranks.max() / on_ranks.mean() < 1.05


@pytest.mark.parametrize("faults", [(), (hot_expert({0: 1, 1: 3}, 30.0),)])
def test_every_token_reaches_as_many_experts_as_it_takes(faults: tuple[Fault, ...]) -> None:
    world = replace(SMALL, routing_gini=0.6, faults=faults)
    model = choose_model(world)
    rows = np.arange(1, world.run_steps + 1) * 7
    routing = route_tokens(world, model, rows)
    assert (routing.tokens.sum(axis=2) == (rows * model.top_k)[:, None]).all()
    assert (routing.tokens <= rows[:, None, None] * routing.touched).all()
    assert (routing.tiles >= routing.touched).all()


def test_a_hot_rank_draws_tokens_from_the_others() -> None:
    world = replace(SMALL, faults=(hot_expert({0: 1, 1: 3}, 3.0),))
    rows = np.full(world.run_steps, 200)
    hot, even = (route_tokens(it, MODELS["glm-4.5"], rows).tokens for it in (world, replace(world, faults=())))
    assert (np.argmax(hot, axis=2) == [1, 3]).all()
    assert (hot[:, 0, 1] > 1.5 * even[:, 0, 1]).all()
    assert (hot[:, 0, [0, 2, 3]] < even[:, 0, [0, 2, 3]]).all()


def test_the_twin_of_a_hot_expert_reads_the_same_weights_on_all_ranks_alike() -> None:
    world = replace(SMALL, steps=40, faults=(hot_expert({1: 3}, 8.0, when=onset(20)),))
    rows = np.full(world.run_steps, 40)
    hot, even = (route_tokens(it, MODELS["glm-4.5"], rows) for it in (world, twin(world)))
    plain = route_tokens(replace(world, faults=()), MODELS["glm-4.5"], rows)
    for name in ("tokens", "touched", "tiles"):
        mine, spread = getattr(hot, name), getattr(even, name)
        np.testing.assert_allclose(mine.sum(axis=2), spread.sum(axis=2))
        np.testing.assert_allclose(spread[20:, 1].mean(axis=0), spread[20:, 1].mean(), rtol=0.02)
        assert (mine[:, 0] == spread[:, 0]).all()
        assert (mine[:20, 1] == spread[:20, 1]).all()
    assert hot.touched[20:, 1].sum() < 0.95 * plain.touched[20:, 1].sum()
    assert np.ptp(even.touched[20:, 1], axis=1).min() > 0


def durations(timeline: Timeline, key: str, lane: int = 0) -> np.ndarray:
    """Give the durations of an operation: `(steps, layers, ranks)`."""
    it = timeline.lanes[lane]
    picked: np.ndarray = it.work_ns[:, [position for position, op in enumerate(it.operations) if op.key == key]]
    return picked


def test_attention_grows_with_the_tokens_and_experts_hardly_at_all_while_they_read_weights() -> None:
    plain, longer = play(SMALL), play(replace(SMALL, context_tokens=12_000))
    assert 2.5 < durations(longer, "attention").mean() / durations(plain, "attention").mean() < 4
    more = play(replace(SMALL, requests=24))
    assert durations(more, "expert_up").mean() / durations(plain, "expert_up").mean() < 1.2


def test_work_before_the_gather_does_not_differ_inside_a_graph_but_for_attention() -> None:
    quiet = replace(SMALL, noise=0.0, chip_spread=0.0, faults=(load_requests(2, 2.0),))
    for key, differs in (("qkv_gemm", False), ("attention", True)):
        mean = durations(play(quiet), key).mean(axis=(0, 1))
        assert (mean.max() / mean.min() > 1.4) == differs


def test_a_prompt_runs_in_kernels_of_its_own_on_its_rank_alone() -> None:
    world = replace(SMALL, faults=(load_prefill(2, 1.2, when=periodic(4, 1)),))
    decode, mixed = play(world).lanes
    assert (decode.kind, mixed.kind, mixed.steps.tolist()) == ("decode", "mixed", [1, 5])
    assert decode.present is None
    keys = [op.key for op in mixed.operations]
    assert mixed.present is not None
    assert mixed.present[0, keys.index("attention_prefill")].tolist() == [False, False, True, False]
    assert mixed.present[0, keys.index("attention")].tolist() == [True, True, False, True]
    rows = simulate_world(world).rows
    assert len(rows[2].kernels.name) == len(rows[1].kernels.name) - 2 * 2


def test_an_idle_rank_launches_no_attention_without_graphs_and_a_short_one_inside() -> None:
    fault = load_idle((0, 1, 2), 1.0)
    (eager,) = play(replace(SMALL, graph=False, faults=(fault,))).lanes
    at = [op.key for op in eager.operations].index("attention")
    assert eager.present is not None
    assert eager.present[:, at].all(axis=0).tolist() == [True, True, True, False]
    mean = durations(play(replace(SMALL, faults=(fault,))), "attention").mean(axis=(0, 1))
    assert mean[3] < 0.3 * mean[0]


@pytest.mark.parametrize("world", [SMALL, replace(SMALL, graph=False, faults=(load_idle((0, 1), 1.5),))])
def test_absent_kernels_leave_no_rows_and_the_others_never_overlap(world: World) -> None:
    for rows in simulate_world(world).rows:
        kernels = rows.kernels
        assert (kernels.start_ns[1:] >= kernels.end_ns[:-1]).all()
        launched = dict(zip(rows.calls.call.tolist(), rows.calls.end_ns.tolist(), strict=True))
        assert (kernels.start_ns >= [launched[call] for call in kernels.call.tolist()]).all()
        own_calls = set(kernels.call.tolist()) | set(rows.copies.call.tolist()) | set(rows.syncs.call.tolist())
        assert own_calls == set(launched)


def test_lost_graphs_do_the_same_work_launched_one_by_one() -> None:
    world = replace(SMALL, model="qwen3-30b", faults=(structural_graph(2, when=burst(0.5)),))
    graphs, lost = play(world).lanes
    (whole,) = play(twin(world)).lanes
    assert (len(graphs.steps), len(lost.steps), len(whole.steps)) == (4, 4, 8)
    assert not any(op.in_graph for op in lost.operations)
    assert (deal_work(world).batches.decode_tokens == deal_work(twin(world)).batches.decode_tokens).all()
    assert not play(world).batches.decode_requests[lost.steps, 2].any()


def test_an_uneven_layout_keeps_its_share_at_every_load() -> None:
    world = replace(SMALL, noise=0.0, chip_spread=0.0, load_levels=(1.0, 3.0), faults=(structural_layout(1, 1.8),))
    own, even = durations(play(world), "attention"), durations(play(twin(world)), "attention")
    np.testing.assert_allclose(own[:, :, 1] / even[:, :, 1], 1.8 / 1.2, rtol=1e-3)
    np.testing.assert_allclose(own[:, :, 0] / even[:, :, 0], 1.0 / 1.2, rtol=1e-3)


@pytest.mark.parametrize("world,fault", FAULTS)
def test_the_twin_is_faster_than_the_faulty_world(world: World, fault: Fault) -> None:
    faulty = replace(world, faults=(fault,))
    assert play(twin(faulty)).wall_ns() < play(faulty).wall_ns()


@pytest.mark.parametrize("world,fault", [item for item in FAULTS if item[1].kind != "structural_layout"])
def test_a_fault_costs_nothing_where_it_does_not_act(world: World, fault: Fault) -> None:
    idle = replace(world, faults=(replace(fault, when=onset(world.steps)),))
    assert play(idle).wall_ns() == play(replace(world, faults=())).wall_ns()


def test_a_twin_draws_the_same_noise() -> None:
    world = replace(SMALL, faults=(load_context(2, 2.5),))
    for key in ("qkv_gemm", "expert_up", "lm_head_gemm"):
        assert (durations(play(world), key) == durations(play(twin(world)), key)).all()


@pytest.mark.parametrize("communication", ["nccl", "custom_all_reduce", "deepep", "deepep_normal"])
@pytest.mark.parametrize("attention_tp", [1, 2, 4])
def test_a_collective_ends_after_the_last_arrival(communication: str, attention_tp: int) -> None:
    world = replace(SMALL, communication=communication, attention_tp=attention_tp, graph=False, steps=3)
    timeline = play(world)
    (lane,), (times,) = timeline.lanes, timeline.times
    for position, op in enumerate(lane.operations):
        if op.act == "meet" and op.among == "world":
            assert (times.end_ns[:, position].min(axis=1) > times.start_ns[:, position].max(axis=1)).all()


def test_the_same_seed_gives_the_same_world_and_seeds_draw_models_and_chips() -> None:
    assert play(SMALL).wall_ns() == play(SMALL).wall_ns() != play(replace(SMALL, seed=6)).wall_ns()
    drawn = [replace(SMALL, model="drawn", chip="drawn", seed=seed) for seed in range(12)]
    assert len({choose_model(world).hidden for world in drawn}) > 2
    assert len({choose_chip(world).memory_gb_s for world in drawn}) > 2


def test_warm_up_and_drift_are_no_fault() -> None:
    world = replace(SMALL, noise=0.0, steps=60)
    mean = durations(play(world), "lm_head_gemm")[:, 0].mean(axis=1)
    assert mean[0] > 1.1 * mean[10:].mean()
    assert np.std(mean[10:]) < 0.02 * mean.mean()


@pytest.mark.parametrize(
    "fault,slowdown",
    [
        (slow_gpu(1, 1.2), 0.05),
        (slow_gpu(1, 1.2), 0.2),
        (load_context(1, 2.0), 0.05),
        (load_context(1, 2.0), 0.2),
        (load_prefill(1, 1.2, when=periodic(2)), 0.2),
        (load_prefill(1, 1.2, when=periodic(2)), 0.5),
        (slow_link(1, 20_000), 0.1),
    ],
)
def test_a_fault_is_sized_to_the_slowdown_asked_for(fault: Fault, slowdown: float) -> None:
    world = replace(SMALL, requests=48, context_tokens=4_000, faults=(fault,))
    assert truth(fit_slowdown(world, slowdown)).slowdown_ratio == pytest.approx(slowdown, rel=0.06)


def test_rows_are_the_drafts_of_requests_and_the_tokens_of_prompts() -> None:
    work: Work = deal_work(replace(SMALL, verify_tokens=3, prefill_every=4, chunk_tokens=100))
    rows = count_rows(replace(SMALL, verify_tokens=3), work)
    assert rows[0].sum() == 3 * SMALL.requests * SMALL.dp_size
    assert rows[3].sum() == rows[0].sum() + 100 * SMALL.dp_size


@pytest.mark.parametrize(
    "change",
    [
        {"two_batch_overlap": True},
        {"faults": (structural_layout(1, 1.5),)},
        {"faults": (structural_graph(1, when=replace(burst(0.2), kind="steady")),)},
        {"graph": False, "faults": (structural_graph(1, when=burst(0.2)),)},
        {"physics": "fixed", "faults": (load_idle(1),)},
        {"physics": "fixed", "verify_tokens": 2},
    ],
)
def test_an_impossible_world_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"overlap|layout|graphs|physics"):
        replace(SMALL, **change)  # type: ignore[arg-type]


def test_the_roofline_imports_nothing_of_the_fixed_physics() -> None:
    for path in sorted(Path(dprankdiag.harness.__file__).parent.glob("roofline*.py")):
        names = [
            node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
        ]
        assert not {"dprankdiag.harness.physics", "dprankdiag.harness.timeline"}.intersection(names), path.name
