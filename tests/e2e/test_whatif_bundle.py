"""What a recording promises of its other lives, against worlds that really have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.harness.expert_dump import count_world, write_counts
from dprankdiag.harness.suites import WORLDS
from dprankdiag.harness.timeline import play
from dprankdiag.harness.world import World
from dprankdiag.harness.worlds import truth
from dprankdiag.model.whatif import Option, WhatIf
from dprankdiag.pipelines.whatif_bundle import ask_bundle
from dprankdiag.readers.expert_counts import read_expert_counts
from dprankdiag.simulate.experts import Placement, place_experts, place_in_order
from tests.e2e.compared import record

POINTS = 0.03
"""EVALUATION: a gain is within three points of the run that really has it."""

BUSY = World(
    physics="roofline", model="qwen3-30b", chip="h20", requests=400, context_tokens=2_000, routing_gini=0.5, seed=9,
    steps=40, layers=6,
)  # fmt: skip


def slots_of(placement: Placement) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in placement.logical.tolist())


def find(result: WhatIf, key: str) -> Option:
    (option,) = [item for item in result.options if item.key == key]
    return option


@pytest.mark.parametrize("name", ["slow_gpu", "load_context", "host_steady", "receiver_queue", "hot_expert"])
def test_a_world_without_its_fault_gains_what_its_recording_promised(name: str, tmp_path: Path) -> None:
    world = WORLDS[name]
    side = record(world, tmp_path)
    result = ask_bundle(side.diagnosis, side.tables, (name,))
    kind = "load" if name.startswith("load") else "fault"
    option = find(result, f"{kind}.f1")
    true = truth(world).lost_ratio
    assert option.gain_ratio.value == pytest.approx(true, abs=POINTS)
    low, high = option.gain_ratio.interval or (1.0, 0.0)
    assert low <= true <= high
    assert (result.verdict, result.best) == ("better", (option.key,))
    assert option.command is not None


def test_even_ranks_promise_nothing(tmp_path: Path) -> None:
    side = record(WORLDS["healthy"], tmp_path)
    result = ask_bundle(side.diagnosis, side.tables, ("healthy",))
    assert (result.verdict, result.best) == ("none_better", ())
    assert all(option.basis == "bound" for option in result.options)


@pytest.fixture(scope="module")
def in_order(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, WhatIf]:
    """Serve a world whose experts lie in order, count its tokens, and ask what other placements would save."""
    folder = tmp_path_factory.mktemp("experts")
    counts = count_world(BUSY)
    world = replace(BUSY, expert_slots=slots_of(place_in_order(BUSY.layers, counts.shape[2], counts.shape[2], 8)))
    side = record(world, folder / "trace")
    dump = read_expert_counts([write_counts(world, folder / "counts.json")])
    return world, ask_bundle(side.diagnosis, side.tables, ("experts",), dump)


@pytest.mark.parametrize("redundant", [0, 32, 64])
def test_a_placement_gains_what_counts_promised_where_it_really_serves(
    redundant: int, in_order: tuple[World, WhatIf]
) -> None:
    world, result = in_order
    option = find(result, f"experts.redundant_{redundant}")
    counts = count_world(world)
    placed = place_experts(counts[: len(counts) // 2].sum(axis=0), counts.shape[2] + redundant, world.ranks)
    true = 1 - play(replace(world, expert_slots=slots_of(placed))).wall_ns() / play(world).wall_ns()
    assert true > 0.02
    assert option.gain_ratio.value == pytest.approx(true, abs=POINTS)
    low, high = option.gain_ratio.interval or (1.0, 0.0)
    assert low - 0.005 <= true <= high + 0.005
    assert f"redundant-experts {redundant}" in str(option.command)


def test_counts_of_another_placement_are_not_believed(tmp_path: Path, in_order: tuple[World, WhatIf]) -> None:
    world, _ = in_order
    side = record(world, tmp_path / "trace")
    dump = read_expert_counts([write_counts(world, tmp_path / "counts.json")])
    mixed = np.random.default_rng(0).permuted(dump.tokens, axis=2)
    result = ask_bundle(side.diagnosis, side.tables, ("experts",), replace(dump, tokens=mixed))
    assert not [option for option in result.options if option.kind == "experts"]
    (told,) = [item for item in result.abstentions if item.about == "experts"]
    assert "do not go with the counted tokens" in told.reason
