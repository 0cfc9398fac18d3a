"""Work after the gather held against the busiest rank's rows."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.padding import Line, Padding, even_rows, judge_padding
from tests.analysis.builders import Array, annotate, observe_steps

N, RANKS = 40, 8
BUSY = np.arange(N) >= 20
REQUESTS = 16.0


def steps_with(growth: float, rows: Array, **told: Array) -> Observations:
    """Let the work after the gather of every rank grow in the busy steps; rank 3 holds `rows`, `(N,)`, times 16."""
    seen = observe_steps(N, factor={"expert": np.where(BUSY, growth, 1.0)[:, None, None]})
    seen = annotate(seen, requests=[REQUESTS] * RANKS, prefill_tokens=[0.0] * RANKS, **told)
    seen.batches[3].requests[:] = REQUESTS * rows
    return seen


def test_work_that_grows_more_than_all_rows_together_follows_the_busiest_rank() -> None:
    found = judge_padding(steps_with(1.5, np.where(BUSY, 2.0, 1.0)))
    assert isinstance(found, Padding)
    line = found.lines["expert"]
    assert line.at(np.array([32.0])) / line.at(np.array([16.0])) == pytest.approx(1.5, abs=0.02)
    assert found.lines["other"].per_row_ns == pytest.approx(0.0, abs=line.per_row_ns / 50)


def test_work_that_grows_with_all_rows_together_is_not_padded() -> None:
    assert judge_padding(steps_with(1.1, np.where(BUSY, 2.0, 1.0))) is None
    assert judge_padding(steps_with(1.0, np.where(BUSY, 2.0, 1.0))) is None


def test_work_that_shrinks_as_rows_grow_is_not_padded() -> None:
    assert judge_padding(steps_with(0.7, np.where(BUSY, 2.0, 1.0))) is None


def test_rows_that_stay_the_same_show_nothing() -> None:
    assert "about as many rows in all steps" in str(judge_padding(steps_with(1.5, np.full(N, 2.0))))
    few = np.where(np.arange(N) >= N - 3, 2.0, 1.0)
    assert "about as many rows in all steps" in str(judge_padding(steps_with(1.5, few)))


def test_rows_that_nobody_annotated_show_nothing() -> None:
    assert "not annotated" in str(judge_padding(observe_steps(N)))
    unknown = annotate(observe_steps(N), requests=[REQUESTS] * RANKS)
    assert "not annotated" in str(judge_padding(unknown))


def test_prompt_tokens_are_rows() -> None:
    seen = steps_with(1.5, np.ones(N))
    seen.batches[3].prefill_tokens[BUSY] = 16.0
    assert isinstance(judge_padding(seen), Padding)


def test_padding_shrinks_to_even_rows_and_never_grows() -> None:
    rows = np.array([[16.0, 16.0, 16.0, 30.0], [16.0, 16.0, 16.0, 16.0]])
    found = Padding(rows, {"expert": Line(100.0, 10.0), "other": Line(50.0, 0.0)})
    even = even_rows(found)
    assert even.tolist() == [20.0, 16.0]
    assert found.excess_ns(even).tolist() == [100.0, 0.0]
    assert found.shrink("expert", even).tolist() == [pytest.approx(300 / 400), 1.0]
    assert found.shrink("other", np.array([99.0, 99.0])).tolist() == [1.0, 1.0]
