"""Tests of batches that a serving world has dealt, played kernel by kernel."""

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.harness.dealt import Dealt, share_evenly
from dprankdiag.harness.timeline import play
from dprankdiag.harness.world import World

STEPS, RANKS = 6, 4
WORLD = World(physics="roofline", ranks=RANKS, steps=STEPS, layers=2, lean=True, model="deepseek-v3", chip="h200")


def deal(heavy_tokens: int, eager: tuple[int, ...] = ()) -> Dealt:
    requests = np.full((STEPS, RANKS), 4)
    tokens = np.full((STEPS, RANKS), 32_768)
    tokens[:, 2] += heavy_tokens
    nothing = np.zeros((STEPS, RANKS), np.int64)
    lost = np.isin(np.arange(STEPS), eager)
    return Dealt(requests, tokens, tokens, nothing, nothing, nothing, nothing, lost, np.zeros(STEPS, bool))


def test_the_batches_played_are_those_that_were_dealt() -> None:
    dealt = deal(100_000)
    batches = play(replace(WORLD, dealt=dealt)).batches
    assert np.array_equal(batches.decode_tokens, dealt.decode_tokens)
    assert np.array_equal(batches.decode_requests, dealt.decode_requests)


def test_more_tokens_on_one_rank_make_every_step_longer() -> None:
    even, uneven = (play(replace(WORLD, dealt=deal(tokens))).wall_ns() for tokens in (0, 400_000))
    assert uneven > even * 1.2


def test_spreading_keeps_the_sums_and_leaves_at_most_one_apart() -> None:
    dealt = deal(100_001)
    spread = dealt.spread()
    assert np.array_equal(spread.decode_tokens.sum(axis=1), dealt.decode_tokens.sum(axis=1))
    assert np.ptp(spread.decode_tokens, axis=1).max() <= 1


def test_steps_dealt_as_eager_are_launched_kernel_by_kernel() -> None:
    timeline = play(replace(WORLD, dealt=deal(0, eager=(1, 3))))
    eager = [lane.steps.tolist() for lane in timeline.lanes if not any(op.in_graph for op in lane.operations)]
    assert eager == [[1, 3]]


def test_ranks_of_an_attention_group_share_what_was_dealt() -> None:
    world = replace(WORLD, ranks=RANKS * 2, attention_tp=2, dealt=deal(100_000))
    assert np.array_equal(play(world).batches.decode_tokens[:, ::2], deal(100_000).decode_tokens)


def test_batches_of_another_shape_or_physics_are_refused() -> None:
    with pytest.raises(ValueError, match="were dealt"):
        replace(WORLD, steps=STEPS + 1, dealt=deal(0))
    with pytest.raises(ValueError, match="draws its batches itself"):
        replace(WORLD, physics="fixed", dealt=deal(0))


def test_what_is_left_over_goes_to_the_first_ranks() -> None:
    assert share_evenly(np.asarray([[0, 0, 7]])).tolist() == [[3, 2, 2]]
