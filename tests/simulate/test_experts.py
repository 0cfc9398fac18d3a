"""Where copies of experts go, what that does to the busiest GPU, and what moving them costs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.errors import UsageError
from dprankdiag.simulate.expert_balance import average_windows, balance_sglang, measure_excess, share_tokens, sum_by_gpu
from dprankdiag.simulate.expert_moves import count_moves
from dprankdiag.simulate.experts import Placement, pack_evenly, place_experts, place_in_order, replicate

LOGICAL, SLOTS = 256, 288
GROUPS = 8

# The example in the README of deepseek-ai/EPLB: two layers of 12 experts, 16 slots, 4 groups, 2 nodes, 8 GPUs.
README_TOKENS = np.array(
    [
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
    ]
)
README_SLOTS = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]


def test_the_published_example_of_three_steps_comes_out_slot_by_slot() -> None:
    placement = place_experts(README_TOKENS, n_slots=16, n_gpus=8, n_nodes=2, n_groups=4)
    assert placement.logical.tolist() == README_SLOTS


def test_groups_that_do_not_divide_by_nodes_are_spread_over_all_gpus() -> None:
    flat = place_experts(README_TOKENS, n_slots=16, n_gpus=8)
    torn = place_experts(README_TOKENS, n_slots=18, n_gpus=9, n_nodes=3, n_groups=4)
    assert place_experts(README_TOKENS, 18, 9).logical.tolist() == torn.logical.tolist()
    # With groups kept on their nodes, an expert's copies share a node; flat, the hottest one's do not.
    kept = place_experts(README_TOKENS, n_slots=16, n_gpus=8, n_nodes=2, n_groups=4)
    for layer in range(2):
        for expert in range(12):
            assert len(set((kept.list_slots(layer, expert) // 8).tolist())) == 1
    assert set((flat.list_slots(0, 5) // 8).tolist()) | set((flat.list_slots(1, 5) // 8).tolist()) == {0, 1}


@pytest.mark.parametrize(
    "slots, gpus, nodes, groups, what",
    [
        (11, 1, 1, 1, "do not hold"),
        (16, 3, 1, 1, "GPUs"),
        (16, 8, 3, 1, "nodes"),
        (16, 8, 2, 5, "groups"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(slots: int, gpus: int, nodes: int, groups: int, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        place_experts(README_TOKENS, slots, gpus, nodes, groups)


def make_hot_groups(n_layers: int, seed: int = 5) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Route to 256 experts in 8 groups; in each layer one group, another each time, gets four times the tokens."""
    random = np.random.default_rng(seed)
    tokens = random.integers(80, 120, (n_layers, LOGICAL))
    for layer in range(n_layers):
        group = layer % GROUPS
        tokens[layer, group * 32 : (group + 1) * 32] *= 4
    return tokens


@pytest.mark.parametrize("n_gpus, excess_before", [(8, 4 * 8 / 11), (32, 4 * 8 / 11)])
def test_a_hot_group_is_spread_and_its_copies_lift_the_bound(n_gpus: int, excess_before: float) -> None:
    # 256 experts of about 100 tokens, 32 of them of 400: 35,200 tokens a layer. In order, a GPU of eight holds 32
    # neighbours, so one has 12,800 tokens against a mean of 4,400: 2.9 times. Of 32 GPUs, the four with the hot group
    # have 3,200 against 1,100: the same. With one copy more for each hot expert (two slots of 200) and packed, the
    # busiest is within 1 % of the mean. Packing alone does that for 8 GPUs, not for 32 (4 %): of 32 hot experts each
    # GPU gets one, and the rest does not come out even.
    tokens = make_hot_groups(8)
    before = place_in_order(8, LOGICAL, LOGICAL, n_gpus)
    after = place_experts(tokens, SLOTS, n_gpus)
    excess = [measure_excess(sum_by_gpu(each, share_tokens(each, tokens))) for each in (before, after)]
    assert np.allclose(excess[0], excess_before, rtol=0.06)
    assert (excess[1] < 1.01).all()
    packed = place_experts(tokens, LOGICAL, n_gpus)
    alone = measure_excess(sum_by_gpu(packed, share_tokens(packed, tokens)))
    assert (alone < 1.01).all() if n_gpus == 8 else (alone > 1.02).all()


def test_a_hot_group_stays_hot_on_its_node() -> None:
    # Eight groups on four nodes, two each: the node of the hot group has 12,800 + 3,200 of 35,200 tokens, 1.82 times
    # the mean, however well its own GPUs share them. Flat, the same slots are even.
    tokens = make_hot_groups(8)
    kept = place_experts(tokens, SLOTS, 32, n_nodes=4, n_groups=GROUPS)
    excess = measure_excess(sum_by_gpu(kept, share_tokens(kept, tokens)))
    assert np.allclose(excess, 16_000 / 8_800, rtol=0.05)


def test_packing_alone_cannot_split_a_hot_expert() -> None:
    # One expert has 3,000 of 8,000 tokens, the others 79 each: without a copy its GPU of eight has 3,000 + 7 × 79
    # against a mean of 1,000. All eight redundant slots go to it: nine of 333, so one GPU has two of them, and with
    # 7 × 79 it has 1,222.
    tokens = np.full((1, 64), 5_000 / 63)
    tokens[0, 10] = 3_000
    packed = place_experts(tokens, 64, 8)
    copied = place_experts(tokens, 72, 8)
    assert measure_excess(sum_by_gpu(packed, share_tokens(packed, tokens)))[0] == pytest.approx(3.556, abs=1e-3)
    assert copied.count_copies()[0, 10] == 9
    assert measure_excess(sum_by_gpu(copied, share_tokens(copied, tokens)))[0] == pytest.approx(1.222, abs=1e-3)


@st.composite
def loads_and_sizes(draw: st.DrawFn) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int, int, int, int]:
    n_nodes = draw(st.sampled_from([1, 2, 3]))
    n_gpus = n_nodes * draw(st.sampled_from([1, 2, 4]))
    n_groups = draw(st.sampled_from([1, 2, 3, 6]))
    n_logical = n_groups * draw(st.sampled_from([2, 4])) * n_nodes
    least = -(-n_logical // n_gpus)
    n_slots = n_gpus * (least + draw(st.integers(0, 3)))
    n_layers = draw(st.integers(1, 3))
    row = st.lists(st.integers(0, 1_000), min_size=n_logical, max_size=n_logical)
    tokens = draw(st.lists(row, min_size=n_layers, max_size=n_layers))
    return np.array(tokens, np.int64), n_slots, n_gpus, n_nodes, n_groups


@given(loads_and_sizes())
def test_each_expert_has_a_slot_each_gpu_as_many_and_no_token_is_lost(
    case: tuple[np.ndarray[Any, np.dtype[np.int64]], int, int, int, int],
) -> None:
    tokens, n_slots, n_gpus, n_nodes, n_groups = case
    placement = place_experts(tokens, n_slots, n_gpus, n_nodes, n_groups)
    assert placement.logical.shape == (len(tokens), n_slots)
    assert placement.slots_per_gpu * n_gpus == n_slots
    assert (placement.count_copies() >= 1).all()
    assert np.allclose(sum_by_gpu(placement, share_tokens(placement, tokens)).sum(axis=1), tokens.sum(axis=1))


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=20), st.integers(0, 20))
def test_one_copy_more_never_makes_the_hottest_slot_hotter(tokens: list[int], more: int) -> None:
    # This is what copies promise: the hottest slot. The busiest GPU is another matter, see the next test.
    weights = np.array(tokens, np.float64)

    def hottest(n_slots: int) -> float:
        copies = np.bincount(replicate(weights, n_slots), minlength=len(weights))
        return float((weights / copies).max())

    n_slots = len(tokens) + more
    assert hottest(n_slots + 1) <= hottest(n_slots)


def test_more_slots_may_make_the_busiest_gpu_busier() -> None:
    # Experts of 5, 4, 4 and 3 tokens on two GPUs: 5 + 3 and 4 + 4, even. Two slots more go to the experts of 5 and
    # of 4: 4, 3, 2.5, 2.5, 2, 2 are packed heaviest first, as 4 + 2.5 + 2 and 3 + 2.5 + 2.
    tokens = np.array([[5, 4, 4, 3]])
    busiest = [
        sum_by_gpu(each, share_tokens(each, tokens)).max()
        for each in (place_experts(tokens, n_slots, 2) for n_slots in (4, 6))
    ]
    assert busiest == [8.0, 8.5]


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=8), st.integers(1, 4))
def test_packs_hold_as_many_items_and_every_item_once(weights: list[int], n_packs: int) -> None:
    items = np.array(weights * n_packs, np.float64)
    packs = pack_evenly(items, n_packs)
    assert {len(pack) for pack in packs} == {len(weights)}
    assert sorted(item for pack in packs for item in pack) == list(range(len(items)))


def test_moves_count_what_a_gpu_did_not_hold_and_a_second_copy_is_free() -> None:
    before = Placement(np.array([[0, 1, 2, 3]]), 4, 2)
    after = Placement(np.array([[0, 0, 1, 3]]), 4, 2)
    # GPU 1 needs expert 1, of 44 MB over 400 Gbit/s: 0.88 ms. Expert 2 is gone: nobody checks placements here.
    moves = count_moves(before, after, 44_000_000, 50_000_000_000)
    assert moves.received.tolist() == [[0, 1]]
    assert (moves.total_bytes, moves.least_ns) == (44_000_000, 880_000)
    none = count_moves(after, after, 44_000_000, 50_000_000_000)
    assert (none.total_bytes, none.least_ns) == (0, 0)


def test_rearranging_a_large_model_moves_most_of_its_experts() -> None:
    # 58 layers of 256 experts of 44 MB, 9 slots on each of 32 GPUs. What a packer that knows nothing of the last
    # placement leaves in place is chance: nearly all of 58 × 288 slots move, 735 GB at most.
    tokens = np.random.default_rng(1).integers(50, 150, (58, LOGICAL))
    before = place_in_order(58, LOGICAL, SLOTS, 32)
    moves = count_moves(before, place_experts(tokens, SLOTS, 32), 44_000_000, 50_000_000_000)
    assert 0.9 * 58 * SLOTS < moves.received.sum() <= 58 * SLOTS
    assert moves.total_bytes == moves.received.sum() * 44_000_000
    assert moves.least_ns >= moves.total_bytes / 32 / 50


def test_placements_of_different_models_are_not_compared() -> None:
    with pytest.raises(UsageError, match="differ"):
        count_moves(place_in_order(1, 4, 4, 2), place_in_order(1, 4, 4, 4), 1, 1)


def test_the_log_line_of_a_real_run_is_reproduced(fixtures: Path) -> None:
    folder = fixtures / "sglang-0.5.23" / "expert-skew"
    truth = json.loads((folder / "ground_truth.json").read_text("utf-8"))
    gpu_tokens = np.array(truth["per_gpu_tokens_per_layer_per_pass"], np.float64)
    passes: list[float] = []
    for line in (folder / "expert_balancedness.log").read_text("utf-8").splitlines():
        passes.append(balance_sglang(gpu_tokens))
        windows = average_windows(passes)
        shown = dict(re.findall(r"(\w+_balancedness)=([\d.]+)", line))
        assert f"{passes[-1]:.3f}" == shown["current_pass_balancedness"]
        for window, average in windows.items():
            assert f"{average:.3f}" == shown[f"last_{window}_average_balancedness"]
    assert len(passes) == truth["passes"]
    assert passes[0] == pytest.approx(truth["balancedness_each_pass"], abs=1e-7)
