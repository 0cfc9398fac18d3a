"""Running engines on one screen, in short blocks for a log, and as one object a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from dprankdiag.model.bundle import make_document
from dprankdiag.model.diagnosis import Diagnosis, Finding
from dprankdiag.model.ledgers import NoData
from dprankdiag.units import NS_PER_S
from dprankdiag.views import words
from dprankdiag.views.base import DEFAULT_WIDTH, Tables
from dprankdiag.views.ledgers import list_ledger_rows, list_states
from dprankdiag.views.page import INDENT, Page
from dprankdiag.views.printable import make_printable

DEFAULT_HEIGHT = 40
FEWEST_ROWS = 8


def render_line(diagnosis: Diagnosis) -> str:
    """Write the diagnosis as one line of JSON, in pure ASCII."""
    text = json.dumps(make_document(diagnosis), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("\x7f", "\\u007f") + "\n"


def render_block(diagnosis: Diagnosis, failed: Sequence[NoData], at_ns: int) -> str:
    """Write what a tick shows in a few lines, for a log."""
    lines = [f"{format_moment(at_ns)} {diagnosis.status}: {diagnosis.headline}"]
    lines += [f"  {finding.severity}: {finding.cause}, {words.name_ranks(finding)}" for finding in diagnosis.findings]
    lines += [f"  no data: {item.where}: {item.reason}" for item in failed]
    return "".join(f"{make_printable(line)}\n" for line in lines)


def render_screen(
    diagnosis: Diagnosis,
    tables: Tables,
    failed: Sequence[NoData],
    at_ns: int,
    *,
    width: int = DEFAULT_WIDTH,
    height: int = DEFAULT_HEIGHT,
    color: bool = False,
) -> str:
    """Write one screen: the verdict, a row a rank, the findings with their evidence, and what gives no data."""
    page = Page(width, color)
    page.add_line(diagnosis.headline, style="bold")
    facts = "".join(f" | {fact}" for fact in words.list_facts(diagnosis))
    page.add_line("status: ", diagnosis.status, f"{facts} | {format_moment(at_ns)}")
    _write_ranks(page, diagnosis, tables, max(FEWEST_ROWS, height // 2), width)
    for finding in diagnosis.findings:
        _write_finding(page, finding, diagnosis)
    for heading, texts in (
        ("No data", [f"{item.where}: {item.reason}" for item in failed]),
        ("Notes", diagnosis.notes),
    ):
        if texts:
            page.add_heading(heading)
            page.add_fields([("-", text) for text in texts], label_width=1)
    return page.finish()


def _write_ranks(page: Page, diagnosis: Diagnosis, tables: Tables, most: int, width: int) -> None:
    states = list_states(diagnosis, tables)
    room = width - INDENT - max((len(state) for state in states.values()), default=0) - 2
    columns, rows = list_ledger_rows(diagnosis, tables, most, room)
    if not rows:
        return
    page.add_blank()
    shown = [[*row, states.get(row[0].removeprefix("* "), "")] for row in rows]
    page.add_table((*columns, "state"), shown, numbers=columns)
    if len(states) > len(rows):
        page.add_line(f"and {len(states) - len(rows)} more", indent=INDENT)


def _write_finding(page: Page, finding: Finding, diagnosis: Diagnosis) -> None:
    page.add_blank()
    page.add_line(finding.severity, f": {finding.cause}, {words.name_ranks(finding)}", style="bold")
    since = [("since", format_moment(finding.onset_ns))] if finding.onset_ns is not None else []
    evidence = [("evidence" if number == 0 else "", item.text) for number, item in enumerate(finding.evidence)]
    todo = [("to do", finding.remedies[0].text)] if finding.remedies else []
    todo += [("", f"try: {item.command}") for item in finding.remedies[:1] if item.command]
    fields = [*since, ("lost", words.describe_loss(finding, diagnosis)), *evidence, *todo]
    page.add_fields(fields, label_width=8)


def format_moment(at_ns: int) -> str:
    """Write a moment in UTC to the second."""
    return datetime.fromtimestamp(at_ns // NS_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
