"""What a rank's own rows add to its work before the gather."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.rows import RowWork, measure_row_work, sum_after_gather, sum_before_gather
from dprankdiag.analysis.standouts import describe_burst
from tests.analysis.builders import observe_steps, on_steps

N = 40
EVERY_FOURTH = slice(3, N, 4)


def steps_with(factor: float, component: str = "probe", add: np.ndarray | int = 0) -> Observations:
    before = np.where(np.arange(6) % 2 == 0, 1.0, 0.0)[None, :, None]
    grown = 1 + before * (on_steps(2, factor, EVERY_FOURTH, N, 8) - 1)
    return observe_steps(N, factor={component: grown}, add={component: np.asarray(add)})


def measure(seen: Observations) -> RowWork | None:
    marks = np.zeros((N, 8), bool)
    marks[EVERY_FOURTH, 2] = True
    standout = describe_burst(np.ones((N, 8)), marks, [2], in_turn=False)
    return measure_row_work(seen, np.ones((N, 8)), standout, "probe")


def test_the_excess_of_a_rank_is_spread_and_its_sum_stays() -> None:
    seen = steps_with(5.0)
    found = measure(seen)
    assert found is not None
    work = seen.grids[0].components["probe"][:, ::2]
    even = (work * found.spread[0][:, ::2])[EVERY_FOURTH]
    assert even.sum() == pytest.approx(work[EVERY_FOURTH].sum())
    assert even.max() < 1.1 * even.mean()


def test_the_excess_is_taken_from_where_it_lies() -> None:
    """The first segment also holds the end of the step before: there rows add what they add elsewhere, or less."""
    tail = np.where(np.arange(6) == 0, 400_000, 0)[None, :, None]
    seen = steps_with(5.0, add=tail)
    found = measure(seen)
    assert found is not None
    even = (seen.grids[0].components["probe"] * found.spread[0])[EVERY_FOURTH, ::2]
    assert even.max(axis=2) == pytest.approx(even.mean(axis=2), rel=0.05)


def test_what_a_step_ends_with_is_found_in_the_next_one() -> None:
    late = np.where(np.arange(6) == 0, 1.0, 0.0)[None, :, None]
    seen = observe_steps(N, factor={"probe": 1 + late * (on_steps(2, 3.0, slice(4, N, 4), N, 8) - 1)})
    found = measure(seen)
    assert found is not None
    assert found.lift[0][4::4, 0, 2] == pytest.approx(1 / 3, rel=0.1)
    assert (found.lift[0][EVERY_FOURTH] == 1.0).all()
    assert (found.lift[0][:, 1:] == 1.0).all()


def test_the_excess_can_be_taken_away_and_other_steps_stay_as_they_are() -> None:
    seen = steps_with(5.0)
    found = measure(seen)
    assert found is not None
    lifted = (seen.grids[0].components["probe"] * found.lift[0])[:, ::2].sum(axis=1)
    assert lifted[EVERY_FOURTH, 2].mean() == pytest.approx(lifted[:, 0].mean(), rel=0.02)
    assert (found.lift[0][np.arange(N) % 4 != 3] == 1.0).all()


def test_what_chips_differ_by_is_no_row() -> None:
    assert measure(steps_with(1.03)) is None


def test_before_and_after_the_gather_make_the_whole() -> None:
    seen = steps_with(2.0)
    both = sum_before_gather(seen, "probe") + sum_after_gather(seen, "probe")
    assert np.array_equal(both, seen.sums["probe"])
