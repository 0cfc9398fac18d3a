"""Named worlds have the truth they are named for."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import dprankdiag.harness
from dprankdiag.harness.faults import hot_expert, load_context, receiver_queue, slow_gpu, slow_link, uniform
from dprankdiag.harness.suites import WORLDS
from dprankdiag.harness.world import Annotations
from dprankdiag.harness.worlds import World, simulate_world, truth, truths, twin

EXPECTED = {
    "healthy": (None, ()),
    "healthy_noisy": (None, ()),
    "slow_gpu": ("single_point.gpu", (2,)),
    "load_context": ("load.context", (3,)),
    "load_requests": ("load.requests", (6,)),
    "load_onset": ("load.context", (1,)),
    "host_burst": ("single_point.host", (5,)),
    "host_steady": ("single_point.host", (4,)),
    "hot_expert": ("structural.expert", (0, 1, 3, 5, 6, 7)),
    "receiver_queue": ("structural.dispatch", (6,)),
    "slow_link": ("single_point.link", (2,)),
    "fabric_window": ("communication.fabric", ()),
    "uniform": ("uniform.slow", ()),
    "attention_tp_load": ("load.context", (4, 5)),
    "deepep_load": ("load.context", (0,)),
    "two_slow_gpus": ("single_point.gpu", (1, 6)),
    "custom_all_reduce_gpu": ("single_point.gpu", (5,)),
    "one_file_per_rank_clock": ("load.context", (7,)),
    "load_rotating": ("load.context", (1, 4, 6)),
    "host_periodic": ("single_point.host", (3,)),
    "memory_only_gpu": ("single_point.gpu", (1,)),
    "eager_dependent_launch": ("single_point.gpu", (4,)),
    "normal_dispatch": ("load.context", (2,)),
    "invented_names": ("single_point.gpu", (3,)),
    "cut_edges": ("load.context", (5,)),
    "one_file_per_node": ("single_point.gpu", (11,)),
    "starts_apart": ("load.context", (3,)),
    "overlap_healthy": (None, ()),
    "overlap_eager_healthy": (None, ()),
    "overlap_slow_gpu": ("single_point.gpu", (2,)),
    "overlap_eager_slow_gpu": ("single_point.gpu", (2,)),
    "overlap_load": ("load.context", (5,)),
    "overlap_deepep_load": ("load.context", (1,)),
    "overlap_hook_load": ("load.context", (6,)),
    "overlap_attention_tp_load": ("load.context", (2, 3)),
}


@pytest.mark.parametrize("name", WORLDS)
def test_each_named_world_has_its_cause_its_ranks_and_a_loss_worth_finding(name: str) -> None:
    true = truth(WORLDS[name])
    assert (true.cause, true.ranks) == EXPECTED[name]
    assert true.healthy == (true.cause is None)
    assert (true.lost_ns == 0) if true.healthy else (true.lost_ratio > 0.05)
    assert true.slowdown_ratio == pytest.approx(true.wall_ns / (true.wall_ns - true.lost_ns) - 1)


@pytest.mark.parametrize("name", WORLDS)
def test_each_named_world_records_kernels_on_every_rank(name: str) -> None:
    recording = simulate_world(WORLDS[name])
    assert len(recording.rows) == WORLDS[name].ranks
    assert all(len(rows.kernels.name) > 500 for rows in recording.rows)
    assert all((rows.kernels.end_ns > rows.kernels.start_ns).all() for rows in recording.rows)


def test_the_twin_of_a_healthy_world_is_itself() -> None:
    assert twin(WORLDS["healthy"]) == WORLDS["healthy"]


def test_the_twin_of_a_twin_is_itself() -> None:
    once = twin(WORLDS["load_context"])
    assert twin(once) == once


@pytest.mark.parametrize("annotations,graph,rung", [("batch", True, "load.context"), ("steps", True, "load.unknown")])
def test_the_kind_of_load_is_answerable_where_batches_are_told(
    annotations: Annotations, graph: bool, rung: str
) -> None:
    world = replace(WORLDS["load_context"], annotations=annotations, graph=graph)
    assert truth(world).answerable == rung


def test_grids_of_eager_kernels_tell_the_kind_of_load_too() -> None:
    assert truth(replace(WORLDS["load_context"], annotations="none", graph=False)).answerable == "load.context"


def test_a_replay_recorded_as_a_whole_carries_no_more_than_a_late_rank() -> None:
    assert truth(replace(WORLDS["slow_gpu"], graph_mode="graph")).answerable == "unclassified.late"


def test_experts_that_are_hot_on_every_rank_in_turn_are_nobodys_fault() -> None:
    world = World(seed=5, ranks=2, steps=10, layers=2, faults=(hot_expert({0: 1, 1: 0}, 3.0),))
    true = truth(world)
    assert (true.ranks, true.who, true.layers) == ((), "rotating", (0, 1))
    assert truth(replace(world, faults=(hot_expert({0: 1, 1: 1}, 3.0),))).ranks == (1,)


DISPATCHED = World(seed=5, ranks=4, steps=40, layers=3, communication="deepep")


def test_a_queue_is_answerable_where_late_ends_follow_what_the_experts_get() -> None:
    queue = replace(DISPATCHED, faults=(receiver_queue(1, 40_000),))
    assert truth(queue).answerable == "structural.dispatch"
    assert truth(replace(queue, physics="queueing")).answerable == "structural.dispatch"
    assert truth(replace(queue, routing_spread=0.0)).answerable == "unclassified.late"


def test_weights_that_take_all_the_time_hide_what_an_expert_gets() -> None:
    few = replace(DISPATCHED, physics="roofline", model="deepseek-v3", chip="h200", steps=12)
    assert truth(replace(few, faults=(receiver_queue(1, 40_000),))).answerable == "unclassified.late"
    many = replace(few, model="qwen3-30b", chip="h20", requests=512, routing_spread=0.3, steps=40)
    assert truth(replace(many, faults=(receiver_queue(1, 40_000),))).answerable == "structural.dispatch"


def test_a_link_is_answerable_where_ranks_meet_otherwise_too() -> None:
    link = replace(DISPATCHED, faults=(slow_link(1, 40_000),))
    assert truth(link).answerable == "unclassified.late"
    assert truth(replace(link, attention_tp=2)).answerable == "single_point.link"


def test_neither_replays_as_a_whole_nor_unknown_names_tell_a_queue() -> None:
    queue = replace(DISPATCHED, faults=(receiver_queue(1, 40_000),))
    assert truth(replace(queue, graph_mode="graph")).answerable == "unclassified.late"
    assert truth(replace(queue, names="invented")).answerable == "unclassified.late"


def test_several_faults_are_told_one_by_one_and_share_what_is_lost() -> None:
    world = World(seed=3, steps=10, faults=(slow_gpu(2, 1.25), load_context(2, 2.0)))
    first, second = truths(world)
    assert (first.cause, second.cause) == ("single_point.gpu", "load.context")
    assert first.lost_ns > 0
    assert second.lost_ns > 0
    with pytest.raises(ValueError, match="2 faults"):
        truth(world)


def test_uniform_slowness_blames_nobody() -> None:
    true = truth(World(seed=3, steps=10, faults=(uniform(1.2),)))
    assert (true.who, true.ranks) == ("all", ())


SERVED = ("scenario", "served", "mock")
"""Beginnings of the names of files that serve requests; the others build worlds of kernels or of ledgers."""


def test_the_harness_imports_nothing_of_what_it_tests() -> None:
    for path in sorted(Path(dprankdiag.harness.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            ours = [name for name in names if name.startswith("dprankdiag")]
            served = ("simulate", "model", "errors", "units") if path.name.startswith(SERVED) else ()
            allowed = tuple(f"dprankdiag.{room}" for room in ("harness", *served))
            assert all(name.startswith(allowed) for name in ours), path.name
            assert "dprankdiag.simulate.counterfactual" not in ours, path.name
