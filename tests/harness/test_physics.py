"""The simulated world obeys the physics that a diagnosis relies on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.harness.activity import fault_activity
from dprankdiag.harness.draws import draw_world
from dprankdiag.harness.events import Array
from dprankdiag.harness.faults import (
    Fault,
    burst,
    fabric,
    host_burst,
    host_late,
    hot_expert,
    load_context,
    load_requests,
    onset,
    periodic,
    receiver_queue,
    slow_gpu,
    slow_link,
    uniform,
    window,
)
from dprankdiag.harness.physics import Loads, compute_loads
from dprankdiag.harness.timeline import Timeline, play
from dprankdiag.harness.world import Communication
from dprankdiag.harness.worlds import World, simulate_world, twin

SMALL = World(seed=5, ranks=4, steps=8, layers=3)
DISPATCHED = replace(SMALL, communication="deepep")

FAULTS = [
    (SMALL, slow_gpu(1, 1.4)),
    (SMALL, slow_gpu(1, 1.4, memory_only=True)),
    (SMALL, load_context(2, 3.0)),
    (SMALL, load_requests(2, 2.0)),
    (SMALL, host_late(3, 400_000)),
    (SMALL, host_late(3, 400_000, before_gather=True)),
    (SMALL, host_burst(0, stalls=2, stall_ns=2_000_000)),
    (SMALL, hot_expert({0: 1, 1: 3, 2: 0}, 2.5)),
    (DISPATCHED, receiver_queue(1, 40_000)),
    (SMALL, slow_link(2, 25_000)),
    (SMALL, fabric(3.0)),
    (SMALL, uniform(1.3)),
]


def pick(timeline: Timeline, key: str) -> tuple[Array, Array]:
    """Give start and end of an operation: `(steps, layers, ranks)`."""
    (lane,), (times,) = timeline.lanes, timeline.times
    at = [position for position, op in enumerate(lane.operations) if op.key == key]
    return times.start_ns[:, at], times.end_ns[:, at]


def loads_of(world: World) -> Loads:
    """Compute the loads of a world."""
    return compute_loads(world, draw_world(world))


@pytest.mark.parametrize("communication", ["nccl", "custom_all_reduce", "deepep", "deepep_normal"])
def test_a_collective_ends_together_and_after_the_last_arrival(communication: Communication) -> None:
    world = replace(SMALL, communication=communication, graph=False, faults=(load_context(2, 3.0),))
    key = "dispatch" if communication.startswith("deepep") else "gather"
    start, end = pick(play(world), key)
    assert (end.max(axis=2) - end.min(axis=2) <= 3_000).all()
    assert (end.min(axis=2) - start.max(axis=2) > 0.7 * world.transfer_ns).all()


def test_the_late_rank_has_the_shortest_collective() -> None:
    start, end = pick(play(replace(SMALL, faults=(load_context(2, 3.0),))), "gather")
    assert (np.argmin(end - start, axis=2) == 2).all()


def test_an_attention_group_waits_for_its_own_members_only() -> None:
    world = replace(SMALL, attention_tp=2, layers=1, noise=0.0, chip_spread=0.0, faults=(load_context(2, 3.0),))
    _, end = pick(play(world), "attention_all_reduce")
    assert (end[:, 0, 2:].min(axis=1) > end[:, 0, :2].max(axis=1) + 50_000).all()


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("comm_stream", [True, False])
def test_kernels_of_a_stream_never_overlap(graph: bool, comm_stream: bool) -> None:
    for rows in simulate_world(replace(SMALL, graph=graph, comm_stream=comm_stream, prefill_every=3)).rows:
        for stream in np.unique(rows.kernels.stream):
            mine = rows.kernels.stream == stream
            assert (rows.kernels.start_ns[mine][1:] >= rows.kernels.end_ns[mine][:-1]).all()


def test_dependent_launch_starts_kernels_before_their_predecessor_ends_but_after_its_start() -> None:
    for rows in simulate_world(replace(SMALL, dependent_launch=True)).rows:
        start, end = rows.kernels.start_ns, rows.kernels.end_ns
        assert np.mean(start[1:] < end[:-1]) > 0.5
        assert (start[1:] > start[:-1]).all()
        assert (end[1:] >= end[:-1]).all()


@pytest.mark.parametrize("graph", [True, False])
def test_no_kernel_starts_before_its_launch_call_ends(graph: bool) -> None:
    for rows in simulate_world(replace(SMALL, graph=graph)).rows:
        launched = dict(zip(rows.calls.call.tolist(), rows.calls.end_ns.tolist(), strict=True))
        ends = np.asarray([launched[call] for call in rows.kernels.call.tolist()])
        assert (rows.kernels.start_ns >= ends).all()


@pytest.mark.parametrize("world,fault", FAULTS)
def test_the_twin_is_faster_than_the_faulty_world(world: World, fault: Fault) -> None:
    faulty = replace(world, faults=(fault,))
    assert play(twin(faulty)).wall_ns() < play(faulty).wall_ns()


@pytest.mark.parametrize("world,fault", [item for item in FAULTS if item[1].kind != "host_burst"])
def test_a_fault_costs_nothing_where_it_does_not_act(world: World, fault: Fault) -> None:
    idle = replace(world, faults=(replace(fault, when=onset(world.steps)),))
    assert play(idle).wall_ns() == play(replace(world, faults=())).wall_ns()


def test_the_twin_of_a_load_fault_does_the_same_work_in_total() -> None:
    faulty = replace(SMALL, attention_tp=2, load_spread=0.1, faults=(load_context(2, 3.0, when=onset(3)),))
    mine, even = loads_of(faulty), loads_of(twin(faulty))
    np.testing.assert_allclose(mine.context.sum(axis=1), even.context.sum(axis=1))
    assert (mine.context[3:, 2:] > even.context[3:, 2:]).all()
    np.testing.assert_allclose(mine.context[:3], even.context[:3])


def test_the_twin_of_an_expert_fault_routes_as_many_tokens_through_every_layer() -> None:
    faulty = replace(SMALL, faults=(hot_expert({0: 1, 1: 3, 2: 0}, 2.5),))
    mine, even = loads_of(faulty).tokens, loads_of(twin(faulty)).tokens
    np.testing.assert_allclose(mine.sum(axis=2), even.sum(axis=2))
    assert (np.argmax(mine, axis=2) == [1, 3, 0]).mean() > 0.95


def test_a_slow_gpu_changes_the_kernels_of_its_rank_alone_and_by_its_factor() -> None:
    faulty = replace(SMALL, faults=(slow_gpu(1, 1.5),))
    (lane,), (even,) = play(faulty).lanes, play(twin(faulty)).lanes
    work = [position for position, op in enumerate(lane.operations) if op.act == "work"]
    ratio = lane.work_ns[:, work] / even.work_ns[:, work]
    np.testing.assert_allclose(ratio[:, :, 1], 1.5, rtol=1e-3)
    assert (np.delete(ratio, 1, axis=2) == 1).all()


def test_attention_follows_the_context_and_the_kernels_after_the_gather_do_not() -> None:
    faulty = replace(SMALL, faults=(load_context(2, 3.0),))
    (lane,), (even,) = play(faulty).lanes, play(twin(faulty)).lanes
    keys = np.asarray([op.key for op in lane.operations])
    after = np.isin(keys, ["post_norm", "router", "align", "expert_up", "expert_down"])
    assert (lane.work_ns[:, after] == even.work_ns[:, after]).all()
    assert (lane.work_ns[:, keys == "attention", 2] > 1.8 * even.work_ns[:, keys == "attention", 2]).all()


def test_padding_to_the_busiest_rank_lengthens_the_kernels_after_the_gather() -> None:
    padded = replace(SMALL, max_padding=True, faults=(load_requests(2, 2.0),))
    (lane,), (even,) = play(padded).lanes, play(twin(padded)).lanes
    at = [position for position, op in enumerate(lane.operations) if op.key == "expert_up"]
    assert (lane.work_ns[:, at] > 1.2 * even.work_ns[:, at]).all()


def test_the_sending_half_of_a_hooked_dispatch_never_waits() -> None:
    world = replace(DISPATCHED, receive_hook=True, faults=(load_context(2, 3.0),))
    timeline = play(world)
    start, end = pick(timeline, "dispatch_send")
    assert (end - start < 5_000).all()
    start, end = pick(timeline, "dispatch")
    assert (end - start)[:, :, [0, 1, 3]].min() > 60_000


def test_normal_dispatch_makes_the_host_wait_for_the_counts() -> None:
    world = replace(SMALL, communication="deepep_normal", graph=False)
    (lane,), (times,) = play(world).lanes, play(world).times
    at = next(position for position, op in enumerate(lane.operations) if op.key == "notify_dispatch")
    assert (times.call_start_ns[:, times.call_of[at] + 1] > times.end_ns[:, at]).all()


def test_overlapped_scheduling_hides_a_small_delay_of_the_host() -> None:
    late = (host_late(1, 300_000),)

    def cost(world: World) -> int:
        return play(replace(world, faults=late)).wall_ns() - play(world).wall_ns()

    long = replace(SMALL, layers=6)
    assert cost(replace(long, overlap=True)) < 0.3 * cost(long)


def test_a_late_host_before_the_gather_holds_up_all_hosts_and_leaves_no_skew() -> None:
    world = replace(SMALL, noise=0.0, chip_spread=0.0, load_spread=0.0)
    start, _ = pick(play(replace(world, faults=(host_late(1, 400_000, before_gather=True),))), "gather")
    assert (np.ptp(start[:, 0], axis=1) < 20_000).all()
    start, _ = pick(play(replace(world, faults=(host_late(1, 400_000),))), "gather")
    assert (np.ptp(start[:, 0], axis=1) > 380_000).all()


@pytest.mark.parametrize(
    "when,expected",
    [
        (onset(5), [5, 6, 7]),
        (window(2, 4), [2, 3]),
        (periodic(3, 1), [1, 4, 7]),
    ],
)
def test_a_fault_acts_in_its_steps(when: object, expected: list[int]) -> None:
    world = replace(SMALL, faults=(replace(slow_gpu(1, 2.0), when=when),))  # type: ignore[arg-type]
    active = fault_activity(world, 0)
    assert np.flatnonzero(active[:, 1]).tolist() == expected
    assert not np.delete(active, 1, axis=1).any()


def test_a_burst_acts_in_its_share_of_the_steps() -> None:
    world = replace(SMALL, steps=40, faults=(slow_gpu(1, 2.0, when=burst(0.1)),))
    assert fault_activity(world, 0)[:, 1].sum() == 4


def test_a_rotating_fault_visits_its_ranks_in_turn() -> None:
    world = replace(SMALL, faults=(slow_gpu((0, 2, 3), 2.0, rotating=True),))
    assert np.argmax(fault_activity(world, 0), axis=1).tolist() == [0, 2, 3, 0, 2, 3, 0, 2]


def test_prompt_steps_are_longer_for_everyone_and_launched_eagerly() -> None:
    timeline = play(replace(SMALL, steps=9, prefill_every=3))
    decode, prefill = timeline.lanes
    assert prefill.steps.tolist() == [2, 5, 8]
    assert not any(op.in_graph for op in prefill.operations)
    assert prefill.work_ns.sum(axis=1).min() > 3 * decode.work_ns.sum(axis=1).max()


def test_the_same_seed_gives_the_same_world_and_another_seed_another() -> None:
    assert play(SMALL).wall_ns() == play(SMALL).wall_ns() != play(replace(SMALL, seed=6)).wall_ns()


def test_cut_edges_record_parts_of_one_step_more_at_either_end() -> None:
    whole = simulate_world(SMALL)
    cut = simulate_world(replace(SMALL, cut_edges=True))
    for mine, other in zip(cut.rows, whole.rows, strict=True):
        assert len(other.kernels.name) < len(mine.kernels.name) < 10 / 8 * len(other.kernels.name)
    assert len({int(rows.kernels.start_ns[0]) // 50_000 for rows in cut.rows}) > 1


@pytest.mark.parametrize(
    "change",
    [
        {"attention_tp": 3},
        {"communication": "deepep_normal"},
        {"communication": "custom_all_reduce", "ranks": 16},
        {"ranks_per_node": 2},
        {"faults": (slow_gpu(9, 1.5),)},
        {"faults": (receiver_queue(1, 10_000),)},
    ],
)
def test_an_impossible_world_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"rank|attention|dispatch|reduce|nodes"):
        replace(SMALL, **change)  # type: ignore[arg-type]
