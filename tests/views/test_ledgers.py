"""What each rank told, in text, Markdown and HTML: it fits, it is marked, and absent numbers look absent."""

from __future__ import annotations

from typing import Any

import pytest

from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.pipelines.ledger_tables import tabulate_ledgers
from dprankdiag.pipelines.ledgers import diagnose_view, view_whole
from dprankdiag.views import html, markdown, text
from dprankdiag.views.base import Tables
from dprankdiag.views.ledgers import LEGEND, TITLE, list_ledger_rows
from dprankdiag.views.words import ABSENT
from tests.ledgers import build_ledger

BUSY: dict[str, Any] = {
    "gauges": {
        "load_running_requests": {"all": 24, 3: 96},
        "load_used_tokens": {"all": 60000, 3: 240000},
        "load_kv_usage_ratio": {"all": 0.15, 3: 0.6},
        "load_stamp_s": 100.0,
    },
    "counters": {
        "scheduled_pairs": {"all": 3e7, 3: 1.2e8},
        "prefill_tokens": 40000,
        "cached_tokens": 20000,
        "retracted_requests": 0,
        "load_decode_steps": 500,
        "load_decode_step_s": 15.0,
        "load_decode_rows": {"all": 12000, 3: 48000},
    },
}


def judge(**more: Any) -> tuple[Diagnosis, Tables]:
    view = view_whole(build_ledger({**BUSY, **more}))
    return diagnose_view(view), tabulate_ledgers([view])


@pytest.mark.parametrize("ranks", [4, 8, 64, 320])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_of_the_page_is_wider_than_the_terminal(ranks: int, width: int) -> None:
    page = text.render(*judge(ranks=ranks), width=width)
    assert TITLE in page
    assert max(map(len, page.splitlines())) <= width


def test_a_page_of_many_ranks_keeps_the_named_ones() -> None:
    diagnosis, tables = judge(ranks=320)
    _, rows = list_ledger_rows(diagnosis, tables, 16)
    assert len(rows) == 16
    assert [row[0] for row in rows if row[0].startswith("*")] == ["* 3"]


def test_columns_at_the_end_give_way_and_two_are_always_kept() -> None:
    diagnosis, tables = judge()
    wide, _ = list_ledger_rows(diagnosis, tables, 8)
    counts = [len(list_ledger_rows(diagnosis, tables, 8, width)[0]) for width in (10, 40, 80, 200)]
    assert counts == sorted(counts)
    assert counts[0] == 2
    assert counts[-1] == len(wide)
    for width in (40, 80, 200):
        headings, rows = list_ledger_rows(diagnosis, tables, 8, width)
        assert all(len(row) == len(headings) for row in rows)


def test_columns_that_nobody_told_are_left_out_and_cells_are_marked_absent() -> None:
    given = {"only": True, "gauges": {"running_requests": {"all": 20, 2: None}}}
    view = view_whole(build_ledger(given))
    headings, rows = list_ledger_rows(diagnose_view(view), tabulate_ledgers([view]), 8)
    assert headings == ("rank", "running")
    assert rows[2] == ["2", ABSENT]
    assert rows[3] == ["3", "20"]


def test_without_a_ledger_there_is_no_table() -> None:
    diagnosis, _ = judge()
    assert list_ledger_rows(diagnosis, {}, 8) == ((), [])
    assert TITLE not in text.render(diagnosis, {})


def test_ranks_of_several_engines_bear_their_names() -> None:
    diagnosis, tables = judge()
    table = {name: column.copy() for name, column in tables["ledger_ranks"].items()}
    table["engine"][4:] = "decode"
    _, rows = list_ledger_rows(diagnosis, {"ledger_ranks": table}, 8)
    assert [row[0] for row in rows] == [
        *("default 0", "default 1", "default 2", "* default 3"),
        *("decode 4", "decode 5", "decode 6", "decode 7"),
    ]


def test_every_format_shows_the_table_with_its_legend() -> None:
    diagnosis, tables = judge()
    words = " ".join(text.render(diagnosis, tables, width=200).split())
    assert LEGEND in words
    assert TITLE in markdown.render(diagnosis, tables)
    page = html.render(diagnosis, tables)
    assert TITLE in page
    assert "240,000" in page or "240000" in page


def test_rows_of_markdown_have_a_cell_for_each_heading() -> None:
    page = markdown.render(*judge())
    lines = [line for line in page.splitlines() if line.startswith("|")]
    table = [line for line in lines if line.count("|") == max(each.count("|") for each in lines)]
    assert len(table) >= 2 + 8


def test_names_of_targets_cannot_break_out_of_the_page() -> None:
    hostile = "<script>alert(1)</script>|x|"
    diagnosis, tables = judge()
    table = {name: column.copy() for name, column in tables["ledger_ranks"].items()}
    table["engine"][:4] = hostile
    for render in (html.render, markdown.render):
        page = render(diagnosis, {"ledger_ranks": table})
        assert "alert" in page
        assert hostile not in page
        assert "<script>alert(1)</script>" not in page
