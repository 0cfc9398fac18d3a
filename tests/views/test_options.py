"""Options as a figure and tables: every gain with its interval, and what is not told is not drawn."""

from __future__ import annotations

import pytest

from dprankdiag.views.options import COLUMNS, describe_gain, list_served, make_gains_panel
from tests.dashboard.whatifs import make_whatif, option
from tests.views.results import HOSTILE


def test_each_option_is_drawn_by_what_its_interval_says() -> None:
    panel = make_gains_panel(make_whatif())
    assert panel.figure is not None
    drawn = {trace.name: trace for trace in panel.figure.data}
    assert list(drawn["saves time"].y) == ["policy.total_tokens"]
    assert list(drawn["may be nothing"].y) == ["policy.total_requests", "load.even"]
    better = drawn["saves time"]
    assert better.x[0] + better.error_x.array[0] == pytest.approx(30)
    assert better.x[0] - better.error_x.arrayminus[0] == pytest.approx(20)
    # Of what only bounds are known no number is marked.
    assert drawn["may be nothing"].x[1] == pytest.approx(20)
    assert drawn["may be nothing"].marker.size[1] == 0
    assert "Not drawn, because no gain could be told: layout.other." in panel.says


def test_a_bound_is_not_drawn_as_a_gain() -> None:
    bound = option("load.even", gain_ratio=make_whatif().options[0].gain_ratio, basis="bound")
    panel = make_gains_panel(make_whatif(options=(bound,)))
    assert panel.figure is not None
    assert [trace.name for trace in panel.figure.data] == ["saves at most so much"]
    assert "nothing of their kind can save more" in panel.says
    assert describe_gain(bound) == "at most 26 % (20 % to 30 %)"


def test_the_table_holds_every_option_with_what_is_told_of_it() -> None:
    panel = make_gains_panel(make_whatif())
    assert [row[0] for row in panel.rows] == [one.key for one in make_whatif().options]
    assert [row[2] for row in panel.rows] == [
        "26 % (20 % to 30 %)",
        "1.0 % (-2.0 % to 4.0 %)",
        "between 0.0 % to 40 %",
        "not told",
        "in use",
    ]


def test_without_any_gain_the_headline_says_why() -> None:
    panel = make_gains_panel(make_whatif(options=(), headline="Cannot tell: no requests"))
    assert panel.figure is None
    assert panel.missing == "No gain could be told: Cannot tell: no requests."


def test_what_is_served_is_told_with_its_interval_and_absent_is_a_dash() -> None:
    rows = {str(row[0]): dict(zip(COLUMNS, row, strict=True)) for row in list_served(make_whatif())}
    assert list(rows)[:2] == ["as measured", "as it is, served again"]
    best = rows["policy.total_tokens"]
    assert best["imbalance"] == ("1.20", "90 % interval: 1.10 to 1.30")
    assert best["step p50"] == ("7.50 ms", "90 % interval: 7.40 ms to 7.60 ms")
    assert best["tokens/s"] == "15,750"
    assert best["step p99"] == "-"
    assert rows["as measured"]["TPOT p50"] == "11.5 ms"


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_options_are_no_markup(name: str) -> None:
    gain = make_whatif().options[0].gain_ratio
    panel = make_gains_panel(make_whatif(options=(option(name, title=name, gain_ratio=gain),)))
    assert panel.figure is not None
    (trace,) = panel.figure.data
    assert "<" not in trace.y[0] + trace.customdata[0]
