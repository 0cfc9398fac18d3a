"""Fitted costs: the solver, what a step is made of, and that known costs are found again."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dprankdiag.model.request_log import LoggedRequest
from dprankdiag.simulate.base import StepTime, StepWork
from dprankdiag.simulate.cost_fit import fit_requests
from dprankdiag.simulate.cost_times import STEP_SCATTER, Observed, find_span, list_times, whiten
from dprankdiag.simulate.cost_windows import Window
from dprankdiag.simulate.costs import TERMS, FittedCosts, solve_positive, table_steps
from dprankdiag.simulate.replay import AS_RECORDED, Site, Traffic, list_traffic, serve_again
from dprankdiag.simulate.world_tables import Outcome

TRUE = (4_000_000.0, 2_000_000.0, 20_000.0, 200.0, 4_000.0, 0.5, 1_000.0)
SITE = Site("sglang", 1, 4)


def draw_traffic(count: int = 80, seed: int = 3) -> Traffic:
    """Draw requests of all lengths, dealt unevenly to four ranks."""
    generator = np.random.default_rng(seed)
    arrivals = np.cumsum(generator.exponential(25e6, count)).astype(int)
    ranks = generator.choice(4, count, p=[0.4, 0.3, 0.2, 0.1])
    prompts, outputs = generator.integers(50, 12_000, count), generator.integers(20, 160, count)
    return list_traffic(
        [
            LoggedRequest(at, prompt, output, rank=rank)
            for at, prompt, output, rank in zip(
                arrivals.tolist(), prompts.tolist(), outputs.tolist(), ranks.tolist(), strict=True
            )
        ],
        512,
    )


@pytest.fixture(scope="module")
def served() -> tuple[Traffic, Outcome]:
    traffic = draw_traffic()
    return traffic, serve_again(SITE, traffic, AS_RECORDED, FittedCosts(TRUE))


def observe(outcome: Outcome) -> Observed:
    order = np.argsort(outcome.requests["request"])
    table = {name: values[order] for name, values in outcome.requests.items()}
    return Observed(table["first_ns"] - table["arrival_ns"], table["end_ns"] - table["arrival_ns"])


def test_least_squares_leave_no_term_below_zero() -> None:
    design = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    assert solve_positive(design, np.array([3.0, 2.0, 1.0])) == pytest.approx([2.0, 0.0])
    assert solve_positive(design, np.array([1.0, 3.0, 5.0])) == pytest.approx([1.0, 2.0])


def test_a_step_lasts_as_long_as_its_busiest_rank() -> None:
    rows, context = np.array([2, 5]), np.array([9_000, 100])
    nothing = np.zeros(2, np.int64)
    work = StepWork(("decode", "decode"), rows, context, context, nothing, nothing, np.array([8, 8]), True, False)
    taken = FittedCosts(TRUE).time_step(work)
    assert taken.total_ns == 4_000_000 + 2 * 20_000 + 9_000 * 200 + 16 * 1_000


def test_the_steps_of_a_run_cost_what_they_took(served: tuple[Traffic, Outcome]) -> None:
    (table,) = table_steps(served[1]).values()
    terms = np.array(TRUE)
    assert table.time(terms) == pytest.approx(table.total_ns, abs=2)
    assert table.design(terms) @ terms == pytest.approx(table.total_ns, abs=2)


def test_times_of_requests_are_sums_of_their_steps(served: tuple[Traffic, Outcome]) -> None:
    times = list_times(SITE, served[1], observe(served[1]))
    assert len(times.target) == 2 * 80
    assert times.design(np.array(TRUE)) @ np.array(TRUE) == pytest.approx(times.target, abs=500)


def test_known_costs_are_found_again(served: tuple[Traffic, Outcome]) -> None:
    fit = fit_requests(SITE, served[0], observe(served[1]))
    assert fit is not None
    assert fit.miss_ratio < 0.005
    assert fit.held_out_error_ratio is not None
    assert fit.held_out_error_ratio < 0.01
    found = dict(zip(TERMS, fit.terms, strict=True))
    assert found["context_token_ns"] == pytest.approx(200, rel=0.1)
    assert found["step_ns"] == pytest.approx(4_000_000, rel=0.1)


class Unsteady:
    """Known costs, of which every step takes 2 % more or less."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def time_step(self, work: StepWork) -> StepTime:
        factor = 1 + 0.02 * self._generator.standard_normal()
        return FittedCosts(tuple(factor * term for term in PILED)).time_step(work)


PILED = (6_000_000.0, 3_000_000.0, 110_000.0, 0.0, 2_000.0, 0.0, 1_000.0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_piled_on_a_rank_are_not_mistaken_for_the_contexts_of_the_others(seed: int) -> None:
    """Long contexts on three ranks would explain the time of a step as well, but for how it grows."""
    long = [LoggedRequest(place * 1_000_000, 40_000, 800, rank=place) for place in range(3)]
    short = [LoggedRequest(int(1e9) + place * 40_000_000, 1_000, 300, rank=3) for place in range(32)]
    traffic = list_traffic([*long, *short], 512)
    outcome = serve_again(SITE, traffic, AS_RECORDED, Unsteady(seed))
    fit = fit_requests(SITE, traffic, observe(outcome))
    assert fit is not None
    found = dict(zip(TERMS, fit.terms, strict=True))
    assert found["step_ns"] == pytest.approx(6_000_000, rel=0.05)
    assert found["row_ns"] == pytest.approx(110_000, rel=0.1)
    assert found["context_token_ns"] < 10


def test_errors_are_free_of_the_scatter_that_times_share(served: tuple[Traffic, Outcome]) -> None:
    """Scatter the steps of a run: neighbouring times are off together, and freed they are not."""
    (table,) = table_steps(served[1]).values()
    generator = np.random.default_rng(0)
    begin = np.sort(generator.choice(table.start_ns[:-60], 100, replace=False))
    span = find_span(table, np.arange(100), begin, begin + 50 * int(np.median(table.total_ns)))
    (block,) = whiten([table], [span], np.full(100, 1_000.0), is_shared=True)
    rows, inverse = block
    told = np.stack(
        [
            span.sum(STEP_SCATTER * table.total_ns * generator.standard_normal(len(table.total_ns)))[rows]
            for _ in range(400)
        ]
    )
    freed = told @ inverse.T

    def correlate(errors: np.ndarray) -> float:
        return float(np.mean([np.corrcoef(errors[:, at], errors[:, at + 1])[0, 1] for at in range(99)]))

    assert correlate(told) > 0.5
    assert abs(correlate(freed)) < 0.05
    assert float(freed.std()) == pytest.approx(1, rel=0.05)


def test_counted_steps_alone_are_fitted_or_the_fit_says_that_it_misses_them(served: tuple[Traffic, Outcome]) -> None:
    (table,) = table_steps(served[1]).values()
    edges = np.arange(0, len(table.total_ns), 10)
    start, total = table.start_ns.tolist(), table.total_ns.tolist()
    windows = tuple(
        Window(0, 0, 0, start[a], start[b], "all", float(b - a), float(sum(total[a:b])))
        for a, b in pairwise(edges.tolist())
    )
    nothing = np.full(80, -1)
    fit = fit_requests(SITE, served[0], Observed(nothing, nothing, windows))
    assert fit is not None
    taken = float(fit.outcome.steps["total_ns"].sum()) / float(served[1].steps["total_ns"].sum())
    assert abs(taken - 1) <= 0.03 or fit.miss_ratio > 0.03


def test_too_few_times_make_no_fit() -> None:
    traffic = draw_traffic(count=4)
    nothing = np.full(4, -1)
    assert fit_requests(SITE, traffic, Observed(nothing, nothing)) is None
