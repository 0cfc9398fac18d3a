"""What changed between two bundles, and whether they can be compared at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dash import dcc, html
from dash.development.base_component import Component

from dprankdiag.dashboard.elements import make_elements, show_table
from dprankdiag.dashboard.pages.base import Elements, Page, show_heading, show_missing, show_panel, show_words
from dprankdiag.dashboard.places import Place, write_address
from dprankdiag.dashboard.provider import Snapshot
from dprankdiag.errors import InputError
from dprankdiag.model.comparison import Comparison, ComparisonVerdict
from dprankdiag.views.changes import make_account_panels, make_change_panels
from dprankdiag.views.comparison import STEP_PARTS, Section, list_facts, list_sections
from dprankdiag.views.markup import tag

TITLE = "Compare"
SAYS = "What changed between two recordings: the step, what it consists of, and each cause."
ALONE = (
    "Two bundles are needed, and one is open. dprankdiag dashboard BEFORE.dprank AFTER.dprank opens both; "
    "dprankdiag compare BEFORE AFTER says the same in the terminal."
)
NO_BUNDLE = (
    "Only bundles are compared here. dprankdiag analyze TRACE -o FILE.dprank saves one; "
    "dprankdiag dashboard BEFORE.dprank AFTER.dprank then shows what changed."
)
LOOKS: dict[ComparisonVerdict, str] = {
    "better": "healthy",
    "worse": "findings",
    "unchanged": "uniform",
    "not_comparable": "inconclusive",
}
"""Verdict → the status whose colours it has."""

NAMES: dict[ComparisonVerdict, str] = {
    "better": "better",
    "worse": "worse",
    "unchanged": "no significant change",
    "not_comparable": "not comparable",
}
MEANINGS = {
    "change": "After less before. More is worse.",
    "verdict": "Better and worse are said where the chance of such a change between equals, allowing for all that is "
    "tested, is below one in twenty.",
    "even ranks": "What the step would take without any lost time.",
    "unexplained": "Lost time that no finding accounts for.",
    "moved": "The same cause on other ranks.",
}


def render(snapshot: Snapshot, place: Place) -> Elements:
    """Show what changed between the two bundles asked for: the first and the second, if none are."""
    heading = show_heading(TITLE, SAYS)
    runs = snapshot.runs
    if len(runs.inputs) < 2:
        return [heading, show_missing(ALONE if runs.inputs else NO_BUNDLE)]
    before = _choose(place.before, len(runs.inputs), 0)
    after = _choose(place.after, len(runs.inputs), 1 if before == 0 else 0)
    choice = _list_choices(snapshot, place, before, after)
    if before == after:
        return [heading, choice, show_missing("This is one bundle twice: choose another on one of the sides.")]
    try:
        comparison = runs.compare(before, after)
    except InputError as error:
        return [heading, choice, show_missing(f"{error}.")]
    return [heading, choice, *_show_comparison(comparison), show_words(MEANINGS)]


def _choose(asked: int | None, count: int, usual: int) -> int:
    return asked if asked is not None and asked < count else usual


def _list_choices(snapshot: Snapshot, place: Place, before: int, after: int) -> Component:
    """Show which two are compared, and the way to others."""
    rows = []
    for side, number in (("before", before), ("after", after)):
        links: Elements = [html.Span(f"{side.capitalize()}:")]
        for at, run in enumerate(snapshot.runs.inputs):
            pair = (at, after) if side == "before" else (before, at)
            to = write_address(replace(place, before=pair[0], after=pair[1]))
            link = dcc.Link(run.name, href=to, className="button stay")
            links.append(html.Strong(run.name) if at == number else link)
        rows.append(html.Div(links, className="choice"))
    swapped = write_address(replace(place, before=after, after=before))
    rows.append(html.Div(dcc.Link("swap the sides", href=swapped, className="button stay"), className="choice"))
    return html.Div(rows)


def _show_comparison(comparison: Comparison) -> Iterator[Component]:
    verdict = comparison.verdict
    badge = make_elements(tag("span", NAMES[verdict], class_=f"status {LOOKS[verdict]}"))
    facts = html.P("; ".join(list_facts(comparison)), className="says")
    yield html.Section([html.H2([*badge, " ", comparison.headline]), facts], className=f"outcome {LOOKS[verdict]}")
    for panel in make_change_panels(comparison):
        yield show_panel(panel, meanings=MEANINGS)
    for panel in make_account_panels(comparison):
        yield show_panel(panel, meanings=MEANINGS, open_table=True)
    for number, section in enumerate(list_sections(comparison)):
        if section.subject != STEP_PARTS:
            yield _show_section(section, number)


def _show_section(section: Section, number: int) -> Component:
    """Show a section of the comparison as the terminal has it."""
    parts: Elements = [html.H2(section.heading)]
    if section.rows:
        key = f"section-{number}"
        parts.append(show_table(key, section.heading, section.columns, section.rows, section.numbers, MEANINGS))
    if section.lines:
        parts.append(html.Ul([html.Li(line) for line in section.lines]))
    return html.Section(parts)


PAGE = Page("/compare", TITLE, render)
