"""Drawn costs: they hold the true ones, scatter where times tell nothing, and stay where they are looked for."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.simulate.base import FloatArray
from dprankdiag.simulate.cost_draws import SHARES, Front, draw_costs
from dprankdiag.simulate.cost_prior import guess_terms, lean_rows
from dprankdiag.simulate.cost_times import Times
from dprankdiag.simulate.cost_walks import Stretches
from dprankdiag.simulate.costs import TERMS, StepTable
from dprankdiag.simulate.replay_figures import weigh_blocks

TRUE = np.array([6e6, 0.0, 3_000.0, 10.0, 0.0, 0.0, 0.0])
ROW, CONTEXT = TERMS.index("row_ns"), TERMS.index("context_token_ns")


def make_table(contexts: FloatArray, rows: FloatArray) -> StepTable:
    """Let two ranks decode: `(steps, 2)` rows and tokens of context."""
    nothing = np.zeros_like(rows)
    own = np.stack([rows, contexts, nothing, nothing], axis=2)
    common = np.stack([np.ones(len(rows)), np.zeros(len(rows))], axis=1)
    table = StepTable(np.zeros(len(rows), np.int64), np.ones(len(rows), np.int64), common, own, rows.sum(axis=1))
    total = np.rint(table.time(TRUE)).astype(np.int64)
    return StepTable(np.cumsum(total) - total, total, common, own, rows.sum(axis=1))


def observe(table: StepTable, seed: int = 0, every: int = 20) -> Times:
    """Let a moment be seen every few steps, which scatter by 3 %."""
    taken = table.total_ns * np.exp(0.03 * np.random.default_rng(seed).standard_normal(len(table.total_ns)))
    begin = np.arange(0, len(taken), every)
    target = np.add.reduceat(taken, begin)
    whiten = np.diag(1 / (0.03 * np.sqrt(np.add.reduceat(table.total_ns.astype(float) ** 2, begin))))
    return Times([(table, Stretches(begin, begin + every, target, ((slice(0, len(begin)), whiten),)))], [])


def draw(times: Times) -> FloatArray:
    most, generator = times.bound(), np.random.default_rng(1)
    starts = []
    for _ in range(20):
        guess = guess_terms(most, False, generator)
        lean = np.diag(np.divide(1.0, guess, out=np.zeros(len(guess)), where=guess > 0))
        starts.append(times.solve(TRUE, (lean, (guess > 0).astype(float))))
    return draw_costs(times, np.stack(starts))[0]


@pytest.fixture(scope="module")
def told() -> Times:
    """Rows and contexts vary apart."""
    generator = np.random.default_rng(2)
    rows = generator.integers(1, 60, (1_200, 2)).astype(float)
    return observe(make_table(generator.integers(1_000, 600_000, (1_200, 2)).astype(float), rows))


@pytest.fixture(scope="module")
def untold() -> Times:
    """All requests are alike, so that contexts go with rows."""
    rows = np.random.default_rng(2).integers(1, 60, (1_200, 2)).astype(float)
    return observe(make_table(10_000 * rows, rows))


def test_draws_hold_the_true_costs(told: Times) -> None:
    low, high = np.quantile(draw(told), [0.02, 0.98], axis=0)
    for name in ("step_ns", "context_token_ns"):
        place = TERMS.index(name)
        assert low[place] <= TRUE[place] <= high[place]
        assert high[place] < 1.2 * low[place]


def test_what_times_do_not_tell_apart_scatters_and_its_sum_does_not(untold: Times) -> None:
    drawn = draw(untold)
    assert drawn[:, CONTEXT].std() > 0.03 * drawn[:, CONTEXT].mean()
    whole = drawn[:, ROW] + 10_000 * drawn[:, CONTEXT]
    assert whole.std() < 0.1 * whole.mean()
    assert whole.mean() == pytest.approx(TRUE[ROW] + 10_000 * TRUE[CONTEXT], rel=0.1)


def test_the_same_times_give_the_same_draws(told: Times) -> None:
    assert (draw(told) == draw(told)).all()


def test_no_draw_lies_outside_of_what_is_looked_for(untold: Times) -> None:
    drawn, most = draw(untold), untold.bound()
    assert (drawn <= most * np.exp(np.log(SHARES[1])) * (1 + 1e-9)).all()
    assert (drawn[:, most == 0] == 0).all()


def test_ranks_with_less_of_everything_change_no_time() -> None:
    generator = np.random.default_rng(5)
    table = make_table(generator.random((300, 2)) * 1e5, generator.integers(1, 9, (300, 2)).astype(float))
    costs = generator.random((len(TERMS), 6)) * [[1e6], [1e6], [1e4], [10], [10], [1], [100]]
    wanted = np.stack([table.time(one) for one in costs.T], axis=1)
    assert Front(table).time(costs) == pytest.approx(wanted)


def test_a_solution_leans_on_what_is_likely_where_times_tell_nothing(untold: Times) -> None:
    found = untold.solve(TRUE, lean_rows(untold.bound(), sparse=False))
    assert found[CONTEXT] == pytest.approx(TRUE[CONTEXT], rel=0.1)


def test_each_request_weighs_as_much_as_any_other_on_the_mean() -> None:
    weights = weigh_blocks(60, 4_000)
    assert weights.mean(axis=0) == pytest.approx(np.ones(60), abs=0.08)
    assert (weights[:, 0] == weights[:, 1]).mean() > 0.8
