"""Who stands out in a wait matrix, and that nobody does where nobody is at fault."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprankdiag.analysis.awaited import judge_waits
from dprankdiag.readers.base import Array
from tests.matrices import (
    TWO_NODES,
    complete_two_nodes,
    draw_healthy,
    make_matrix,
    name_culprits,
    slow_at_once,
)

NOBODY: dict[str, set[object]] = {"awaited": set(), "waiting": set(), "pairs": set()}


def culprits(waits: Array) -> dict[str, set[object]]:
    return name_culprits(judge_waits(make_matrix(waits)))


def draw_even(seed: int, n: int, scatter: float = 0.1) -> Array:
    return np.asarray(100 * np.exp(np.random.default_rng(seed).normal(0, scatter, (n, n))))


def add_late(waits: Array, late: dict[int, float]) -> Array:
    """Add what a rank that comes late makes those wait who came before it."""
    by = np.zeros(waits.shape[1])
    by[list(late)] = list(late.values())
    return waits + np.maximum(by[None, :] - by[: len(waits), None], 0)


@pytest.mark.slow
def test_a_healthy_matrix_never_alarms() -> None:
    alarms = []
    for seed in range(2000):
        waits, kind = draw_healthy(np.random.default_rng(seed))
        found = culprits(waits)
        if found != NOBODY:
            alarms.append((seed, kind, found))
    assert alarms == []


@pytest.mark.parametrize(
    "n, scatter, factor, least",
    [
        (8, 0.05, 1.75, 0.95),
        (8, 0.1, 2.0, 0.95),
        (8, 0.2, 3.0, 0.95),
        (16, 0.1, 1.75, 0.95),
        (16, 0.3, 3.0, 0.95),
        (64, 0.3, 2.0, 0.95),
        (4, 0.05, 3.0, 0.9),
        (8, 0.1, 1.3, 0.0),
    ],
)
def test_a_late_rank_is_found_alone_from_the_slowdown_that_the_noise_allows(
    n: int, scatter: float, factor: float, least: float
) -> None:
    right = wrong = 0
    for seed in range(60):
        waits, late = draw_even(seed, n, scatter), seed % n
        waits[:, late] *= factor
        found = culprits(waits)
        right += found == NOBODY | {"awaited": {late}}
        wrong += found not in (NOBODY, NOBODY | {"awaited": {late}})
    assert right >= least * 60
    assert wrong == 0


@pytest.mark.parametrize("late", [2.0, 3.0, 10.0, 1e6])
def test_three_late_ranks_of_eight_are_all_found(late: float) -> None:
    right = 0
    for seed in range(50):
        draw = np.random.default_rng(seed)
        ranks = draw.choice(8, 3, replace=False)
        waits = add_late(draw_even(seed, 8), {int(rank): 100 * late * draw.uniform(1, 3) for rank in ranks})
        right += culprits(waits) == NOBODY | {"awaited": set(ranks.tolist())}
    assert right >= 48


def test_several_slow_at_once_do_not_hide_each_other() -> None:
    assert culprits(slow_at_once()) == NOBODY | {"awaited": {2, 4}, "waiting": {6}}


def test_a_strong_culprit_does_not_hide_a_weak_one() -> None:
    waits = add_late(draw_even(3, 16), {5: 1e8, 11: 300.0})
    assert culprits(waits) == NOBODY | {"awaited": {5, 11}}


def test_the_distance_between_nodes_is_no_culprit() -> None:
    seen = judge_waits(make_matrix(TWO_NODES))
    assert name_culprits(seen) == NOBODY | {"awaited": {2}}
    assert seen.blocks is not None
    assert seen.blocks.node_size == 8
    assert seen.blocks.ratio == pytest.approx(1300, rel=0.1)


@pytest.mark.parametrize("pattern", ["repeated", "mirrored", "late"])
def test_all_rows_of_two_nodes_name_the_same_rank(pattern: str) -> None:
    assert culprits(complete_two_nodes(pattern)) == NOBODY | {"awaited": {2}}


def test_the_row_of_a_late_rank_is_even_and_that_of_a_badly_connected_one_is_not() -> None:
    (late,) = judge_waits(make_matrix(TWO_NODES)).awaited
    assert late.own_ratio == pytest.approx(1, abs=0.2)
    assert not late.own_high
    waits = draw_even(1, 8)
    waits[:, 3] *= 20
    waits[3] *= 20
    (linked,) = judge_waits(make_matrix(waits)).awaited
    assert linked.rank == 3
    assert linked.own_high


def test_a_late_rank_is_seen_by_its_node_though_other_nodes_hardly_see_it() -> None:
    node = np.arange(16) // 8
    waits = draw_even(2, 16) * np.where(node[:, None] != node[None, :], 1000, 1)
    (line,) = judge_waits(make_matrix(add_late(waits, {5: 400.0}))).awaited
    assert (line.rank, line.scope) == (5, "near")


def test_a_rank_that_only_other_nodes_wait_for_is_told_apart() -> None:
    node = np.arange(16) // 8
    waits = draw_even(2, 16) * np.where(node[:, None] != node[None, :], 30, 1)
    waits[8:, 5] *= 6
    (line,) = judge_waits(make_matrix(waits)).awaited
    assert (line.rank, line.scope) == (5, "far")


def test_the_ranks_of_one_late_node_of_four_are_late_and_not_far() -> None:
    late = dict.fromkeys(range(4, 8), 2000.0)
    assert culprits(add_late(draw_even(4, 16), late)) == NOBODY | {"awaited": {4, 5, 6, 7}}


def test_the_size_of_the_nodes_is_found_although_others_divide_the_ranks_too() -> None:
    for seed in range(30):
        node = np.arange(12) // 4
        waits = draw_even(seed, 12, 0.2) * np.where(node[:, None] != node[None, :], 1300, 1)
        waits[np.random.default_rng(seed).random(waits.shape) < 0.2] = 0
        seen = judge_waits(make_matrix(waits))
        assert seen.blocks is not None
        assert seen.blocks.node_size == 4
        assert name_culprits(seen) == NOBODY


def test_a_single_pair_is_found_among_nodes() -> None:
    node = np.arange(16) // 4
    waits = draw_even(5, 16) * np.where(node[:, None] != node[None, :], 30, 1)
    waits[9, 2] *= 12
    assert culprits(waits) == NOBODY | {"pairs": {(9, 2)}}


def test_a_rank_that_few_others_wait_for_is_not_named() -> None:
    waits = draw_even(6, 12)
    waits[:5, 3] *= 100
    assert judge_waits(make_matrix(waits)).awaited == ()


@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (3, 8), (8, 3)])
def test_too_few_ranks_give_a_reason_and_no_name(shape: tuple[int, int]) -> None:
    seen = judge_waits(make_matrix(draw_even(1, 8)[: shape[0], : shape[1]], range(shape[1]), range(shape[0])))
    assert "too few" in seen.reason
    assert name_culprits(seen) == NOBODY


def test_pairs_that_never_talk_say_nothing() -> None:
    waits = add_late(draw_even(7, 16), {9: 5000.0})
    apart = (np.arange(16)[:, None] + np.arange(16)[None, :]) % 4 == 1
    assert culprits(np.where(apart, 0, waits)) == NOBODY | {"awaited": {9}}
    assert culprits(np.where(apart, np.nan, waits)) == NOBODY | {"awaited": {9}}


def test_a_wait_for_oneself_is_no_evidence() -> None:
    waits = add_late(draw_even(8, 8), {1: 5000.0})
    before = judge_waits(make_matrix(waits))
    np.fill_diagonal(waits, 1e9)
    after = judge_waits(make_matrix(waits))
    assert (after.awaited, after.waiting, after.pairs) == (before.awaited, before.waiting, before.pairs)


def draw_faulty(seed: int) -> Array:
    """Draw a matrix with up to three faults of any kind, on one node."""
    draw = np.random.default_rng(seed)
    n = int(draw.choice([6, 8, 12, 16]))
    waits = draw_even(seed, n, float(draw.choice([0.05, 0.15])))
    for _ in range(draw.integers(0, 4)):
        one, other = draw.choice(n, 2, replace=False)
        place = ((slice(None), one), (one, slice(None)), (one, other))[draw.integers(3)]
        waits[place] *= draw.uniform(1, 1000)
    return waits


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100_000), st.integers(0, 1000))
def test_names_follow_the_ranks_when_these_are_renumbered(seed: int, order: int) -> None:
    waits = draw_faulty(seed)
    renumbered = np.random.default_rng(order).permutation(len(waits))
    plain = judge_waits(make_matrix(waits))
    if plain.blocks is not None and plain.blocks.node_size is not None:
        return  # neighbours make a node, so that only whole nodes may change places
    moved = judge_waits(make_matrix(waits, renumbered, renumbered))
    if moved.blocks is not None and moved.blocks.node_size is not None:
        return
    expected = name_culprits(plain)
    assert name_culprits(moved) == {
        "awaited": {int(renumbered[rank]) for rank in expected["awaited"]},
        "waiting": {int(renumbered[rank]) for rank in expected["waiting"]},
        "pairs": {(int(renumbered[one]), int(renumbered[other])) for one, other in expected["pairs"]},
    }


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(2)), st.integers(0, 1000))
def test_nodes_may_change_places_and_ranks_inside_them(nodes: list[int], order: int) -> None:
    draw = np.random.default_rng(order)
    renumbered = np.concatenate([node * 8 + draw.permutation(8) for node in nodes])
    moved = judge_waits(make_matrix(complete_two_nodes("mirrored"), renumbered, renumbered))
    assert name_culprits(moved) == NOBODY | {"awaited": {int(renumbered[2])}}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 100_000), st.floats(1e-9, 1e9))
def test_the_unit_of_the_waits_does_not_matter(seed: int, unit: float) -> None:
    waits = draw_faulty(seed)
    assert culprits(waits * unit) == culprits(waits)
