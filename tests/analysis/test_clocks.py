"""Clocks fitted on the ends of meetings, in whole nanoseconds, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.analysis.clocks import ClockFit, fit_clock, nearest
from tests.analysis.builders import EPOCH_NS, Array


def uneven_ends(count: int = 400, seed: int = 0) -> Array:
    """Ends whose distances tell them apart."""
    return EPOCH_NS + np.cumsum(np.random.default_rng(seed).integers(100_000, 400_000, count))


def layered_ends(steps: int = 40, layers: int = 10, jitter_ns: int = 0, gap_ns: int = 0, seed: int = 0) -> Array:
    """Ends that look the same from layer to layer."""
    random = np.random.default_rng(seed)
    distance = 200_000 + random.integers(-jitter_ns, jitter_ns + 1, (steps, layers))
    distance[:, -1] += gap_ns
    return EPOCH_NS + np.cumsum(distance.ravel())


@pytest.mark.parametrize("offset_ns", [0, 12_345, -3_000_000, 1_000_000_000, -86_400_000_000_000])
def test_an_offset_is_found_to_the_nanosecond(offset_ns: int) -> None:
    ends = uneven_ends()
    fit = fit_clock(ends, ends + offset_ns)
    assert fit is not None
    np.testing.assert_array_equal(fit.apply(ends + offset_ns), ends)
    assert fit.residual_ns == 0


def test_drift_is_found_beside_the_offset() -> None:
    ends = uneven_ends(4_000)
    other = ends + 7_000_000 + ((ends - ends[0]) * 50) // 1_000_000
    fit = fit_clock(ends, other)
    assert fit is not None
    assert fit.drift_ppb == pytest.approx(50_000, rel=0.01)
    assert np.abs(fit.apply(other) - ends).max() < 100


def test_noise_of_a_microsecond_moves_the_fit_by_less() -> None:
    ends = uneven_ends(1_000)
    noise = np.random.default_rng(1).integers(-1_000, 1_001, len(ends))
    fit = fit_clock(ends, ends + 5_000_000 + noise)
    assert fit is not None
    assert abs(int(np.median(fit.apply(ends + 5_000_000) - ends))) < 150
    assert 200 < fit.residual_ns < 1_000


def test_missing_rows_on_either_side_do_not_mislead() -> None:
    ends = uneven_ends(800)
    random = np.random.default_rng(2)
    left, right = (ends[random.random(len(ends)) > 0.02] for _ in range(2))
    fit = fit_clock(left, right + 5_000_000)
    assert fit is not None
    assert abs(int(fit.apply(ends[:1] + 5_000_000)[0] - ends[0])) < 10


def test_a_shift_by_one_layer_is_refused_where_it_fits_nearly_as_well() -> None:
    ends = layered_ends()
    assert fit_clock(ends, ends + 5_000_000) is None


def test_the_same_layers_are_told_apart_where_another_shift_fits_three_times_worse() -> None:
    ends = layered_ends(jitter_ns=20_000, gap_ns=900_000)
    fit = fit_clock(ends, ends + 5_000_000)
    assert fit is not None
    np.testing.assert_array_equal(fit.apply(ends + 5_000_000), ends)


def test_strangers_have_no_fit() -> None:
    assert fit_clock(uneven_ends(seed=1), uneven_ends(seed=2)) is None


def test_seven_ends_are_too_few() -> None:
    ends = uneven_ends(7)
    assert fit_clock(ends, ends) is None


def test_times_near_the_epoch_stay_whole_nanoseconds() -> None:
    fit = ClockFit(1, 0, EPOCH_NS, 0, None, 10)
    times = EPOCH_NS + np.array([0, 1, 2, 255, 256, 257])
    np.testing.assert_array_equal(fit.apply(times), times - 1)
    assert fit.apply(times).dtype == np.int64


def test_drift_over_a_week_neither_overflows_nor_rounds() -> None:
    week = 7 * 86_400 * 1_000_000_000
    fit = ClockFit(0, 100_000, EPOCH_NS, 0, None, 10)
    assert fit.apply(np.array([EPOCH_NS + week]))[0] == EPOCH_NS + week - week // 10_000


def test_the_nearest_entry_is_found_on_both_sides_and_beyond_the_ends() -> None:
    index, distance = nearest(np.array([10, 20, 40]), np.array([0, 14, 16, 31, 99]))
    assert index.tolist() == [0, 0, 1, 2, 2]
    assert distance.tolist() == [-10, 4, -4, -9, 59]


def test_ends_that_are_late_in_half_of_the_recording_are_not_taken_for_drift() -> None:
    ends = uneven_ends()
    late = ends + np.where(np.arange(len(ends)) >= len(ends) // 2, 30_000, 0)
    fit = fit_clock(ends, late + 5_000_000)
    assert fit is not None
    assert abs(fit.drift_ppb) < 1_000
    apart = fit.apply(late + 5_000_000) - ends
    before, after = np.median(apart[: len(ends) // 2]), np.median(apart[len(ends) // 2 :])
    assert after - before == pytest.approx(30_000, abs=500)
    assert min(abs(before), abs(after)) < 500


def test_no_drift_is_believed_beyond_what_crystals_do() -> None:
    ends = uneven_ends(2_000)
    other = ends + 7_000_000 + (ends - ends[0]) // 1_000
    fit = fit_clock(ends, other)
    assert fit is None or abs(fit.drift_ppb) <= 100_000
