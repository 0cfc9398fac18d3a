"""Figures show the numbers of their tables, all of them and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprankdiag.model.schema import Columns, take_rows
from dprankdiag.views.figures.arrivals import MAX_BOXES, draw_arrivals
from dprankdiag.views.figures.base import (
    FEWER_LABELS,
    MAX_COLUMNS,
    choose_labels,
    choose_unit,
    columns_for,
    escape_label,
    rank_axis,
)
from dprankdiag.views.figures.layers import draw_layers, measure_excess
from dprankdiag.views.figures.lost import draw_lost
from dprankdiag.views.figures.ranks import draw_ranks
from dprankdiag.views.figures.timeline import MAX_BARS, STATES, draw_step, list_spans
from dprankdiag.views.figures.waits import bin_waits, draw_waits, grid_waits
from tests import builders
from tests.views.results import make_tables

UNITS_NS = {"s": 1e9, "ms": 1e6, "µs": 1e3}


def _unit_of(title: str) -> float:
    return UNITS_NS[title.rsplit("(", 1)[1].rstrip(")")]


def _rank_steps(waits: np.ndarray[Any, Any]) -> Columns:
    """Make rows of waits `(n_ranks, n_steps)`."""
    ranks, steps = waits.shape
    return {
        "rank": np.repeat(np.arange(ranks, dtype=np.int32), steps),
        "step": np.tile(np.arange(steps, dtype=np.int32), ranks),
        "wait_ns": waits.ravel(),
    }


def test_the_waterfall_closes_and_jitter_stands_beside_it() -> None:
    lost = builders.lost()
    waterfall, jitter = draw_lost(lost).data
    size = _unit_of(draw_lost(lost).layout.yaxis.title.text)
    assert list(waterfall.x) == ["load.context", "unexplained", "total"]
    assert list(waterfall.measure) == ["relative", "relative", "total"]
    assert sum(waterfall.y[:-1]) == pytest.approx(waterfall.y[-1])
    assert waterfall.y[-1] * size == pytest.approx(lost.total_ns)
    assert (list(jitter.x), jitter.y[0] * size) == (["jitter"], pytest.approx(lost.jitter_ns))


def test_of_very_many_ranks_the_named_ones_keep_their_label() -> None:
    axis = rank_axis(range(128), {17, 18, 90})
    assert "<b>17</b>" in axis["ticktext"]
    assert "<b>90</b>" in axis["ticktext"]
    assert len(axis["tickvals"]) <= FEWER_LABELS
    assert min(np.diff([int(rank) for rank in axis["tickvals"]])) >= 128 // FEWER_LABELS
    assert choose_labels([False] * 64) == list(range(64))
    assert len(choose_labels([True] * 512)) <= FEWER_LABELS


def test_unknown_jitter_is_not_drawn_as_none() -> None:
    assert len(draw_lost(builders.lost(jitter_ns=None)).data) == 1


def test_every_wait_has_its_cell() -> None:
    waits = np.random.default_rng(0).integers(0, 300_000, (5, 12))
    grid = grid_waits(_rank_steps(waits))
    np.testing.assert_array_equal(grid.wait_ns, waits)
    figure = draw_waits(grid, {3})
    size = _unit_of(figure.data[0].colorbar.title.text)
    np.testing.assert_allclose(np.asarray(figure.data[0].z) * size, waits, rtol=1e-6)
    assert figure.layout.yaxis.ticktext[3] == "<b>3</b>"


def test_too_many_steps_share_columns_and_keep_their_sum() -> None:
    waits = np.random.default_rng(1).integers(0, 300_000, (3, 5003))
    grid = bin_waits(grid_waits(_rank_steps(waits)), MAX_COLUMNS)
    assert grid.steps_each == 3
    assert grid.wait_ns.shape == (3, 1668)
    counts = np.diff(np.append(grid.first_step, 5003))
    np.testing.assert_allclose((grid.wait_ns * counts).sum(axis=1), waits.sum(axis=1))
    assert "first of 3 steps" in draw_waits(grid, ()).layout.xaxis.title.text


@given(n_steps=st.integers(1, 400), most=st.integers(1, 100))
def test_there_are_never_more_columns_than_allowed(n_steps: int, most: int) -> None:
    grid = bin_waits(grid_waits(_rank_steps(np.ones((2, n_steps), np.int64))), most)
    assert grid.wait_ns.shape[1] <= most
    np.testing.assert_allclose(grid.wait_ns, 1.0)


@pytest.mark.parametrize("n_ranks, columns", [(1, 2000), (64, 2000), (256, 781), (1024, 195), (100_000, 100)])
def test_many_ranks_get_fewer_columns(n_ranks: int, columns: int) -> None:
    assert columns_for(n_ranks) == columns


def test_small_waits_do_not_fill_the_scale_of_long_steps() -> None:
    grid = grid_waits(_rank_steps(np.full((4, 10), 2_000)))
    assert draw_waits(grid, (), 1_000_000).data[0].zmax == pytest.approx(50)
    assert draw_waits(grid, (), 1_000).data[0].zmax == pytest.approx(2)


def test_tracks_stay_in_order_whatever_is_drawn_first() -> None:
    meetings = make_tables()["worst_meetings"]
    idle = {**meetings, "work_ns": np.where(meetings["rank"] == 0, 0, meetings["work_ns"])}
    assert list(draw_step(idle, {}, ()).layout.yaxis.categoryarray) == [str(rank) for rank in range(8)]


def test_boxes_are_the_quantiles_of_the_table() -> None:
    arrivals = make_tables()["arrivals"]
    figure = draw_arrivals(arrivals)
    size = _unit_of(figure.layout.yaxis.title.text)
    np.testing.assert_allclose(np.asarray(figure.data[0].median) * size, arrivals["lag_p50_ns"])
    np.testing.assert_allclose(np.asarray(figure.data[0].upperfence) * size, arrivals["lag_p95_ns"])


def test_of_many_ranks_the_latest_are_drawn() -> None:
    n = MAX_BOXES + 40
    arrivals: Columns = {name: np.arange(n) for name in make_tables()["arrivals"]}
    drawn = [int(rank) for rank in draw_arrivals(arrivals).data[0].x]
    assert drawn == list(range(40, n))


def test_the_late_rank_stands_out_before_the_gather_only() -> None:
    tables = make_tables()
    sides = dict(zip(tables["positions"]["position"].tolist(), tables["positions"]["side"].tolist(), strict=True))
    excess = measure_excess(tables["layers"], sides)
    assert list(excess.excess_ns) == ["pre", "post"]
    assert set(excess.excess_ns["pre"].argmax(axis=0).tolist()) == {3}
    assert excess.excess_ns["pre"][3].min() > 5 * np.abs(excess.excess_ns["post"]).max()
    for values in excess.excess_ns.values():
        np.testing.assert_allclose(np.median(values, axis=0), 0.0)
    figure = draw_layers(excess, {3})
    assert [np.asarray(trace.z).shape for trace in figure.data] == [(8, 3), (8, 3)]
    assert figure.layout.coloraxis.cmin == -figure.layout.coloraxis.cmax


def test_without_sides_layers_are_drawn_whole() -> None:
    excess = measure_excess(make_tables()["layers"], {})
    assert list(excess.excess_ns) == ["both"]
    assert len(draw_layers(excess, ()).data) == 1


def test_bars_of_the_worst_step_add_up_to_its_times() -> None:
    meetings = make_tables()["worst_meetings"]
    figure = draw_step(meetings, {}, {3})
    size = _unit_of(figure.layout.xaxis.title.text)
    drawn = {trace.name: float(np.sum(trace.x)) * size for trace in figure.data}
    assert drawn["waiting for the last"] == pytest.approx(meetings["wait_ns"].sum())
    assert sum(drawn.values()) == pytest.approx((meetings["end_ns"] - meetings["start_ns"]).sum())
    assert all(trace.type == "bar" for trace in figure.data)


def test_bars_tell_their_meeting_and_who_came_last() -> None:
    tables = make_tables()
    figure = draw_step(tables["worst_meetings"], {0: "all_gather, layer 0"}, ())
    waits = figure.data[STATES.index("wait")]
    assert any("all_gather, layer 0<br>last to come: rank 3" in text for text, _ in waits.customdata)


def test_a_long_step_becomes_a_picture_of_the_same_shares() -> None:
    meetings = make_tables(6, 16, 40)["worst_meetings"]
    spans = list_spans(meetings)
    assert len(spans["row"]) > MAX_BARS
    picture = draw_step(meetings, {}, ()).data[0]
    assert picture.type == "heatmap"
    state = np.asarray(picture.z)
    assert state.shape == (16, 2000)
    length = spans["end_ns"] - spans["start_ns"]
    total = meetings["end_ns"].max() - meetings["start_ns"].min()
    for code in range(len(STATES)):
        for track in range(16):
            mine = (spans["state"] == code) & (meetings["rank"][spans["row"]] == track)
            share = length[mine].sum() / total
            assert (state[track] == code).mean() == pytest.approx(share, abs=0.02)


def test_spans_of_no_length_are_left_out() -> None:
    meetings = make_tables()["worst_meetings"]
    spans = list_spans(meetings)
    assert (spans["end_ns"] > spans["start_ns"]).all()
    last = take_rows(meetings, meetings["wait_ns"] == 0)
    waits = take_rows(spans, spans["state"] == STATES.index("wait"))
    assert len(waits["row"]) == len(meetings["rank"]) - len(last["rank"])


def test_rank_bars_are_the_diagnosis_times() -> None:
    ranks = builders.diagnosis().ranks
    figure = draw_ranks(ranks)
    size = _unit_of(figure.layout.yaxis.title.text)
    by_name = {trace.name: [value * size for value in trace.y] for trace in figure.data}
    assert by_name["wait"] == pytest.approx([rank.wait_ns for rank in ranks])
    assert by_name["work"] == pytest.approx([rank.work_ns for rank in ranks])


def test_ranks_of_several_engines_keep_their_engines_name() -> None:
    ranks = (builders.rank(0), builders.rank(0, engine="<b>x</b>"))
    assert list(draw_ranks(ranks).data[0].x) == ["default 0", "&lt;b&gt;x&lt;/b&gt; 0"]


@given(st.text())
@settings(max_examples=50)
def test_no_label_holds_a_tag(text: str) -> None:
    assert "<" not in escape_label(text)
    assert ">" not in escape_label(text)


@pytest.mark.parametrize(
    "value_ns, name", [(0, "µs"), (5, "µs"), (900_000, "µs"), (2e6, "ms"), (3e9, "s"), (-2e6, "ms")]
)
def test_units_leave_a_digit_before_the_point(value_ns: float, name: str) -> None:
    assert choose_unit(value_ns)[1] == name
