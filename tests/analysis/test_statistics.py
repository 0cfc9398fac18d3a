"""Robust numbers: what is an outlier, an event, a shift, and how sure a ratio is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dprankdiag.analysis.statistics import (
    CHANGE_SCORE,
    EVENT_SCORE,
    OUTLIER_SCORE,
    PRIOR_WEIGHT,
    bootstrap_sum,
    draw_blocks,
    find_changes,
    find_changes_each,
    find_events,
    find_high,
    find_two_levels,
    may_be_high,
    median,
    noise_sd,
    peer_median,
    quantile,
    robust_sd,
)
from tests.analysis.builders import Array

NO_ERROR = np.zeros(8)
PRIOR, LEAST = 0.01, 0.02


numbers = st.floats(-1e300, 1e300) | st.integers(-3, 3).map(float) | st.just(float("nan"))
samples = arrays(np.float64, st.integers(1, 40), elements=numbers)


@given(samples | arrays(np.float64, (5, 4), elements=numbers) | arrays(np.int64, st.integers(1, 40)))
def test_the_median_is_that_of_numpy(values: Array) -> None:
    with np.errstate(all="ignore"):
        np.testing.assert_equal(median(values), float(np.median(values)))


@given(samples, st.floats(0, 1))
def test_a_quantile_is_that_of_numpy(values: Array, share: float) -> None:
    with np.errstate(all="ignore"):
        np.testing.assert_equal(quantile(values, share), float(np.quantile(values, share)))


def test_the_median_of_nothing_is_unknown() -> None:
    with pytest.warns(RuntimeWarning):
        assert np.isnan(median(np.zeros(0)))


def test_the_robust_deviation_of_normal_numbers_is_theirs() -> None:
    values = np.random.default_rng(1).normal(10, 3, 20_000)
    assert robust_sd(values) == pytest.approx(3, rel=0.03)


def test_a_few_wild_numbers_leave_the_robust_deviation_as_it_is() -> None:
    values = np.random.default_rng(1).normal(0, 1, 1_000)
    wild = values.copy()
    wild[:100] = 1e6
    assert robust_sd(wild) < 1.3 * robust_sd(values)


def test_noise_is_blind_to_slow_change() -> None:
    random = np.random.default_rng(2)
    assert noise_sd(np.linspace(0, 500, 2_000) + random.normal(0, 2, 2_000)) == pytest.approx(2, rel=0.1)


def test_noise_of_two_samples_is_unknown_and_taken_as_none() -> None:
    assert noise_sd(np.array([1.0, 9.0])) == 0.0


@pytest.mark.parametrize("n_ranks", [2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("ties", [False, True])
def test_the_median_of_the_peers_is_that_of_the_naive_loop(n_ranks: int, ties: bool) -> None:
    values = np.random.default_rng(n_ranks).normal(size=(6, 5, n_ranks))
    values = np.round(values) if ties else values
    naive = np.stack([np.median(np.delete(values, rank, axis=-1), axis=-1) for rank in range(n_ranks)], axis=-1)
    np.testing.assert_allclose(peer_median(values), naive)


def test_one_of_eight_far_above_the_rest_is_high() -> None:
    levels = 1 + 0.005 * np.random.default_rng(3).standard_normal(8)
    levels[5] = 1.2
    found = find_high(levels, NO_ERROR, PRIOR, LEAST)
    assert np.flatnonzero(found.mask).tolist() == [5]
    assert found.centre == pytest.approx(1, abs=0.01)


def test_three_of_eight_slow_ranks_are_all_high() -> None:
    levels = np.array([1.0, 1.2, 1.01, 0.99, 1.21, 1.0, 1.0, 1.19])
    assert np.flatnonzero(find_high(levels, NO_ERROR, PRIOR, LEAST).mask).tolist() == [1, 4, 7]


def test_half_of_the_ranks_are_not_the_odd_ones() -> None:
    assert not find_high(np.array([1.0, 1.0, 1.2, 1.2]), np.zeros(4), PRIOR, LEAST).mask.any()


def test_a_half_that_has_something_in_common_may_be_the_odd_one() -> None:
    levels = np.array([1.0, 1.2, 1.0, 1.2])
    halves = [np.array([False, True, False, True]), np.array([True, True, False, False])]
    assert find_high(levels, np.zeros(4), PRIOR, LEAST, halves).mask.tolist() == [False, True, False, True]
    assert not find_high(levels, np.zeros(4), PRIOR, LEAST, halves[1:]).mask.any()


def test_low_ranks_are_not_high() -> None:
    assert not find_high(np.array([1.0, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0]), NO_ERROR, PRIOR, LEAST).mask.any()


def test_a_rank_at_the_edge_of_an_even_spread_is_not_high() -> None:
    assert not find_high(np.linspace(0.94, 1.06, 8), NO_ERROR, PRIOR, LEAST).mask.any()


@pytest.mark.parametrize("excess,is_high", [(0.05, False), (0.08, True)])
def test_two_ranks_are_judged_by_the_prior_alone(excess: float, is_high: bool) -> None:
    found = find_high(np.array([1.0, 1.0 + excess]), np.zeros(2), PRIOR, LEAST)
    assert found.mask.tolist() == [False, is_high]


def test_an_excess_below_what_is_worth_a_claim_is_not_high() -> None:
    levels = np.full(8, 1.0)
    levels[2] = 1.015
    assert find_high(levels, NO_ERROR, 1e-4, 0.01).mask.any()
    assert not find_high(levels, NO_ERROR, 1e-4, 0.02).mask.any()


def test_a_level_known_badly_is_not_high() -> None:
    levels = np.full(8, 1.0)
    levels[2] = 1.2
    errors = np.zeros(8)
    errors[2] = 0.1
    assert not find_high(levels, errors, PRIOR, LEAST).mask.any()


def test_one_rank_alone_is_never_high() -> None:
    assert not find_high(np.array([9.0]), np.zeros(1), PRIOR, LEAST).mask.any()


def test_a_spike_is_an_event_and_noise_is_none() -> None:
    series = np.random.default_rng(4).normal(0, 1, 200)
    assert not find_events(series, 0.0).any()
    series[70] += 20
    assert np.flatnonzero(find_events(series, 0.0)).tolist() == [70]


def test_a_spike_lower_than_what_is_worth_it_is_no_event() -> None:
    series = np.random.default_rng(4).normal(0, 1, 200)
    series[70] += 20
    assert not find_events(series, 30.0).any()


def test_seven_samples_hold_no_events() -> None:
    assert not find_events(np.array([0.0, 0, 0, 99, 0, 0, 0]), 0.0).any()


def test_a_shift_is_found_where_it_is() -> None:
    series = np.random.default_rng(5).normal(0, 1, 120)
    series[45:] += 6
    (place,) = find_changes(series)
    assert abs(place - 45) <= 1


def test_a_shift_back_is_found_too() -> None:
    series = np.random.default_rng(5).normal(0, 1, 150)
    series[50:100] += 6
    assert np.allclose(find_changes(series), [50, 100], atol=1)


@pytest.mark.parametrize("width", [1, 2])
def test_a_spike_is_no_shift(width: int) -> None:
    series = np.random.default_rng(5).normal(0, 1, 120)
    series[60 : 60 + width] += 500
    assert find_changes(series) == []


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_shift(seed: int) -> None:
    assert find_changes(np.random.default_rng(seed).normal(0, 1, 300)) == []


@pytest.mark.parametrize("seed", range(20))
def test_noise_that_remembers_the_step_before_does_not_shift(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 1, 400)
    for k in range(1, len(noise)):
        noise[k] += 0.3 * noise[k - 1]
    assert find_changes(noise) == []


def test_a_shift_smaller_than_what_is_worth_it_is_none() -> None:
    series = np.random.default_rng(5).normal(0, 0.1, 120)
    series[60:] += 1
    assert find_changes(series, least=0.5)
    assert not find_changes(series, least=2.0)


@pytest.mark.parametrize("series", [np.zeros(50), np.zeros(3), np.zeros(0)])
def test_a_series_that_stands_still_or_is_too_short_does_not_shift(series: Array) -> None:
    assert find_changes(series) == []


def test_blocks_are_drawn_from_the_steps_there_are_and_alike_every_time() -> None:
    drawn = draw_blocks(30, 50)
    assert drawn.shape == (50, 30)
    assert drawn.min() >= 0
    assert drawn.max() < 30
    assert np.array_equal(drawn, draw_blocks(30, 50))
    assert not np.array_equal(drawn, draw_blocks(30, 50, seed=1))


def test_a_sum_is_as_uncertain_as_its_samples_scatter() -> None:
    random = np.random.default_rng(6)
    low, high = bootstrap_sum(5 + random.normal(0, 1, 900))
    for bound in (-low, high):
        assert 1.645 * 30 * 0.7 < bound < 1.645 * 30 * 1.3


def test_samples_that_follow_each_other_make_a_sum_more_uncertain() -> None:
    random = np.random.default_rng(7)
    slow = np.repeat(random.normal(0, 1, 150), 6)
    assert bootstrap_sum(slow)[1] > 1.5 * bootstrap_sum(random.permutation(slow))[1]


@pytest.mark.parametrize("samples", [np.array([3.0]), np.zeros(0), np.full(9, 2.0)])
def test_what_does_not_scatter_is_certain(samples: Array) -> None:
    assert bootstrap_sum(samples) == (0.0, 0.0)


QUIET = (0.0, 0.01, -0.01, 0.005, -0.004, 0.002)


@pytest.mark.parametrize(
    ("levels", "high"),
    [((0.68, 0.3), [6, 7]), ((0.3, 0.68), [6, 7]), ((0.68,), [6]), ((0.68, 0.1), [6]), ((0.68, 0.4, 0.2), [6, 7, 8])],
)
def test_a_rank_far_out_hides_no_other_that_would_be_missed(levels: tuple[float, ...], high: list[int]) -> None:
    every = np.array([*QUIET, *levels])
    assert np.flatnonzero(find_high(every, np.full(len(every), 0.002), 0.02, 0.03).mask).tolist() == high


@given(seed=st.integers(0, 2**32), first=st.floats(0.2, 1.0), share=st.floats(0.3, 1.0))
def test_of_two_far_out_both_are_found_and_nobody_else(seed: int, first: float, share: float) -> None:
    random = np.random.default_rng(seed)
    levels = np.append(random.permutation(QUIET), [first, first * share])
    order = random.permutation(len(levels))
    found = find_high(levels[order], np.full(len(levels), 0.002), 0.01, 0.03).mask
    np.testing.assert_array_equal(found, order >= len(QUIET))


def draw_ranks(seed: int, n_steps: int = 60, n_ranks: int = 6) -> Array:
    """Draw series of ranks of which some shift, go to and fro, have single high steps, or stand still."""
    random = np.random.default_rng(seed)
    series = random.normal(0, random.choice([0.002, 0.01, 0.1]), (n_steps, n_ranks)) + random.choice([0.0, 1.0, 1e6])
    series[random.integers(n_steps) :, 0] += random.choice([0.0, 0.2, 1.0])
    series[::2, 1] += random.choice([0.0, 0.3])
    series[random.integers(0, n_steps, 3), 2] += random.choice([0.0, 2.0])
    series[:, 3] = np.round(series[:, 3], 1)
    series[:, 4] = series[0, 4]
    return np.asarray(series)


def find_changes_slowly(series: Array, least: float, shortest: int = 10) -> list[int]:
    """Look for the place where the means on both sides differ most, then on each side of it."""
    scale = 1.4826 * np.median(np.abs(np.diff(series) - np.median(np.diff(series)))) / np.sqrt(2)
    if scale == 0 and np.ptp(series) == 0:
        return []
    clipped = np.median(np.lib.stride_tricks.sliding_window_view(np.pad(series, 2, "edge"), 5), axis=1)

    def search(low: int, high: int) -> list[int]:
        places = range(low + shortest, high - shortest + 1)
        shifts = [abs(clipped[place:high].mean() - clipped[low:place].mean()) for place in places]
        scores = [
            shift / (max(scale, 1e-12) * np.sqrt(1 / (place - low) + 1 / (high - place)))
            for shift, place in zip(shifts, places, strict=True)
        ]
        best = int(np.argmax(scores)) if scores else 0
        if not scores or scores[best] < CHANGE_SCORE or shifts[best] < least:
            return []
        return [*search(low, places[best]), places[best], *search(places[best], high)]

    return search(0, len(series))


@given(seed=st.integers(0, 2**32), least=st.sampled_from([0.0, 0.01, 0.15, 0.5]))
def test_shifts_of_many_series_are_those_of_each_by_the_slow_search(seed: int, least: float) -> None:
    series = np.delete(draw_ranks(seed), 3, axis=1).T  # of rounded numbers several places would be best
    series = series - 1e6 * (series > 1e5)  # beside such a number a sum keeps less of the differences
    assert find_changes_each(series, least=least) == [find_changes_slowly(mine, least) for mine in series]


@given(seed=st.integers(0, 2**32), least=st.sampled_from([0.0, 0.05, 0.5]), pooled=st.booleans())
def test_events_of_many_series_are_those_of_each(seed: int, least: float, pooled: bool) -> None:
    series = draw_ranks(seed)
    scales = [robust_sd(mine) for mine in series.T]
    expected = [
        mine - np.median(mine) > max(EVENT_SCORE * (np.median(scales) if pooled else scale), least)
        for mine, scale in zip(series.T, scales, strict=True)
    ]
    np.testing.assert_array_equal(find_events(series, least, pooled=pooled), np.stack(expected, axis=1))


def test_ranks_that_go_to_and_fro_are_told_from_those_that_shift_or_scatter() -> None:
    series = np.random.default_rng(8).normal(0, 0.01, (60, 4))
    series[::2, 1] += 0.5
    series[30:, 2] += 0.5
    marks = find_two_levels(series, 0.1)
    assert np.flatnonzero(marks.any(axis=0)).tolist() == [1]
    assert np.flatnonzero(marks[:, 1]).tolist() == list(range(0, 60, 2))
    assert not find_two_levels(series, 0.6).any()


def find_high_slowly(levels: Array, errors: Array, prior_sd: float, least: float) -> Array:
    """Try every number of high ranks, from one to fewer than half; the last that passes counts."""
    order, found = np.argsort(levels), np.zeros(len(levels), bool)
    for count in range(1, (len(levels) + 1) // 2):
        rest, weakest = levels[order[:-count]], order[-count]
        squares = ((rest - rest.mean()) ** 2).sum()
        spread = np.sqrt((PRIOR_WEIGHT * prior_sd**2 + squares) / (PRIOR_WEIGHT + len(rest) - 1))
        excess = levels[weakest] - np.median(rest)
        if excess > max(OUTLIER_SCORE * np.hypot(spread, errors[weakest]), least) and (
            levels[weakest] - rest.max() > 2 * spread
        ):
            found = np.isin(np.arange(len(levels)), order[-count:])
            found &= levels - np.median(rest) > 0.2 * (levels.max() - np.median(rest))
    return found


@given(seed=st.integers(0, 2**32), n_ranks=st.integers(3, 40), far=st.floats(0.0, 1.0), spread=st.floats(0, 0.03))
def test_high_ranks_are_those_of_the_loop_over_all_their_numbers(
    seed: int, n_ranks: int, far: float, spread: float
) -> None:
    random = np.random.default_rng(seed)
    levels = 1 + random.normal(0, spread, n_ranks)
    levels[: n_ranks // 4] += far * random.uniform(0.3, 1, n_ranks // 4)
    errors = random.uniform(0, 0.01, n_ranks)
    found = find_high(levels, errors, PRIOR, LEAST).mask
    if 2 * found.sum() < n_ranks:
        np.testing.assert_array_equal(found, find_high_slowly(levels, errors, PRIOR, LEAST))
    assert may_be_high(levels, LEAST) or not found.any()
