"""Who stands out, in which steps, together or in turn."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.analysis.standouts import (
    Standout,
    find_bursts,
    find_period,
    find_stalls,
    find_standouts,
    relative_to_step,
)
from tests.analysis.builders import Array

PRIOR, LEAST = 0.01, 0.02


def even(n_steps: int = 80, n_ranks: int = 8, noise: float = 0.01, seed: int = 0) -> Array:
    return 1 + noise * np.random.default_rng(seed).standard_normal((n_steps, n_ranks))


def named(found: Standout) -> list[int]:
    return np.flatnonzero(found.mask).tolist()


def test_steps_are_compared_by_what_they_ask_of_the_median_rank() -> None:
    ratio = relative_to_step(np.array([[10.0, 10, 20], [100, 100, 200]]))
    np.testing.assert_allclose(ratio, [[1, 1, 2], [1, 1, 2]])


def test_of_two_ranks_the_lesser_is_the_measure() -> None:
    np.testing.assert_allclose(relative_to_step(np.array([[10.0, 20.0]])), [[1, 2]])


def test_even_ranks_do_not_stand_out() -> None:
    assert find_standouts(even(), PRIOR, LEAST) == []


def test_one_rank_stands_out_throughout() -> None:
    series = even()
    series[:, 6] *= 1.2
    (found,) = find_standouts(series, PRIOR, LEAST)
    assert (found.first, found.stop, named(found)) == (0, 80, [6])
    assert found.levels[6] / found.centre == pytest.approx(1.2, abs=0.01)
    assert found.marks[:, 6].all()
    assert found.marks.sum() == 80


def test_three_of_eight_stand_out_together() -> None:
    series = even()
    series[:, [1, 4, 7]] *= 1.2
    (found,) = find_standouts(series, PRIOR, LEAST)
    assert named(found) == [1, 4, 7]


def test_a_rank_that_begins_to_stand_out_does_so_from_there_on() -> None:
    series = even()
    series[35:, 2] *= 1.3
    (found,) = find_standouts(series, PRIOR, LEAST)
    assert named(found) == [2]
    assert abs(found.first - 35) <= 1
    assert found.stop == 80


def test_two_ranks_one_after_the_other_are_two_standouts() -> None:
    series = even()
    series[:40, 2] *= 1.3
    series[40:, 5] *= 1.3
    first, second = find_standouts(series, PRIOR, LEAST)
    assert (named(first), named(second)) == ([2], [5])
    assert abs(first.stop - 40) <= 1


def test_spikes_make_no_standout_over_a_run_of_steps() -> None:
    series = even()
    series[::11, 3] *= 4
    assert find_standouts(series, PRIOR, LEAST) == []


def test_ranks_that_differ_from_each_other_as_usual_differ_from_their_own_past_unusually() -> None:
    series = even(noise=0.004)
    series *= 1 + 0.01 * np.linspace(-1, 1, 8)
    series[40:, 0] *= 1.035
    assert find_standouts(series, 0.012, 0.02) == []
    (found,) = find_standouts(series, 0.012, 0.02, own_past=True)
    assert named(found) == [0]
    assert abs(found.first - 40) <= 1


def test_four_steps_are_too_few() -> None:
    series = even(4)
    series[:, 6] *= 2
    assert find_standouts(series, PRIOR, LEAST) == []


def test_a_stall_is_held_against_the_rank_and_its_peers() -> None:
    series = even(noise=0.05)
    series[10, :] += 5
    series[20, 4] += 5
    marks = find_stalls(series, 1.0)
    assert np.argwhere(marks).tolist() == [[20, 4]]


def test_single_steps_of_one_rank_are_a_burst() -> None:
    series = even(noise=0.05)
    series[[7, 31, 32, 70], 4] += 3
    (found,) = find_bursts(series, 0.5)
    assert found.is_burst
    assert not found.in_turn
    assert named(found) == [4]
    assert np.flatnonzero(found.steps).tolist() == [7, 31, 32, 70]


def test_a_single_step_is_told_of_a_host_alone() -> None:
    series = even(noise=0.05)
    series[7, 4] += 3
    assert find_bursts(series, 0.5) == []
    (found,) = find_bursts(series, 0.5, of_host=True)
    assert named(found) == [4]


def test_ranks_that_burst_in_the_same_steps_are_one_group() -> None:
    series = even(noise=0.05)
    series[np.ix_([7, 31, 60], [1, 4])] += 3
    (found,) = find_bursts(series, 0.5)
    assert named(found) == [1, 4]


def test_ranks_that_burst_in_different_steps_stand_apart() -> None:
    series = even(noise=0.05)
    series[[7, 31], 1] += 3
    series[[12, 50], 4] += 3
    assert [named(found) for found in find_bursts(series, 0.5)] == [[1], [4]]


def test_ranks_that_burst_often_and_one_at_a_time_take_turns() -> None:
    series = even(noise=0.05)
    for step in range(0, 80, 2):
        series[step, (step // 2) % 3 * 2] += 3
    (found,) = find_bursts(series, 0.5)
    assert found.in_turn
    assert named(found) == [0, 2, 4]


def test_hosts_that_stall_alike_in_different_steps_take_turns() -> None:
    series = even(noise=0.01)
    series[[7, 31], 1] += 30
    series[[12, 50], 4] += 30
    (found,) = find_bursts(series, 0.5, of_host=True)
    assert (named(found), found.in_turn) == ([1, 4], True)


def test_hosts_that_stall_in_the_same_steps_do_not_take_turns() -> None:
    series = even(noise=0.01)
    series[np.ix_([7, 31, 60], [1, 4])] += 30
    (found,) = find_bursts(series, 0.5, of_host=True)
    assert (named(found), found.in_turn) == ([1, 4], False)


def test_now_this_rank_and_now_that_one_is_noise() -> None:
    series = even(200, noise=0.05)
    for rank in range(5):
        series[[10 + 7 * rank, 100 + 7 * rank], rank] += 3
    assert find_bursts(series, 0.5) == []


def test_small_stalls_beside_large_ones_do_not_count() -> None:
    series = even(noise=0.01)
    series[[7, 31], 4] += 30
    series[[12, 50], 4] += 1
    (found,) = find_bursts(series, 0.5, of_host=True)
    assert np.flatnonzero(found.steps).tolist() == [7, 31]


def test_what_is_accounted_for_does_not_burst() -> None:
    series = even(noise=0.05)
    series[[7, 31], 4] += 3
    (first,) = find_bursts(series, 0.5)
    assert find_bursts(series, 0.5, [first]) == []


@pytest.mark.parametrize(
    "index,period",
    [([3, 11, 19, 27, 35], 8_000), ([3, 11, 20, 27, 35], 8_000), ([3, 11, 19, 27], None), ([3, 4, 30, 31, 70], None)],
)
def test_a_period_needs_five_events_at_like_distance(index: list[int], period: int | None) -> None:
    assert find_period(np.array(index), np.array(index) * 1_000) == period


def test_events_in_every_step_have_no_period() -> None:
    assert find_period(np.arange(20), np.arange(20) * 1_000) is None


def test_events_that_reach_into_the_next_step_have_the_period_of_their_first_steps() -> None:
    steps = np.flatnonzero(np.isin(np.arange(60) % 8, (0, 7)))
    assert find_period(steps, steps * 1_000) == 8_000
