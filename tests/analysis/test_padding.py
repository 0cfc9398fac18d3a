"""What lasts equally long on all ranks held against the busiest rank's rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.padding import Course, Padding, Part, even_rows, judge_padding
from tests.analysis.builders import Array, annotate, announce, draw_components, observe_grids, observe_steps, run_grid

N, RANKS = 40, 8
BUSY = np.arange(N) >= 20
ALL = np.ones(N, bool)
REQUESTS = 16.0


def steps_with(growth: float, rows: Array, *, part: str = "expert", **told: Array) -> Observations:
    """Let a part of every rank's work grow in the busy steps; rank 3 holds `rows`, `(N,)`, times 16."""
    seen = observe_steps(N, factor={part: np.where(BUSY, growth, 1.0)[:, None, None]})
    seen = annotate(seen, requests=[REQUESTS] * RANKS, prefill_tokens=[0.0] * RANKS, **told)
    seen.batches[3].requests[:] = REQUESTS * rows
    return seen


def graphs_of(growth: dict[str, float], *, kind: str = "decode graph", transfer: float = 1.0) -> Observations:
    """Replay a graph captured for 16 rows, then one for 64, rank 3's, in which everybody's work takes longer."""
    drawn = [draw_components(20, factor=dict.fromkeys(growth, 1.0)), draw_components(20, factor=growth, seed=1)]
    first = run_grid(drawn[0], kind=kind)
    second = run_grid(drawn[1], kind=kind, transfer=round(16_000 * transfer), start_ns=int(first.end_ns[-1]))
    seen = observe_grids([first, replace(second, number=second.number + 20)])
    rows = np.full((N, RANKS), REQUESTS)
    rows[20:, 3] = 64
    return announce(seen, rows)


def judge(seen: Observations) -> Padding:
    found = judge_padding(seen)
    assert isinstance(found, Padding)
    return found


def followed(found: Padding) -> set[tuple[str, str]]:
    return {(course.part.name, course.part.component) for family in found.families for course in family.follows}


def test_work_that_grows_more_than_all_rows_together_follows_the_busiest_rank() -> None:
    found = judge(steps_with(1.5, np.where(BUSY, 2.0, 1.0)))
    assert followed(found) == {("expert", "expert")}
    (course,) = found.families[0].follows
    time = course.at(np.array([16.0, 32.0])).sum(axis=1)
    assert time[1] / time[0] == pytest.approx(1.5, abs=0.02)


@pytest.mark.parametrize("growth", [1.1, 1.0, 0.7])
def test_work_that_grows_with_all_rows_together_or_shrinks_is_not_padded(growth: float) -> None:
    assert followed(judge(steps_with(growth, np.where(BUSY, 2.0, 1.0)))) == set()


def test_each_part_is_judged_by_itself() -> None:
    """Experts that read their weights whatever comes do not hide what grows beside them."""
    assert ("after", "other") in followed(judge(steps_with(1.5, np.where(BUSY, 2.0, 1.0), part="other")))


@pytest.mark.parametrize("few", [np.full(N, 2.0), np.where(np.arange(N) >= N - 3, 2.0, 1.0)])
def test_rows_that_stay_the_same_show_nothing_and_what_may_follow_them_is_kept(few: Array) -> None:
    seen = steps_with(1.5, few)
    found = judge(seen)
    assert "about as many rows in all steps" in found.reason(seen, ALL)
    assert list(found.shrink(seen, ALL, np.full(N, 4.0))) == []
    at_most = dict(found.shrink(seen, ALL, np.full(N, 4.0), at_most=True))
    assert sorted(at_most) == ["other", "probe", "transfer"]
    assert at_most["transfer"][0].min() == pytest.approx(4.0 / float(np.median(few)) / REQUESTS)


def test_rows_that_nobody_annotated_show_nothing() -> None:
    assert "not annotated" in str(judge_padding(observe_steps(N)))
    unknown = annotate(observe_steps(N), requests=[REQUESTS] * RANKS)
    assert "not annotated" in str(judge_padding(unknown))


def test_a_rank_that_announces_nothing_and_does_nothing_has_no_rows() -> None:
    seen = observe_steps(N, factor={"attention": np.where(np.arange(RANKS) == 5, 0.02, 1.0)[None, None, :]})
    seen = annotate(seen, requests=[REQUESTS] * RANKS, prefill_tokens=[0.0] * RANKS)
    seen.batches[5].requests[:] = np.nan
    assert judge(seen).rows[:, 5].tolist() == [0.0] * N


def test_prompt_tokens_are_rows() -> None:
    seen = steps_with(1.5, np.ones(N))
    seen.batches[3].prefill_tokens[BUSY] = 16.0
    assert followed(judge(seen)) == {("expert", "expert")}


def test_graphs_of_two_sizes_show_what_each_size_costs_before_and_after_the_gather() -> None:
    seen = graphs_of({"probe": 2.0, "other": 1.5}, transfer=1.6)
    found = judge(seen)
    parts = {(place, name) for place in ("before", "after") for name in ("probe", "other")}
    assert followed(found) == {*parts, ("transfer", "transfer")}
    steps = np.arange(N) >= 20
    factors = dict(found.shrink(seen, steps, np.full(N, 16.0)))
    assert factors["probe"][1] == pytest.approx(0.5, abs=0.03)
    assert factors["transfer"][1] == pytest.approx(1 / 1.6, abs=0.01)
    assert (factors["probe"][0] == 1.0).all()


def test_steps_launched_kernel_by_kernel_are_not_padded_before_the_gather() -> None:
    found = judge(graphs_of({"probe": 2.0}, kind="decode"))
    assert followed(found) == {("after", "probe")}


def test_attention_follows_the_ranks_own_requests() -> None:
    assert followed(judge(graphs_of({"attention": 2.0}))) == set()


def test_what_is_launched_for_just_the_rows_of_all_is_not_padded() -> None:
    seen = steps_with(1.0, np.full(N, 2.0))
    held, padded = np.array([9 * 16]), np.array([8 * 32])
    assert judge(replace(seen, row_blocks=held)).reason(seen, ALL) == ""
    assert judge(replace(seen, row_blocks=padded)).reason(seen, ALL)
    assert judge(replace(seen, row_blocks=np.sort(np.append(held, padded)))).reason(seen, ALL)


def test_rows_spread_evenly_leave_the_others_as_unlike_as_they_are() -> None:
    rows = np.array([[16.0, 16.0, 16.0, 32.0], [10.0, 16.0, 10.0, 32.0], [0.0, 0.0, 0.0, 30.0]])
    marks = np.broadcast_to(np.arange(4) == 3, rows.shape)
    assert even_rows(rows, marks).tolist() == [20.0, 23.0, 8.0]


def course(rows: list[float], times: list[float]) -> Course:
    return Course(Part("after", "probe", np.ones(1, bool)), np.array(rows), np.array(times)[:, None])


def test_time_lies_between_that_of_the_next_sizes_and_below_them_on_the_line() -> None:
    found = course([16, 32, 64], [100, 120, 200])
    assert found.at(np.array([16.0, 24.0, 48.0, 64.0, 99.0]))[:, 0].tolist() == [100, 110, 160, 200, 200]
    assert found.at(np.array([7.0]))[0, 0] == pytest.approx(100 - 9 * 100 / 48)
    assert found.at(np.array([8.0]), in_full=True)[0, 0] == 50
    assert course([16], [100]).at(np.array([8.0, 99.0]))[:, 0].tolist() == [100, 100]


@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=6, unique=True).map(sorted),
    st.lists(st.integers(0, 10**6), min_size=6, max_size=6).map(sorted),
    st.integers(1, 600),
    st.integers(1, 600),
)
def test_fewer_rows_never_take_longer_nor_less_than_their_share(
    rows: list[int], times: list[int], one: int, other: int
) -> None:
    found = course([float(row) for row in rows], [float(time) for time in times[: len(rows)]])
    few, many = sorted((float(one), float(other)))
    time = found.at(np.array([few, many]))[:, 0]
    full = found.at(np.array([few, many]), in_full=True)[:, 0]
    assert time[0] <= time[1] + 1e-6
    assert (full <= time + 1e-6).all()
    assert (full >= found.time_ns[0, 0] * np.minimum(np.array([few, many]) / rows[0], 1.0) - 1e-6).all()
