"""A run kept in the time of another: equal steps whatever the costs, and what is not told is left to costs."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.simulate.base import IntArray
from dprankdiag.simulate.costs import FittedCosts
from dprankdiag.simulate.pace import MOST_STRETCH, RecordedPace
from dprankdiag.simulate.replay import AS_RECORDED, serve_again
from dprankdiag.simulate.world_tables import Outcome
from tests.simulate.test_costs import SITE, TRUE, draw_traffic

WRONG = tuple(1.3 * term for term in TRUE)


def tell_moments(outcome: Outcome) -> tuple[IntArray, IntArray]:
    order = np.argsort(outcome.requests["request"])
    table = {name: values[order] for name, values in outcome.requests.items()}
    return table["first_ns"] - table["arrival_ns"], table["end_ns"] - table["arrival_ns"]


def list_missed_ns(outcome: Outcome, other: Outcome) -> IntArray:
    return np.abs(np.concatenate(tell_moments(outcome)) - np.concatenate(tell_moments(other)))


@pytest.fixture(scope="module")
def recorded() -> Outcome:
    return serve_again(SITE, draw_traffic(), AS_RECORDED, FittedCosts(TRUE))


@pytest.mark.parametrize("reach_steps", [None, 4])
def test_tokens_come_when_they_came_though_costs_are_wrong(recorded: Outcome, reach_steps: int | None) -> None:
    pace = RecordedPace(*tell_moments(recorded), reach_steps)
    kept = serve_again(SITE, draw_traffic(), AS_RECORDED, FittedCosts(WRONG), pace=pace)
    drifted = serve_again(SITE, draw_traffic(), AS_RECORDED, FittedCosts(WRONG))
    step_ns = float(np.median(recorded.steps["total_ns"]))
    assert np.mean(list_missed_ns(kept, recorded) < 0.01 * step_ns) > 0.8
    assert np.mean(list_missed_ns(drifted, recorded) < 0.01 * step_ns) < 0.2


def test_steps_keep_what_they_held(recorded: Outcome) -> None:
    pace = RecordedPace(*tell_moments(recorded), 4)
    kept = serve_again(SITE, draw_traffic(), AS_RECORDED, FittedCosts(TRUE), pace=pace)
    for name in ("decode_rows", "kv_tokens", "prompt_tokens", "rows"):
        assert np.array_equal(kept.rank_steps[name], recorded.rank_steps[name])


def test_costs_decide_where_no_moment_is_told(recorded: Outcome) -> None:
    nothing = np.full(80, -1)
    kept = serve_again(SITE, draw_traffic(), AS_RECORDED, FittedCosts(TRUE), pace=RecordedPace(nothing, nothing))
    assert np.array_equal(kept.steps["total_ns"], recorded.steps["total_ns"])


def test_a_moment_that_is_of_other_steps_stretches_none_beyond_belief(recorded: Outcome) -> None:
    first_ns, end_ns = tell_moments(recorded)
    kept = serve_again(
        SITE, draw_traffic(), AS_RECORDED, FittedCosts(TRUE), pace=RecordedPace(1_000 * first_ns, end_ns)
    )
    own, shared, wait = (kept.rank_steps[name] for name in ("own_ns", "shared_ns", "waiting_ns"))
    costs_ns = (own + shared + wait).reshape(-1, SITE.ranks)[:, 0] + kept.steps["common_ns"]
    ratio = kept.steps["total_ns"] / costs_ns
    assert ratio.max() == pytest.approx(MOST_STRETCH)
    assert ratio.min() >= 1 / MOST_STRETCH - 1e-6
