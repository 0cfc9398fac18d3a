"""Who gates whom as figures and tables: they say the same as the bundle, and where it lacks them why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dprankdiag.model.blame import Link
from dprankdiag.model.schema import Columns
from dprankdiag.views.blame import (
    describe_chain,
    describe_link,
    list_stretches,
    make_blame_steps_panel,
    make_chain_panel,
    make_pairs_panel,
)
from dprankdiag.views.figures.blame import MOST_LINKS, draw_chain
from dprankdiag.views.panels import Group
from tests import builders
from tests.views.results import HOSTILE, N_RANKS, make_tables

GROUP = Group(0, "", frozenset({3}))
LINKS = (
    Link(3, 0, False, 1_000, 5_000, 3_000, 2_000, 0),
    Link(2, 0, True, 5_000, 6_000),
    Link(2, 1, False, 6_000, 8_000, 2_000, 500, 400),
    Link(2, 1, True, 8_000, 8_500),
)


def make_step_length(tables: dict[str, Columns]) -> tuple[int, int]:
    steps = tables["steps"]
    return len(steps["step"]), int((steps["end_ns"] - steps["start_ns"]).sum())


def test_the_matrix_holds_what_each_rank_waits_a_step() -> None:
    tables = make_tables()
    panel = make_pairs_panel(builders.diagnosis(), tables, GROUP)
    assert panel.figure is not None
    (trace,) = panel.figure.data
    n_steps, _ = make_step_length(tables)
    unit = 1e6 if "(ms)" in trace.colorbar.title.text else 1e3
    waits = np.bincount(tables["rank_steps"]["rank"], tables["rank_steps"]["wait_ns"]) / n_steps / unit
    np.testing.assert_allclose(np.asarray(trace.z).sum(axis=1), waits, rtol=1e-5)
    culprit = list(trace.x).index("3")
    assert np.asarray(trace.z).sum(axis=0).argmax() == culprit
    assert panel.rows[0][0] == "3"
    assert len(panel.rows) == N_RANKS


def test_a_rank_that_passes_its_lateness_on_is_told_from_one_that_is_to_blame() -> None:
    columns: dict[str, Any] = {
        "group": np.zeros(2, np.int16),
        "rank": np.array([0, 0], np.int32),
        "blamed": np.array([2, 3], np.int32),
        "last_ns": np.array([40_000_000, 0]),
        "caused_ns": np.array([0, 40_000_000]),
    }
    panel = make_pairs_panel(builders.diagnosis(), {**make_tables(), "blame": columns}, GROUP)
    cells = {row[0]: row[1:] for row in panel.rows}
    a_step = "0.14 ms"  # 40 ms for one of seven others, in 40 steps
    assert cells["3"][0] == cells["2"][2] == cells["2"][3] == a_step
    assert (cells["2"][0], cells["3"][3]) == ("0 s", f"-{a_step}")


def test_where_no_finding_names_a_rank_the_matrix_accuses_nobody() -> None:
    panel = make_pairs_panel(builders.even_diagnosis(), make_tables(), Group(0, "", frozenset()))
    assert "No finding names a rank of this group" in panel.says


def test_ranks_that_were_not_recorded_are_said_to_be_possible_culprits() -> None:
    tables = make_tables()
    groups: dict[str, Any] = {
        "group": np.zeros(1, np.int16),
        "engine": np.array(["default"], object),
        "ranks": np.array([8], np.int16),
        "missing": np.array([2], np.int16),
        "team": np.array([1], np.int16),
        "basis": np.array(["sampling"], object),
        "has_kernels": np.array([True]),
        "trusted": np.array([True]),
    }
    unknown = {**tables["blame"], "blamed": np.where(tables["blame"]["blamed"] == 3, -1, tables["blame"]["blamed"])}
    panel = make_pairs_panel(builders.diagnosis(), {**tables, "groups": groups, "blame": unknown}, GROUP)
    assert "2 ranks of the deployment were not recorded" in panel.says
    assert "it is not known, or not told apart, because of whom" in panel.says


@pytest.mark.parametrize("make", [make_pairs_panel, make_blame_steps_panel])
def test_a_bundle_of_an_older_version_says_so(make: Any) -> None:
    older = {name: rows for name, rows in make_tables().items() if not name.startswith("blame")}
    panel = make(builders.diagnosis(), older, GROUP)
    assert panel.figure is None
    assert "an older version made it" in panel.missing


@pytest.mark.parametrize("make, name", [(make_pairs_panel, "blame"), (make_blame_steps_panel, "blame_steps")])
def test_where_nobody_waits_nobody_is_blamed(make: Any, name: str) -> None:
    tables = make_tables()
    empty = {column: values[:0] for column, values in tables[name].items()}
    assert "No rank of this group waits" in make(builders.diagnosis(), {**tables, name: empty}, GROUP).missing


def test_blame_over_the_steps_is_the_mean_wait_of_the_others() -> None:
    tables = make_tables()
    panel = make_blame_steps_panel(builders.diagnosis(), tables, GROUP)
    assert panel.figure is not None
    (trace,) = panel.figure.data
    unit = 1e6 if "(ms)" in trace.colorbar.title.text else 1e3
    total = np.asarray(trace.z).sum() * unit * (N_RANKS - 1)
    assert total == pytest.approx(float(tables["blame_steps"]["caused_ns"].sum()), rel=1e-4)
    assert panel.rows[0][0] == "3"
    assert panel.rows[0][-1] == "100 %"


def test_a_chain_is_drawn_without_a_gap_and_marks_who_was_released_late() -> None:
    panel = make_chain_panel(LINKS, {0: "all_gather, layer 0"}, GROUP, 7)
    assert panel.figure is not None
    bars = [trace for trace in panel.figure.data if trace.type == "bar"]
    assert sum(float(np.sum(trace.x)) for trace in bars) * 1e3 == pytest.approx(7_500)
    (late,) = [trace for trace in panel.figure.data if trace.type == "scatter"]
    assert (list(late.y), [at * 1e3 for at in late.x]) == (["2"], [pytest.approx(5_000)])
    assert "A diamond marks" in panel.says
    assert [row[0] for row in panel.rows] == ["2", "3"]
    assert panel.rows[1][2] == "all_gather, layer 0"


def test_a_chain_in_words_says_where_the_time_goes_and_what_is_inherited() -> None:
    text = describe_chain(LINKS)
    assert "over rank 3 for 4.00 µs, 53 % of the step" in text
    assert "came 2.50 µs behind the others in all, 0.40 µs of that inherited." in text
    assert describe_link(LINKS[2], {}) == "on its way to meeting 1, 0.50 µs behind the others, 0.40 µs of it inherited"
    unknown = Link(None, 2, False, 0, 10)
    assert describe_link(unknown, {}) == "before meeting 2: who was waited for is not known"
    assert draw_chain([unknown], ["x"], ()).data[1].y == ("not known",)
    assert [len(stretch) for stretch in list_stretches(LINKS)] == [1, 3]


def test_of_a_very_long_chain_the_longest_links_are_drawn() -> None:
    links = [Link(k % 8, k, False, 100 * k, 100 * (k + 1), 50) for k in range(2 * MOST_LINKS)]
    figure = draw_chain(links, ["meeting"] * len(links), ())
    assert len(figure.data[0].x) == MOST_LINKS


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_meetings_are_no_markup(name: str) -> None:
    panel = make_chain_panel(LINKS, {0: name, 1: name}, GROUP, 7)
    assert panel.figure is not None
    told = [str(text) for trace in panel.figure.data for text in trace.customdata]
    assert not [text for text in told if "<" in text]
