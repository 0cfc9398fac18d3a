"""Levels over steps, their differences, and many tests at once."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.analysis.differences import (
    KNOWN_ZERO,
    Level,
    add_levels,
    adjust_chances,
    compare_levels,
    measure_level,
    spread_of_ranks,
    t_chance,
    t_quantile,
    widen_level,
)

levels = st.builds(Level, st.floats(-1e6, 1e6), st.floats(0, 1e6), st.floats(1, 1e3))


@pytest.mark.parametrize(
    "t,freedom,chance",
    [(12.706, 1, 0.05), (2.571, 5, 0.05), (2.228, 10, 0.05), (3.169, 10, 0.01), (1.96, 1e9, 0.05), (0.0, 3, 1.0)],
)
def test_the_chance_of_t_is_that_of_the_printed_tables(t: float, freedom: float, chance: float) -> None:
    assert t_chance(t, freedom) == pytest.approx(chance, rel=2e-3)


@pytest.mark.parametrize("freedom,t", [(1, 6.314), (6, 1.943), (30, 1.697), (inf, 1.645)])
def test_the_quantile_of_t_is_that_of_the_printed_tables(freedom: float, t: float) -> None:
    assert t_quantile(0.9, freedom) == pytest.approx(t, abs=2e-3)


def test_the_error_of_a_mean_is_that_of_independent_samples() -> None:
    samples = np.random.default_rng(0).normal(5.0, 2.0, 4_000)
    level = measure_level(samples)
    assert level.value == samples.mean()
    assert level.variance == pytest.approx(4.0 / 4_000, rel=0.25)


def test_samples_that_hang_together_give_a_larger_error() -> None:
    random = np.random.default_rng(1)
    steps = random.normal(0.0, 1.0, 2_000)
    joined = np.convolve(random.normal(0.0, 1.0, 2_009), np.full(10, 10**-0.5), "valid")
    assert measure_level(joined).variance > 3 * measure_level(steps).variance


def test_one_sample_shows_no_scatter_and_decides_nothing() -> None:
    found = compare_levels(measure_level(np.array([1.0])), measure_level(np.array([9.0, 9.0, 9.0])), 0.9)
    assert (found.value, found.p, found.interval) == (8.0, 1.0, (-inf, inf))


def test_means_of_equal_series_rarely_differ_and_their_interval_rarely_misses() -> None:
    random = np.random.default_rng(2)
    found = [
        compare_levels(measure_level(random.normal(1, 0.1, 40)), measure_level(random.normal(1, 0.1, 60)), 0.9)
        for _ in range(300)
    ]
    assert np.mean([item.p < 0.05 for item in found]) <= 0.08
    assert 0.84 <= np.mean([item.interval[0] <= 0 <= item.interval[1] for item in found]) <= 0.98


def test_what_is_known_on_both_sides_differs_for_sure_or_not_at_all() -> None:
    assert compare_levels(KNOWN_ZERO, KNOWN_ZERO, 0.9).p == 1.0
    assert compare_levels(KNOWN_ZERO, Level(2.0, 0.0, inf), 0.9).p == 0.0


@given(levels, levels)
def test_swapping_the_sides_turns_the_sign(before: Level, after: Level) -> None:
    forth, back = compare_levels(before, after, 0.9), compare_levels(after, before, 0.9)
    assert back.value == -forth.value
    assert back.p == pytest.approx(forth.p)
    assert back.interval == pytest.approx((-forth.interval[1], -forth.interval[0]))


@given(levels)
def test_a_level_does_not_differ_from_itself(level: Level) -> None:
    found = compare_levels(level, level, 0.9)
    assert (found.value, found.p) == (0.0, pytest.approx(1.0))


@given(st.lists(levels, min_size=1, max_size=5))
def test_joined_levels_have_no_more_freedom_than_all_together_and_no_less_than_the_poorest(parts: list[Level]) -> None:
    joined = add_levels(parts, [1.0] * len(parts))
    assert joined.value == pytest.approx(sum(part.value for part in parts))
    assert joined.variance == pytest.approx(sum(part.variance for part in parts))
    if joined.variance > 1e-100:
        poorest = min(part.freedom for part in parts if part.variance > 0)
        assert poorest * 0.999 <= joined.freedom <= sum(part.freedom for part in parts) * 1.001


def test_a_further_error_widens_a_level() -> None:
    assert widen_level(Level(1.0, 4.0, 10.0), 5.0, 3.0).variance == 9.0


def test_chances_are_adjusted_as_holm_does() -> None:
    assert adjust_chances([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert adjust_chances([0.9, 0.9]) == [1.0, 1.0]
    assert adjust_chances([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_adjusted_chances_keep_their_order_and_never_shrink(chances: list[float]) -> None:
    adjusted = adjust_chances(chances)
    assert all(new >= old for old, new in zip(chances, adjusted, strict=True))
    order = np.argsort(chances, kind="stable")
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()


def test_one_rank_far_outside_does_not_count_as_spread() -> None:
    even = np.array([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01])
    outside = np.where(np.arange(8) == 3, 2.0, even)
    assert spread_of_ranks(outside)[0] < 2 * spread_of_ranks(even)[0]
    assert spread_of_ranks(np.array([1.0])) == (0.0, 1.0)
