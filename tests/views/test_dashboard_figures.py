"""Figures that only the dashboard draws, as data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dprankdiag.model.ledger_results import LEDGER_HISTORY
from dprankdiag.model.results import COMPONENTS
from dprankdiag.model.schema import Columns, take_rows
from dprankdiag.views.figures.around import PARTS, choose_around, draw_around
from dprankdiag.views.figures.imbalance import MAX_POINTS, Imbalance, draw_imbalance, measure_history, measure_steps
from dprankdiag.views.figures.moments import draw_moments
from dprankdiag.views.figures.timeline import MAX_BARS
from tests.views.results import make_tables


def make_history(n_ranks: int = 4, n_moments: int = 5, **told: Any) -> Columns:
    n = n_ranks * n_moments
    columns: dict[str, Any] = {
        "engine": np.array(["default"] * n, object),
        "rank": np.tile(np.arange(n_ranks, dtype=np.int32), n_moments),
        "at_ns": np.repeat(np.arange(n_moments, dtype=np.int64) * 10**9, n_ranks),
        "border_wait_ns": np.full(n, 2e6),
        "step_time_ns": np.full(n, 4e7),
        "attention_pairs": np.full(n, 100.0),
        "held_tokens": np.full(n, np.nan),
        "running_requests": np.full(n, 3.0),
    }
    return LEDGER_HISTORY.check(columns | told)


def test_where_one_rank_has_more_attention_the_load_explains_the_wait() -> None:
    tables = make_tables()
    points = measure_steps(tables["rank_steps"], tables["steps"])
    assert len(points.place) == 40
    assert points.is_share
    assert points.count() == {"even": 0, "load": 40, "other": 0, "harmless": 0}
    np.testing.assert_allclose(points.load, points.wait, atol=0.05)


def test_where_waits_come_from_elsewhere_the_load_does_not_explain_them() -> None:
    tables = make_tables()
    rows = {**tables["rank_steps"], "attention_ns": np.full(len(tables["rank_steps"]["rank"]), 10**6)}
    points = measure_steps(rows, tables["steps"])
    assert points.load.max() == 0
    assert points.count()["other"] == 40


def test_live_load_is_the_largest_over_the_mean_at_each_moment() -> None:
    pairs = np.tile([100.0, 100.0, 100.0, 500.0], 5)
    points = measure_history(make_history(attention_pairs=pairs))
    np.testing.assert_allclose(points.load, 2.5)
    np.testing.assert_allclose(points.wait, 0.05)
    assert points.measured == "query-key pairs over the window"
    assert points.count()["load"] == 5


def test_where_only_late_hosts_can_be_seen_uneven_load_is_not_called_harmless() -> None:
    pairs = np.tile([100.0, 100.0, 100.0, 500.0], 5)
    points = measure_history(make_history(attention_pairs=pairs, border_wait_ns=np.full(20, 1e5)))
    assert points.count()["harmless"] == 5
    names = [annotation.text for annotation in draw_imbalance(points).layout.annotations]
    assert "<i>uneven load, its cost not seen here</i>" in names
    assert not [name for name in names if "without waiting" in name]


def test_live_load_falls_back_to_what_is_told() -> None:
    absent = np.full(20, np.nan)
    points = measure_history(make_history(attention_pairs=absent))
    assert points.measured == "requests in the running batch"


def test_a_moment_without_its_wait_or_load_is_no_point() -> None:
    waits = np.full(20, 2e6)
    waits[:4] = np.nan
    pairs = np.full(20, 100.0)
    pairs[4:8] = 0.0
    points = measure_history(make_history(border_wait_ns=waits, attention_pairs=pairs))
    assert points.place.tolist() == [2 * 10**9, 3 * 10**9, 4 * 10**9]


def test_nothing_told_is_no_points_and_still_a_figure() -> None:
    absent = np.full(20, np.nan)
    points = measure_history(make_history(border_wait_ns=absent))
    assert len(points.place) == 0
    assert draw_imbalance(points).data[0].x.size == 0


@pytest.mark.parametrize("is_share", [True, False])
def test_the_quadrants_of_the_scatter_have_their_names(is_share: bool) -> None:
    n = 5 * MAX_POINTS
    points = Imbalance(np.arange(n), np.linspace(0, 3, n), np.linspace(0, 1, n), is_share, "attention")
    figure = draw_imbalance(points)
    assert len(figure.data[0].x) == MAX_POINTS
    assert len(figure.layout.annotations) == 4
    assert "%" in figure.layout.yaxis.title.text


def test_steps_around_one_add_up_to_their_length() -> None:
    tables = make_tables()
    around = choose_around(tables["rank_steps"], tables["steps"], 10, {3})
    assert sorted(set(around.rows["step"].tolist())) == list(range(7, 14))
    figure = draw_around(around, {3})
    drawn = sum(float(np.sum(trace.x)) for trace in figure.data)
    told = sum(float(around.rows[f"{part}_ns"].sum()) for part in PARTS)
    unit = 1e6 if "(ms)" in figure.layout.xaxis.title.text else 1e3
    assert drawn * unit == pytest.approx(told)


def test_parts_of_a_step_follow_each_other_without_a_gap() -> None:
    tables = make_tables()
    figure = draw_around(choose_around(tables["rank_steps"], tables["steps"], 0, ()), ())
    for earlier, later in zip(figure.data, figure.data[1:], strict=False):
        np.testing.assert_allclose(earlier.base.astype(float) + earlier.x, later.base.astype(float))


def test_of_very_many_ranks_the_named_are_drawn_and_no_more_bars_than_there_is_room_for() -> None:
    n_ranks = 500
    rows: dict[str, Any] = {name: np.full(n_ranks, 1000) for name in (*(f"{part}_ns" for part in PARTS), "exit_ns")}
    rows |= {"rank": np.arange(n_ranks), "step": np.zeros(n_ranks, np.int64)}
    steps = {"step": np.array([0]), "start_ns": np.array([0]), "end_ns": np.array([9000])}
    around = choose_around(rows, steps, 0, {499})
    assert 499 in around.ranks
    assert len(around.rows["rank"]) * len(PARTS) <= MAX_BARS


def test_every_component_of_a_step_has_a_look() -> None:
    assert set(COMPONENTS) < set(PARTS)


def test_moments_are_drawn_by_rank_and_time() -> None:
    history = make_history(border_wait_ns=np.arange(20) * 1e6)
    figure = draw_moments(history, {2})
    assert figure.data[0].z.shape == (4, 5)
    assert figure.data[0].x[0] == "1970-01-01T00:00:00.000"
    assert "(ms)" in figure.data[0].colorbar.title.text
    assert "<b>2</b>" in figure.layout.yaxis.ticktext


def test_a_rank_that_came_later_leaves_its_past_open() -> None:
    history = make_history()
    history = take_rows(history, (history["rank"] != 3) | (history["at_ns"] > 2 * 10**9))
    figure = draw_moments(history, ())
    assert np.isnan(figure.data[0].z[3, :3]).all()
