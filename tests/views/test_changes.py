"""What changed between two recordings as figures: they hold the numbers of the comparison and close."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dprankdiag.model.comparison import AccountRow, Change
from dprankdiag.views.changes import make_account_panels, make_change_panels
from dprankdiag.views.figures.account import draw_account
from dprankdiag.views.figures.intervals import Bar, draw_intervals
from tests import builders
from tests.views.results import HOSTILE


def test_times_are_drawn_with_their_intervals_and_verdicts() -> None:
    comparison = builders.comparison()
    panel = next(make_change_panels(comparison))
    assert panel.figure is not None
    names = [name for trace in panel.figure.data for name in trace.y]
    assert set(names) == {"mean step", "transfers", "load.context, rank 3: gone"}
    (better,) = [trace for trace in panel.figure.data if trace.name == "better"]
    step = comparison.engines[0].step_ns
    assert step.difference is not None
    assert step.interval is not None
    row = list(better.y).index("mean step")
    assert better.x[row] == pytest.approx(step.difference / 1e6)
    assert better.x[row] + better.error_x.array[row] == pytest.approx(step.interval[1] / 1e6)
    assert better.x[row] - better.error_x.arrayminus[row] == pytest.approx(step.interval[0] / 1e6)
    assert {name for name, *_ in panel.rows} == set(names)


def test_where_times_are_not_judged_shares_are_drawn_and_it_is_said() -> None:
    comparison = builders.comparison()
    (engine,), (cause,) = comparison.engines, comparison.causes
    untested = replace(engine.step_ns, direction=None, chance=None)
    share = Change(0.21, 0.0, -0.21, (-0.22, -0.2), 0.001, "better")
    unlike = replace(
        comparison,
        engines=(replace(engine, step_ns=untested, transfer_ns=untested),),
        causes=(replace(cause, lost_ns=untested, lost_ratio=share),),
    )
    times, shares = make_change_panels(unlike)
    assert "not judged" in times.says
    assert [trace.name for trace in times.figure.data] == ["no significant change, or not judged"]
    assert shares.figure.data[0].x[0] == pytest.approx(-21)
    assert shares.rows[0][-1] == "better"


def test_what_cannot_be_compared_has_its_reason_instead_of_a_figure() -> None:
    (panel,) = make_change_panels(builders.incomparable())
    assert panel.figure is None
    assert panel.missing == "No times can be compared: 8 ranks before, 4 after."
    assert list(make_account_panels(builders.incomparable())) == []


def test_the_parts_of_the_mean_step_add_up_to_it_on_both_sides() -> None:
    comparison = builders.comparison()
    (panel,) = make_account_panels(comparison)
    assert panel.figure is not None
    step = comparison.engines[0].step_ns
    assert sum(trace.x[0] for trace in panel.figure.data) == pytest.approx((step.before or 0) / 1e6)
    assert sum(trace.x[1] for trace in panel.figure.data) == pytest.approx((step.after or 0) / 1e6)
    assert [row[0] for row in panel.rows] == ["load.context", "unexplained", "even ranks", "step"]


def test_many_causes_all_look_different() -> None:
    rows = [AccountRow(f"cause {number}", 10, 10) for number in range(16)]
    figure = draw_account([*rows, AccountRow("unexplained", 5, -5), AccountRow("even ranks", 900, 900)])
    looks = {(trace.marker.color, trace.marker.pattern.shape) for trace in figure.data}
    assert len(looks) == len(figure.data) == 18


def test_an_interval_that_is_not_known_is_not_drawn_and_nothing_is_in_sight() -> None:
    bars = [Bar("one", -5.0, None, None, "better", ""), Bar("two", -3.0, -4.0, -2.0, "neither", "")]
    figure = draw_intervals(bars, "ms", {"better": "better", "neither": "neither"})
    assert list(figure.data[0].error_x.array) == list(figure.data[0].error_x.arrayminus) == [0.0]
    low, high = figure.layout.xaxis.range
    assert low < -5 < 0 < high


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_no_markup_in_figures(name: str) -> None:
    bars = [Bar(name, 1.0, 0.5, 2.0, "worse", name)]
    figure = draw_intervals(bars, "ms", {"worse": "worse"})
    account = draw_account([AccountRow(name, 1, 1), AccountRow("unexplained", 0, 0), AccountRow("even ranks", 9, 9)])
    told = [*figure.data[0].y, *figure.data[0].customdata, *(trace.name for trace in account.data)]
    assert not [text for text in told if "<" in text]
