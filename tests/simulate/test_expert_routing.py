"""Which copy of an expert gets the tokens."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.simulate.expert_balance import sum_by_expert, sum_by_gpu
from dprankdiag.simulate.expert_routing import Choice, choose_copies, deal_evenly, route_tokens
from dprankdiag.simulate.experts import Placement

# Four GPUs on two nodes, two slots each; expert 0 is on GPUs 0, 1 and 2, expert 1 on GPU 3 alone.
SPREAD = Placement(np.array([[0, 2, 0, 3, 0, 4, 1, 5]]), 6, 4, 2)


def test_a_gpu_sends_to_its_own_copy_then_to_one_of_its_node() -> None:
    chosen = choose_copies(SPREAD)
    assert chosen[:, 0, 0].tolist() == [0, 2, 4, 4]
    assert chosen[:, 0, 1].tolist() == [6, 6, 6, 6]


def test_on_one_node_gpus_without_a_copy_are_dealt_them_evenly() -> None:
    placement = Placement(np.array([[0, 1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10]]), 11, 6)
    chosen = choose_copies(placement)[:, 0, 0].tolist()
    assert chosen[:2] == [0, 2]
    assert sorted(chosen[2:]) == [0, 0, 2, 2]


def test_without_an_all_to_all_all_gpus_agree_on_a_copy() -> None:
    chosen = choose_copies(SPREAD, all_to_all=False)
    assert (chosen == chosen[:1]).all()
    assert chosen[0, 0, 0] in (0, 2, 4)


def test_agreeing_on_one_copy_leaves_the_others_idle() -> None:
    # 400 tokens for expert 0 from each GPU. With an all-to-all GPU 2 gets GPU 3's too; without, one copy has all.
    tokens = np.zeros((4, 1, 6), np.int64)
    tokens[:, 0, 0] = 400
    assert sum_by_gpu(SPREAD, route_tokens(SPREAD, tokens, "static")).tolist() == [[400, 400, 800, 0]]
    alone = sum_by_gpu(SPREAD, route_tokens(SPREAD, tokens, "static", all_to_all=False))
    assert sorted(alone[0].tolist()) == [0, 0, 0, 1_600]


def test_drawing_a_copy_for_each_token_evens_them_out_but_for_chance() -> None:
    tokens = np.zeros((4, 1, 6), np.int64)
    tokens[:, 0, 0] = 3_000
    arrived = route_tokens(SPREAD, tokens, "dynamic", seed=1)[0]
    # 12,000 over three: each within four deviations, sqrt(12000 · 2 / 9) ≈ 52, of 4,000.
    assert np.abs(arrived[[0, 2, 4]] - 4_000).max() < 208


def test_a_fake_choice_measures_an_even_load_whatever_is_routed() -> None:
    tokens = np.zeros((4, 1, 6), np.int64)
    tokens[:, 0, 1] = 3_000
    arrived = sum_by_expert(SPREAD, route_tokens(SPREAD, tokens, "fake", seed=1))[0]
    assert np.abs(arrived - 2_000).max() < 4 * 41


@given(
    counts=st.lists(st.integers(0, 50), min_size=24, max_size=24),
    choice=st.sampled_from(["static", "dynamic", "fake"]),
    all_to_all=st.booleans(),
    seed=st.integers(0, 5),
)
def test_as_many_tokens_arrive_as_were_sent(counts: list[int], choice: Choice, all_to_all: bool, seed: int) -> None:
    tokens = np.array(counts, np.int64).reshape(4, 1, 6)
    arrived = route_tokens(SPREAD, tokens, choice, seed=seed, all_to_all=all_to_all)
    assert arrived.sum() == tokens.sum()
    if choice != "fake":
        assert sum_by_expert(SPREAD, arrived).tolist() == tokens.sum(axis=0).tolist()


@pytest.mark.parametrize("n_turns", [0, 1, 5, 9])
def test_no_copy_is_dealt_twice_more_often_than_another(n_turns: int) -> None:
    dealt = deal_evenly([3, 5, 8], n_turns, Random(1))
    times = [dealt.count(slot) for slot in (3, 5, 8)]
    assert len(dealt) == n_turns
    assert max(times) - min(times) <= 1
