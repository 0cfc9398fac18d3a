"""Worlds whose experts lie where the test puts them, and what a recorder counts in them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.harness.expert_dump import count_world
from dprankdiag.harness.faults import hot_expert
from dprankdiag.harness.roofline import count_rows
from dprankdiag.harness.roofline_batches import deal_work
from dprankdiag.harness.roofline_presets import choose_model
from dprankdiag.harness.roofline_routing import route_tokens
from dprankdiag.harness.world import World

SMALL = World(physics="roofline", model="qwen3-30b", chip="h20", requests=16, steps=6, layers=2, ranks=4)


def test_ranks_get_the_tokens_of_the_experts_in_their_slots() -> None:
    counts = count_world(SMALL)
    n_logical = counts.shape[2]
    order = np.random.default_rng(0).permutation(n_logical)
    row = (*order.tolist(), *range(4))
    world = replace(SMALL, expert_slots=(row, row))
    rows = count_rows(world, deal_work(world)).sum(axis=1)
    routing = route_tokens(world, choose_model(world), rows)
    np.testing.assert_array_equal(routing.tokens.sum(axis=2), counts.sum(axis=2))
    on_first = [expert for expert in row[: len(row) // 4] if expert >= 4]
    assert (routing.tokens[:, :, 0] >= counts[:, :, on_first].sum(axis=2)).all()


def test_slots_are_of_the_roofline_physics_and_leave_no_rank_hot() -> None:
    with pytest.raises(ValueError, match="slots"):
        replace(SMALL, physics="fixed", expert_slots=((0, 1),))
    with pytest.raises(ValueError, match="slots"):
        replace(SMALL, expert_slots=((0, 1), (0, 1)), faults=(hot_expert({0: 1}, 2.0),))
    with pytest.raises(ValueError, match="counts no experts"):
        count_world(replace(SMALL, physics="fixed"))
