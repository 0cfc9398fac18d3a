"""Ranks that stand out in one number each: whoever they are, however large the numbers, and never by chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.analysis.uneven import LEAST_RATIO, find_high, find_low
from dprankdiag.model.ledgers import FloatArray

DRAWS = 2000
SIZES = (2, 3, 4, 8, 16, 64)
counts = st.lists(st.integers(0, 60), min_size=2, max_size=12)


def as_array(numbers: list[int]) -> FloatArray:
    return np.array(numbers, np.float64)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mean", [0.2, 0.5, 1.0, 2.0, 5.0, 20.0, 200.0])
def test_requests_spread_at_random_name_nobody(size: int, mean: float) -> None:
    draws = np.random.default_rng(size * 1000 + int(10 * mean)).poisson(mean, (DRAWS, size)).astype(np.float64)
    assert sum(find_high(row, row) is not None for row in draws) <= DRAWS // 1000


@pytest.mark.parametrize("size", [2, 8, 32])
@pytest.mark.parametrize("mean", [3.0, 30.0])
def test_sums_over_random_lengths_name_nobody(size: int, mean: float) -> None:
    random = np.random.default_rng(size + int(mean))
    found = 0
    for _ in range(DRAWS // 2):
        number = random.poisson(mean, size)
        sums = np.array([random.lognormal(7.0, 0.8, int(count)).sum() for count in number])
        found += find_high(sums, number.astype(np.float64), 2.0) is not None
    assert found <= DRAWS // 1000


@pytest.mark.parametrize("size", [2, 4, 8, 16, 64])
@pytest.mark.parametrize("ratio", [3.0, 4.0, 10.0])
def test_a_planted_ratio_is_found_on_its_rank(size: int, ratio: float) -> None:
    random = np.random.default_rng(size)
    for _ in range(50):
        numbers = random.poisson(100.0, size).astype(np.float64)
        numbers[size // 2] = random.poisson(100.0 * ratio)
        found = find_high(numbers, numbers)
        assert found is not None
        assert list(np.flatnonzero(found.mask)) == [size // 2]
        assert found.ratio == pytest.approx(ratio, rel=0.4)


@given(counts, st.integers(0, 1000))
def test_other_numbers_for_the_ranks_name_the_same_ones(numbers: list[int], seed: int) -> None:
    values = as_array(numbers)
    order = np.random.default_rng(seed).permutation(len(values))
    plain, turned = find_high(values, values), find_high(values[order], values[order])
    assert (plain is None) == (turned is None)
    if plain is not None and turned is not None:
        assert list(plain.mask[order]) == list(turned.mask)
        assert plain.score == pytest.approx(turned.score)


@given(counts, st.floats(1e-3, 1e6))
def test_the_unit_of_a_number_does_not_matter(numbers: list[int], factor: float) -> None:
    values = as_array(numbers)
    plain, scaled = find_high(values, values), find_high(values * factor, values)
    assert (plain is None) == (scaled is None)
    if plain is not None and scaled is not None:
        assert list(plain.mask) == list(scaled.mask)
        assert plain.ratio == pytest.approx(scaled.ratio)


@given(counts, st.integers(2, 50))
def test_more_of_the_same_is_never_less_sure(numbers: list[int], times: int) -> None:
    values = as_array(numbers)
    few, many = find_high(values, values), find_high(values * times, values * times)
    if few is not None:
        assert many is not None
        assert many.score >= few.score * (1 - 1e-9) or many.mask.sum() > few.mask.sum()


@given(counts)
def test_ranks_that_do_not_tell_are_never_named_and_change_nothing(numbers: list[int]) -> None:
    values = as_array(numbers)
    among = np.append(values, np.nan)
    plain, more = find_high(values, values), find_high(among, among)
    assert (plain is None) == (more is None)
    if plain is not None and more is not None:
        assert list(more.mask) == [*plain.mask, False]


@given(counts)
def test_whoever_is_named_lies_above_all_others_by_the_least_ratio(numbers: list[int]) -> None:
    values = as_array(numbers)
    found = find_high(values, values)
    if found is not None:
        assert 0 < found.mask.sum() <= len(values) // 2
        assert values[found.mask].min() >= LEAST_RATIO * values[~found.mask].max()
        assert found.work_ratio >= 1.0


@pytest.mark.parametrize("numbers", [[], [5], [0, 0, 0], [float("nan"), 7.0], [float("nan")] * 4])
def test_without_two_ranks_that_tell_or_any_work_nobody_is_named(numbers: list[float]) -> None:
    values = np.array(numbers, np.float64)
    assert find_high(values, values) is None
    assert find_low(values) is None


def test_a_single_request_among_many_idle_ranks_is_nobodys_fault() -> None:
    for size in (2, 8, 64):
        values = np.zeros(size)
        values[0] = 1.0
        assert find_high(values, values) is None


def test_all_of_many_requests_on_one_rank_are_told() -> None:
    values = np.array([0.0, 0.0, 12.0, 0.0])
    found = find_high(values, values)
    assert found is not None
    assert list(np.flatnonzero(found.mask)) == [2]


def test_uncounted_things_need_a_larger_gap() -> None:
    values = np.array([1.0, 1.0, 1.0, 6.0])
    assert find_high(values, np.full(4, 4.0), 2.0) is None
    assert find_high(np.array([1.0] * 7 + [800.0]), np.full(8, 4.0), 2.0, counted=False) is not None


@pytest.mark.parametrize("size", [2, 4, 8, 32])
def test_healthy_step_times_and_waits_name_nobody(size: int) -> None:
    random = np.random.default_rng(size)
    for _ in range(DRAWS):
        levels = 1.0 + 0.03 * random.standard_normal(size)
        assert find_low(levels) is None
        assert find_high(levels, 1e9, least_ratio=1.08, usual_spread=0.03) is None


@pytest.mark.parametrize("size", [3, 8, 32])
def test_the_rank_that_waits_least_is_found(size: int) -> None:
    random = np.random.default_rng(size)
    for _ in range(50):
        levels = 8.0 * (1.0 + 0.05 * random.standard_normal(size))
        levels[1] = 0.5
        found = find_low(levels)
        assert found is not None
        assert list(np.flatnonzero(found.mask)) == [1]
        assert found.ratio > 10


@given(st.lists(st.floats(0.1, 100.0), min_size=2, max_size=10), st.floats(0.01, 1000.0))
def test_low_levels_are_found_whatever_their_unit(levels: list[float], factor: float) -> None:
    plain, scaled = find_low(np.array(levels)), find_low(np.array(levels) * factor)
    assert (plain is None) == (scaled is None)
    if plain is not None and scaled is not None:
        assert list(plain.mask) == list(scaled.mask)
