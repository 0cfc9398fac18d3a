"""How slow each kind of work is on a slow chip."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.analysis.chips import measure_slowness
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews, measure_skews
from tests.analysis.builders import Array, observe_steps, on, on_steps

N = 60
OTHERS = np.arange(8) != 5


def slow(of_expert: Array, of_rest: Array) -> tuple[Observations, Skews, Array]:
    factor = {"expert": of_expert, "attention": of_rest, "probe": of_rest, "other": of_rest}
    seen = observe_steps(N, factor=factor)
    skews = measure_skews(seen)
    found = measure_slowness(seen, "expert", skews.slowness, skews.speed, skews.worst_family)
    return seen, skews, found


def test_experts_that_suffer_a_little_more_than_equal_work_are_as_slow_as_they_are() -> None:
    _, _, found = slow(on(5, 1.42), on(5, 1.3))
    assert found[:, 5] == pytest.approx(np.full(N, 1.42), abs=0.02)
    assert found[:, OTHERS] == pytest.approx(np.ones((N, 7)), abs=0.02)


def test_experts_that_suffer_far_more_hold_more_tokens_as_well() -> None:
    _, skews, found = slow(on(5, 2.5), on(5, 1.3))
    assert found[:, 5].max() <= 1.15 * 1.32
    assert skews.experts


def test_in_single_steps_all_that_exceeds_the_ranks_habit_is_the_chips() -> None:
    now = slice(5, N, 6)
    seen, skews, found = slow(on_steps(5, 3.0, now, N, 8) * on(5, 1.1), on_steps(5, 1.6, now, N, 8))
    assert [item.is_burst for item in skews.speed] == [True]
    assert found[now, 5] == pytest.approx(np.full(len(range(N)[now]), 3.0), abs=0.15)
    assert np.array_equal(np.delete(found, range(N)[now], axis=0), np.delete(skews.slowness, range(N)[now], axis=0))
    assert seen.n_steps == N


def test_without_a_slow_chip_equal_work_tells_everything() -> None:
    seen = observe_steps(N, factor={"expert": on(5, 1.4)})
    skews = measure_skews(seen)
    assert measure_slowness(seen, "expert", skews.slowness, (), skews.worst_family) is skews.slowness
