"""What a rank's own rows add to its work before the gather."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.rows import measure_row_work, sum_after_gather, sum_before_gather
from dprankdiag.analysis.standouts import describe_burst
from tests.analysis.builders import observe_steps, on_steps

N = 40
EVERY_FOURTH = slice(3, N, 4)


def steps_with(factor: float, component: str = "probe") -> Observations:
    before = np.where(np.arange(6) % 2 == 0, 1.0, 0.0)[None, :, None]
    grown = 1 + before * (on_steps(2, factor, EVERY_FOURTH, N, 8) - 1)
    return observe_steps(N, factor={component: grown})


def measure(seen: Observations) -> tuple[np.ndarray, np.ndarray] | None:
    marks = np.zeros((N, 8), bool)
    marks[EVERY_FOURTH, 2] = True
    standout = describe_burst(np.ones((N, 8)), marks, [2], in_turn=False)
    found = measure_row_work(seen, np.ones((N, 8)), standout, "probe")
    return None if found is None else (found.spread, found.lift)


def test_the_excess_of_a_rank_is_spread_and_its_sum_stays() -> None:
    seen = steps_with(5.0)
    found = measure(seen)
    assert found is not None
    work = sum_before_gather(seen, "probe")
    even = (work * found[0])[EVERY_FOURTH]
    assert even.sum() == pytest.approx(work[EVERY_FOURTH].sum())
    assert even.max() < 1.1 * even.mean()


def test_the_excess_can_be_taken_away_and_other_steps_stay_as_they_are() -> None:
    seen = steps_with(5.0)
    found = measure(seen)
    assert found is not None
    lifted = sum_before_gather(seen, "probe") * found[1]
    assert lifted[EVERY_FOURTH, 2].mean() == pytest.approx(lifted[:, 0].mean(), rel=0.02)
    assert (found[1][np.arange(N) % 4 != 3] == 1.0).all()


def test_what_chips_differ_by_is_no_row() -> None:
    assert measure(steps_with(1.03)) is None


def test_before_and_after_the_gather_make_the_whole() -> None:
    seen = steps_with(2.0)
    both = sum_before_gather(seen, "probe") + sum_after_gather(seen, "probe")
    assert np.array_equal(both, seen.sums["probe"])
