"""The queueing physics keeps what every deployment keeps, and shares nothing with the two that thresholds know."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dprankdiag.harness
from dprankdiag.harness.faults import (
    Fault,
    burst,
    fabric,
    host_burst,
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
    uniform,
)
from dprankdiag.harness.queueing_routing import route_rows
from dprankdiag.harness.queueing_service import draw_machine, multiply, pad, read_table, serve_experts, transfer
from dprankdiag.harness.queueing_traffic import deal_traffic
from dprankdiag.harness.sampling import fit_slowdown
from dprankdiag.harness.timeline import Timeline, play
from dprankdiag.harness.trace_suites import draw_suite
from dprankdiag.harness.world import Physics, World
from dprankdiag.harness.worlds import simulate_world, truth, twin

SMALL = World(seed=5, physics="queueing", ranks=4, steps=10, layers=2)
LEVELS = replace(SMALL, load_levels=(1.0, 2.5))
FAULTS = [
    (SMALL, slow_gpu(1, 1.4)),
    (SMALL, slow_gpu(1, 1.6, memory_only=True)),
    (SMALL, load_context(2, 4.0)),
    (SMALL, load_requests(2, 4.0)),
    (SMALL, load_prefill(1, 1.5, when=periodic(3))),
    (replace(SMALL, requests=64), load_idle((0, 3), 1.5)),
    (LEVELS, structural_layout(1, 1.8)),
    (LEVELS, structural_layout(1, 1.8, side="after")),
    (SMALL, structural_graph(2, when=burst(0.5))),
    (SMALL, host_late((2, 3), 400_000)),
    (SMALL, host_late(3, 400_000, before_gather=True)),
    (SMALL, host_burst(0, stalls=2, stall_ns=2_000_000)),
    (replace(SMALL, requests=128), hot_expert({0: 1, 1: 3}, 6.0)),
    (replace(SMALL, communication="deepep"), receiver_queue(1, 60_000)),
    (SMALL, slow_link(2, 60_000)),
    (SMALL, fabric(4.0)),
    (SMALL, uniform(1.3)),
]


def durations(timeline: Timeline, key: str, lane: int = 0) -> np.ndarray:
    """Give the durations of an operation: `(steps, layers, ranks)`."""
    it = timeline.lanes[lane]
    picked: np.ndarray = it.work_ns[:, [position for position, op in enumerate(it.operations) if op.key == key]]
    return picked


@pytest.mark.parametrize("faults", [(), (hot_expert({0: 1, 1: 3}, 30.0),)])
@pytest.mark.parametrize("gini", [0.1, 0.6])
def test_every_token_reaches_as_many_experts_as_it_takes(faults: tuple[Fault, ...], gini: float) -> None:
    world = replace(SMALL, routing_gini=gini, faults=faults)
    rows = np.arange(1, world.run_steps + 1) * 7
    routed = route_rows(world, rows)
    assert (routed.tokens.sum(axis=2) == (rows * routed.chosen)[:, None]).all()
    assert (routed.tokens >= 0).all()
    assert (routed.tokens <= (rows + 1)[:, None, None] * routed.asked).all()


def test_a_hot_rank_draws_tokens_from_the_others_and_no_rank_stays_hot_by_itself() -> None:
    world = replace(SMALL, steps=200, ranks=8, faults=(hot_expert({0: 1, 1: 3}, 3.0),))
    rows = np.full(world.run_steps, 200)
    hot, plain = (route_rows(it, rows).tokens for it in (world, replace(world, faults=())))
    assert (np.argmax(hot.mean(axis=0), axis=1) == [1, 3]).all()
    assert (np.delete(hot[:, 0], 1, axis=1).mean(axis=0) < np.delete(plain[:, 0], 1, axis=1).mean(axis=0)).all()
    assert np.abs(plain.mean(axis=(0, 1)) / plain.mean() - 1).max() < 0.03


def test_the_twin_of_a_hot_expert_does_the_same_work_on_all_ranks_alike() -> None:
    world = replace(SMALL, steps=40, faults=(hot_expert({1: 3}, 8.0, when=onset(20)),))
    rows = np.full(world.run_steps, 200)
    hot, even = (route_rows(it, rows) for it in (world, twin(world)))
    for name in ("tokens", "asked", "worked", "largest"):
        mine, spread = getattr(hot, name), getattr(even, name)
        np.testing.assert_allclose(mine.sum(axis=2), spread.sum(axis=2))
        np.testing.assert_allclose(spread[20:, 1].mean(axis=0), spread[20:, 1].mean(), rtol=0.02)
        assert (mine[:, 0] == spread[:, 0]).all()
        assert (mine[:20, 1] == spread[:20, 1]).all()
    assert np.ptp(even.tokens[20:, 1], axis=1).min() > 0


@pytest.mark.parametrize("fault", [load_context(1, 2.5), load_requests(1, 2.3, when=onset(3)), load_idle((0, 2), 1.5)])
def test_the_twin_of_uneven_load_serves_as_many_requests_and_tokens_evenly(fault: Fault) -> None:
    world = replace(SMALL, ranks=8, attention_tp=2, faults=(fault,))
    mine, even = deal_traffic(world).batches, deal_traffic(twin(world)).batches
    assert (mine.decode_requests.sum(axis=1) == even.decode_requests.sum(axis=1)).all()
    np.testing.assert_allclose(mine.decode_tokens.sum(axis=1), even.decode_tokens.sum(axis=1), rtol=1e-3)
    assert np.ptp(even.decode_requests, axis=1).max() <= 1
    assert (np.ptp(even.decode_tokens, axis=1) < 0.25 * even.decode_tokens.mean(axis=1)).all()


def test_prompts_of_the_twin_are_shared_and_as_many() -> None:
    world = replace(SMALL, faults=(load_prefill(2, 1.201, when=periodic(4, 1)),))
    mine, even = (deal_traffic(it).batches.prompt_tokens for it in (world, twin(world)))
    assert np.flatnonzero(mine[:, 2]).tolist() == [1, 5, 9]
    assert (mine.sum(axis=1) == even.sum(axis=1)).all()
    assert np.ptp(even, axis=1).max() <= 1


def test_contexts_grow_by_a_token_a_step_at_first_and_hardly_at_last() -> None:
    tokens = deal_traffic(replace(SMALL, steps=600, load_spread=0.0)).batches
    context = (tokens.decode_tokens / tokens.decode_requests).mean(axis=1)
    assert context[10] - context[0] == pytest.approx(10, abs=1.5)
    assert context[-1] - context[-100] < 5


def test_load_comes_in_bursts_that_all_ranks_share() -> None:
    requests = deal_traffic(replace(SMALL, steps=300, requests=64)).batches.decode_requests
    assert np.ptp(requests, axis=1).max() <= 1
    assert requests.max() > 1.1 * requests.min()


@pytest.mark.parametrize("world,fault", FAULTS)
def test_the_twin_is_faster_than_the_faulty_world(world: World, fault: Fault) -> None:
    faulty = replace(world, faults=(fault,))
    assert play(twin(faulty)).wall_ns() < play(faulty).wall_ns()


@pytest.mark.parametrize("world,fault", [it for it in FAULTS if it[1].kind not in ("structural_layout", "host_burst")])
def test_a_fault_costs_nothing_where_it_does_not_act(world: World, fault: Fault) -> None:
    idle = replace(world, faults=(replace(fault, when=onset(world.steps)),))
    assert play(idle).wall_ns() == play(replace(world, faults=())).wall_ns()


def test_a_twin_differs_in_nothing_but_the_fault() -> None:
    world = replace(SMALL, faults=(slow_gpu(1, 1.5),))
    (mine,), (even,) = play(world).lanes, play(twin(world)).lanes
    work = [position for position, op in enumerate(mine.operations) if op.act == "work"]
    ratio = mine.work_ns[:, work] / even.work_ns[:, work]
    np.testing.assert_allclose(ratio[:, :, 1], 1.5, rtol=2e-3)
    assert (np.delete(ratio, 1, axis=2) == 1).all()
    assert (mine.gap_ns == even.gap_ns).all()
    assert (mine.transfer_ns == even.transfer_ns).all()


def test_long_contexts_lengthen_attention_alone() -> None:
    world = replace(SMALL, faults=(load_context(2, 4.0),))
    mine, even = play(world), play(twin(world))
    assert (durations(mine, "attention")[:, :, 2] > 1.5 * durations(even, "attention")[:, :, 2]).all()
    for key in ("qkv_gemm", "router", "expert_up", "lm_head_gemm"):
        assert (durations(mine, key) == durations(even, key)).all()


def test_nobody_is_slow_in_a_healthy_world_beyond_what_chips_differ() -> None:
    world = replace(SMALL, ranks=8, steps=80, layers=3, chip_spread=0.0)
    timeline = play(world)
    for key in ("qkv_gemm", "attention", "expert_up", "router"):
        mean = durations(timeline, key).mean(axis=(0, 1))
        assert np.ptp(mean) < 0.04 * mean.mean(), key


def test_chips_differ_by_family_of_kernels() -> None:
    world = replace(SMALL, ranks=8, steps=40, noise=0.0, chip_spread=0.02, load_spread=0.0)
    timeline = play(world)
    slowest = {key: durations(timeline, key).mean(axis=(0, 1)) for key in ("qkv_gemm", "input_norm", "attention")}
    assert all(0.02 < np.ptp(mean) / mean.mean() < 0.12 for mean in slowest.values())
    assert np.corrcoef(list(slowest.values())).min() < 0.9


def test_noise_lasts_some_steps_and_has_heavy_tails() -> None:
    world = replace(SMALL, ranks=8, steps=400, noise=0.05, chip_spread=0.0, tail_share=0.002)
    logs = np.log(durations(play(world), "lm_head_gemm")[:, 0])
    logs = logs - np.median(logs)
    assert np.mean(logs[1:] * logs[:-1]) / logs.var() > 0.03
    assert np.mean(np.abs(logs) > 4 * 1.4826 * np.median(np.abs(logs))) > 0.004


def test_the_same_seed_gives_the_same_world_and_seeds_draw_other_machines() -> None:
    assert play(SMALL).wall_ns() == play(SMALL).wall_ns() != play(replace(SMALL, seed=6)).wall_ns()
    assert len({draw_machine(replace(SMALL, seed=seed)) for seed in range(6)}) == 6


def test_the_physics_differ_in_what_takes_how_long() -> None:
    physics: tuple[Physics, ...] = ("fixed", "roofline", "queueing")
    shares = []
    for name in physics:
        timeline = play(replace(SMALL, physics=name, ranks=8))
        keys = ("qkv_gemm", "attention", "expert_up", "lm_head_gemm", "input_norm")
        mean = np.asarray([durations(timeline, key).mean() for key in keys])
        shares.append(mean / mean.sum())
    assert min(np.abs(one - other).max() for one, other in zip(shares, shares[1:] + shares[:1], strict=True)) > 0.05


@pytest.mark.parametrize("communication", ["nccl", "custom_all_reduce", "deepep", "deepep_normal"])
@pytest.mark.parametrize("attention_tp", [1, 2, 4])
def test_a_collective_ends_after_the_last_arrival(communication: str, attention_tp: int) -> None:
    world = replace(SMALL, communication=communication, attention_tp=attention_tp, graph=False, steps=3)
    (lane,), (times,) = play(world).lanes, play(world).times
    for position, op in enumerate(lane.operations):
        if op.act == "meet" and op.among == "world":
            assert (times.end_ns[:, position].min(axis=1) > times.start_ns[:, position].max(axis=1)).all()


@pytest.mark.parametrize(
    "world", [SMALL, replace(SMALL, graph=False, faults=(load_idle((0, 1), 1.5),)), replace(SMALL, prefill_every=4)]
)
def test_absent_kernels_leave_no_rows_and_the_others_never_overlap(world: World) -> None:
    for rows in simulate_world(world).rows:
        kernels = rows.kernels
        assert (kernels.start_ns[1:] >= kernels.end_ns[:-1]).all()
        launched = dict(zip(rows.calls.call.tolist(), rows.calls.end_ns.tolist(), strict=True))
        assert (kernels.start_ns >= [launched[call] for call in kernels.call.tolist()]).all()


def test_a_queue_grows_faster_than_what_a_rank_receives() -> None:
    world = replace(SMALL, communication="deepep", steps=60, faults=(receiver_queue(1, 60_000),))
    timeline = play(world)
    rows = timeline.batches.decode_requests.sum(axis=1)
    tokens = route_rows(world, rows).tokens
    share = (tokens / tokens.mean(axis=2, keepdims=True))[:, :, 1].ravel()
    late = durations(timeline, "combine")[:, :, 1].ravel()
    slope = np.polyfit(np.log(share), np.log(late), 1)[0]
    assert 1.3 < slope < 1.9


@pytest.mark.parametrize(
    "fault,slowdown",
    [(slow_gpu(1, 1.2), 0.05), (load_context(1, 2.0), 0.2), (load_prefill(1, 1.2, when=periodic(2)), 0.2),
     (slow_link(1, 20_000), 0.1)],
)  # fmt: skip
def test_a_fault_is_sized_to_the_slowdown_asked_for(fault: Fault, slowdown: float) -> None:
    sized = fit_slowdown(replace(SMALL, faults=(fault,)), slowdown)
    assert truth(sized).slowdown_ratio == pytest.approx(slowdown, rel=0.06)


@pytest.mark.parametrize("letter", ["H", "S", "C"])
def test_suites_are_drawn_with_it(letter: str) -> None:
    cases = draw_suite(letter, 6, 3, kernels=4_000, physics="queueing")
    assert {case.world.physics for case in cases} == {"queueing"}
    assert all(play(case.world).wall_ns() > 0 for case in cases)


def test_tables_are_read_between_their_points_and_beyond_the_last() -> None:
    table = ((10.0, 1.0), (1_000.0, 10.0))
    assert read_table(table, np.asarray([1, 10, 100, 1_000, 100_000])) == pytest.approx([1, 1, 10**0.5, 10, 100])


def test_captured_sizes_hold_the_busiest_rank() -> None:
    assert pad(np.asarray([1, 5, 24, 25, 256, 257])).tolist() == [1, 6, 24, 32, 256, 512]


def test_the_largest_expert_alone_can_set_the_pace() -> None:
    machine = draw_machine(SMALL)
    asked, worked = np.full(1, 8), np.full(1, 320.0)
    one, other = (serve_experts(machine, asked, worked, np.full(1, it), 1.0).time_ns[0] for it in (300.0, 40.0))
    assert one > 1.5 * other
    assert serve_experts(machine, asked, worked, np.full(1, 40.0), 1.0).memory_share[0] < 0.7


def test_busy_links_take_longer_for_the_same_bytes_and_hops_cost_latency() -> None:
    machine = draw_machine(SMALL)
    sent = np.full((1, 1), 1e6)
    idle, busy = (transfer(machine, sent, 8, False, np.full((1, 1), it))[0, 0] for it in (0.0, 0.5))
    nothing = transfer(machine, 0 * sent, 8, False, np.zeros((1, 1)))[0, 0]
    assert busy - nothing == pytest.approx(2 * (idle - nothing))
    assert transfer(machine, sent, 8, True, np.zeros((1, 1)))[0, 0] > idle


def test_products_of_few_rows_wait_for_memory_and_of_many_for_arithmetic() -> None:
    few, many = (multiply(draw_machine(SMALL), np.asarray([rows]), 10.0) for rows in (4, 4_000))
    assert few.memory_share[0] > 0.9 > 0.1 > many.memory_share[0]
    assert few.last(np.ones(1), np.full(1, 2.0))[0] > 1.9 * few.time_ns[0]
    assert many.last(np.ones(1), np.full(1, 2.0))[0] < 1.1 * many.time_ns[0]


def test_it_imports_nothing_of_the_other_physics() -> None:
    for path in sorted(Path(dprankdiag.harness.__file__).parent.glob("queueing*.py")):
        names = [
            node.module or "" for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
        ]
        others = [name for name in names if name.endswith((".physics", ".timeline")) or ".roofline" in name]
        assert not others, path.name
