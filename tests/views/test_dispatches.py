"""Rows and figures of what ledgers believed: columns that a run needs, and lines that stop where nothing is known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from dprankdiag.model.dispatches import (
    KIND,
    SCHEMA_VERSION,
    Belief,
    Dispatch,
    LedgerRecord,
    LedgerRun,
    LedgerTotals,
    Line,
    RankLoad,
    Track,
)
from dprankdiag.views.dispatches import choose_dispatches, list_cells, list_columns, render_text, tell_worst
from dprankdiag.views.figures.dispatches import draw_tracks

S = 1_000_000_000
ROUTER = Belief(1, "policy", 7, 30_000, 34_000_000, -2, -8_000, 0, 1.0)
GATEWAY = Belief(3, "policy", None, 16_575, 2 * S, None, -141_897, 2, 140_000.0)
LOAD = RankLoad(7, 1, 38_000, 4_000, 9)
UNTOLD = LedgerTotals("controller", None, 1, 0, None, None, None, None, None, None, 0, 0, None)
CONTROLLER = LedgerTotals("controller", "requests", 1, 0, 34_000_000, 34_000_000, 2, 2, 8_000, 8_000, 1, 1, 1.0)
WHOLE = LedgerTotals("gateway", "tokens", 1, 0, 2 * S, 2 * S, None, None, 141_897, 141_897, 1, 1, 140_000.0)


def track(choice: int, worker: int | None = 3, chosen: tuple[int, ...] = ()) -> Track:
    return Track("controller", worker, choice, "requests", Line((S, 2 * S), (None, 7)), Line((0, S), (0, 9)), chosen)


def run(*totals: LedgerTotals, tracks: tuple[Track, ...] = (), **changes: object) -> LedgerRun:
    dispatch = replace(Dispatch(2 * S, 5, None, 3, 1, None, ROUTER, LOAD), **changes)  # type: ignore[arg-type]
    return LedgerRun("now", "controller", None, totals, (dispatch,), tracks)


def test_a_column_stands_for_each_ledger_that_there_is() -> None:
    alone, behind = run(CONTROLLER), run(WHOLE, CONTROLLER, gateway=GATEWAY)
    assert [name for _, name in list_columns(alone)][:6] == ["time (s)", "request", "rank", "believes", "age", "off by"]
    assert [above for above, _ in list_columns(behind)].count("gateway") == 4
    assert list_columns(run(CONTROLLER, role="decode"))[1] == ("", "role")
    for each in (alone, behind):
        assert len(list_cells(each, each.dispatches[0])) == len(list_columns(each))


def test_a_ledger_is_shown_in_what_its_policy_compares() -> None:
    behind = run(WHOLE, CONTROLLER, gateway=GATEWAY)
    cells = list_cells(behind, behind.dispatches[0])
    assert cells[2:6] == ["3", "16,575 tokens", "2.00 s", "-141,897"]
    assert cells[6:10] == ["1", "7 requests", "34.0 ms", "-2"]
    assert cells[-1] == "worker 2, by 140,000 tokens; rank 0, by 1 request"


def test_what_is_not_known_is_a_dash() -> None:
    blind = run(UNTOLD, router=Belief(1, "policy", None, None, None, None, None, None, None))
    assert list_cells(blind, blind.dispatches[0])[2:6] == ["1", "-", "-", "-"]
    assert list_cells(blind, blind.dispatches[0])[-1] == "-"
    assert list(tell_worst(blind)) == ["The controller believed nothing."]
    untold = run(CONTROLLER, scheduler=replace(LOAD, requests=None))
    assert list_cells(untold, untold.dispatches[0])[-3:-1] == ["-", "38,000"]


def test_a_demanded_choice_says_so() -> None:
    demanded = run(CONTROLLER, router=replace(ROUTER, reason="pinned", better=None, regret=None))
    assert list_cells(demanded, demanded.dispatches[0])[2] == "1 pinned"
    assert choose_dispatches(demanded) == list(demanded.dispatches)


def test_ranks_of_several_workers_bear_the_name_of_theirs() -> None:
    one = run(CONTROLLER, tracks=(track(1),))
    two = run(CONTROLLER, tracks=(track(1), track(1, worker=4)))
    assert list_cells(one, one.dispatches[0])[2] == "1"
    assert list_cells(two, two.dispatches[0])[2] == "3.1"


def test_a_name_can_forge_no_line_of_the_text() -> None:
    record = LedgerRecord(KIND, SCHEMA_VERSION, "x", "t", "w", "", (run(CONTROLLER, tracks=(track(1),)),))
    forged = replace(record, runs=(replace(record.runs[0], name="now\ncontroller\x1b[31m"),))
    text = render_text(forged, forged.runs[0], forged.runs[0].dispatches)
    assert "\x1b" not in text
    assert len(text.splitlines()) == len(render_text(record, record.runs[0], record.runs[0].dispatches).splitlines())


def test_the_line_of_the_truth_begins_and_ends_with_the_figure() -> None:
    figure = draw_tracks([track(0), track(1, chosen=(2 * S,))], "rank", (S // 2, 3 * S))
    true, believed, _, *others = figure.data
    assert (list(true.x), list(true.y)) == ([0.5, 1.0, 3.0], [0, 9, 9])
    assert (list(believed.x), list(believed.y)) == ([2.0], [7])
    assert list(others[2].x) == [2.0]
    assert [each.name for each in figure.data if each.showlegend] == ["true", "believed", "chosen"]


@pytest.mark.parametrize("count", [1, 16])
def test_every_choice_has_a_row_of_its_own(count: int) -> None:
    figure = draw_tracks([track(choice) for choice in range(count)], "rank", (0, 3 * S))
    rows = [getattr(figure.layout, f"yaxis{'' if place == 0 else place + 1}").domain for place in range(count)]
    assert all(0 <= low < high <= 1 for low, high in rows)
    assert all(above[0] > below[1] for above, below in pairwise(rows))
