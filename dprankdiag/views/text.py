"""The diagnosis as a page of text: the verdict first, then what it rests on, then what could not be told."""

from __future__ import annotations

from collections.abc import Iterator

from dprankdiag.model.diagnosis import Abstention, Diagnosis, Finding
from dprankdiag.units import format_ns
from dprankdiag.views import words
from dprankdiag.views.base import DEFAULT_WIDTH, Tables
from dprankdiag.views.ledgers import LEGEND, list_ledger_rows
from dprankdiag.views.ledgers import TITLE as LEDGER_TITLE
from dprankdiag.views.page import INDENT, Page

MAX_RANK_ROWS = 32
"""Rank rows on the page; named ranks come first, the JSON has all."""

MAX_WHO_ROWS = 8
MAX_ENGINE_WIDTH = 14
"""Ranks of one finding described in full; the heading names all."""


def render(diagnosis: Diagnosis, tables: Tables, *, width: int = DEFAULT_WIDTH, color: bool = False) -> str:
    """Write the whole diagnosis for people; the tables are for views that draw."""
    page = Page(width, color)
    _write_verdict(page, diagnosis)
    for number, finding in enumerate(diagnosis.findings, 1):
        _write_finding(page, number, finding, diagnosis)
    _write_lost(page, diagnosis)
    _write_ranks(page, diagnosis, tables)
    _write_time(page, diagnosis)
    _write_inputs(page, diagnosis)
    _write_abstentions(page, diagnosis.abstentions)
    _write_notes(page, diagnosis.notes)
    return page.finish()


def _write_verdict(page: Page, diagnosis: Diagnosis) -> None:
    page.add_line(diagnosis.headline or "No headline.", style="bold")
    page.add_line("status: ", diagnosis.status, "".join(f" | {fact}" for fact in words.list_facts(diagnosis)))
    explanation = words.STATUS_MEANING[diagnosis.status]
    if explanation and not diagnosis.findings:
        page.add_line(explanation)


def _write_finding(page: Page, number: int, finding: Finding, diagnosis: Diagnosis) -> None:
    page.add_blank()
    page.add_line(f"{number}. ", finding.severity, f": {finding.cause}, {words.name_ranks(finding)}", style="bold")
    page.add_line(finding.summary, indent=INDENT)
    page.add_fields(list(_list_finding_fields(finding, diagnosis)))


def _list_finding_fields(finding: Finding, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    members = [rank for rank in diagnosis.ranks if rank.engine == finding.engine and rank.rank in finding.ranks]
    yield from _label("who", [words.describe_rank(rank) for rank in members[:MAX_WHO_ROWS]])
    yield "when", words.describe_pattern(finding, diagnosis.time.start_ns)
    yield "lost", words.describe_loss(finding, diagnosis)
    if finding.recoverable_ns is not None:
        yield "recoverable", format_ns(finding.recoverable_ns)
    yield "confidence", f"{finding.confidence:.2f}"
    yield from _label("evidence", [f"{item.text} [{words.describe_measurement(item)}]" for item in finding.evidence])
    yield from _label("or else", [f"{other.cause} would need: {other.would_need}" for other in finding.alternatives])
    for position, remedy in enumerate(finding.remedies):
        gain = words.describe_gain(remedy, diagnosis.interval_level)
        yield "to do" if position == 0 else "", f"{remedy.text} {gain}".rstrip()
        if remedy.command:
            yield "", f"try: {remedy.command}"
    yield from _label("to tell", [words.describe_experiment(item) for item in finding.experiments])


def _label(label: str, values: list[str]) -> Iterator[tuple[str, str]]:
    for position, value in enumerate(values):
        yield (label if position == 0 else ""), value


def _write_lost(page: Page, diagnosis: Diagnosis) -> None:
    page.add_heading("Lost time")
    rows = words.list_lost_rows(diagnosis)
    if not rows:
        page.add_line(words.explain_no_loss(diagnosis), indent=INDENT)
        return
    page.add_table(words.LOST_COLUMNS, rows, numbers=("lost", "share"))


def _write_ledger(page: Page, diagnosis: Diagnosis, tables: Tables) -> bool:
    """Write what each rank told; say whether there was any."""
    headings, rows = list_ledger_rows(diagnosis, tables, MAX_RANK_ROWS, page.width - INDENT)
    if rows:
        page.add_heading(LEDGER_TITLE)
        page.add_table(headings, rows, numbers=headings)
        page.add_line(LEGEND, indent=INDENT)
    return bool(rows)


def _write_ranks(page: Page, diagnosis: Diagnosis, tables: Tables) -> None:
    if _write_ledger(page, diagnosis, tables) and words.is_ledger(diagnosis):
        return
    page.add_heading("Ranks")
    if not diagnosis.ranks:
        page.add_line("None could be told apart.", indent=INDENT)
        return
    named = words.find_named(diagnosis)
    shown = words.choose_ranks(diagnosis, MAX_RANK_ROWS)
    rows = [words.list_rank_cells(rank, (rank.engine, rank.rank) in named) for rank in shown]
    rows = [[_shorten_engine(label), *cells] for label, *cells in rows]
    page.add_table(words.RANK_COLUMNS, rows, numbers=("rank", "work", "wait", "transfer", "idle"))
    if len(shown) < len(diagnosis.ranks):
        page.add_line(f"and {len(diagnosis.ranks) - len(shown)} more; the JSON has all of them", indent=INDENT)
    if named and any(rank.wait_ns is not None for rank in diagnosis.ranks):
        page.add_line(words.NAMED_RANKS, indent=INDENT)


def _shorten_engine(label: str) -> str:
    """Cut the name of an engine, never the rank's number behind it."""
    name, _, number = label.rpartition(" ")
    return label if len(name) <= MAX_ENGINE_WIDTH else f"{name[: MAX_ENGINE_WIDTH - 1]}… {number}"


def _write_time(page: Page, diagnosis: Diagnosis) -> None:
    page.add_heading("What was measured")
    page.add_fields(words.list_measured(diagnosis))


def _write_inputs(page: Page, diagnosis: Diagnosis) -> None:
    page.add_heading("Inputs")
    if not diagnosis.inputs:
        page.add_line("None.", indent=INDENT)
    for source in diagnosis.inputs:
        page.add_line(source.path, indent=INDENT)
        page.add_fields([("", text) for text in words.describe_source(source)], label_width=1)


def _write_abstentions(page: Page, abstentions: tuple[Abstention, ...]) -> None:
    if not abstentions:
        return
    page.add_heading("What cannot be told")
    for causes, reason, command in words.join_abstentions(abstentions):
        page.add_line(f"{causes}: {reason}", indent=INDENT)
        if command:
            page.add_fields([("", f"get it with: {command}")], label_width=1)


def _write_notes(page: Page, notes: tuple[str, ...]) -> None:
    if not notes:
        return
    page.add_heading("Notes")
    page.add_fields([("-", note) for note in notes], label_width=1)
