"""What other policies, layouts or healthy ranks would make of the same load, and what to set for that."""

from __future__ import annotations

from collections.abc import Iterator

from dash import html
from dash.development.base_component import Component

from dprankdiag.dashboard.elements import make_elements, show_table
from dprankdiag.dashboard.pages.base import (
    Elements,
    Page,
    show_heading,
    show_missing,
    show_panel,
    show_words,
)
from dprankdiag.dashboard.places import Place
from dprankdiag.dashboard.provider import Snapshot
from dprankdiag.errors import DprankdiagError
from dprankdiag.model.whatif import Option, Verdict, WhatIf
from dprankdiag.views.cards import write_command
from dprankdiag.views.markup import tag
from dprankdiag.views.options import COLUMNS, describe_gain, list_served, make_gains_panel
from dprankdiag.views.whatif import list_facts, list_sections

TITLE = "What-if"
SAYS = "What the same load would be under another policy, with even load, without a fault or with experts elsewhere."
NOT_ASKED = (
    "Of running engines it is asked apart: dprankdiag whatif INPUT -o FILE.json, where INPUT is what dprankdiag record "
    "kept, a log of requests, or prometheus+http://HOST:PORT; dprankdiag dashboard FILE.json then shows it here."
)
NO_STEPS = (
    " A recording of kernels or a log of requests does: dprankdiag whatif INPUT -o FILE.json tells what it finds."
)
LOOKS: dict[Verdict, tuple[str, str]] = {
    "better": ("healthy", "one option gains most"),
    "tied": ("healthy", "several gain as much"),
    "none_better": ("uniform", "none gains"),
    "cannot_tell": ("inconclusive", "cannot tell"),
}
"""Verdict → the status whose colours it has, and how it is called."""

MEANINGS = {
    "option": "Another way to serve the same load.",
    "saves": "Share of the time that it would save, with its interval.",
    "rests on": "Replayed: what was recorded, served or replayed again. Drawn: requests drawn from histograms, then "
    "served. Bound: nothing of its kind can save more.",
    "as good as": "Options whose gain cannot be told apart from this one's.",
    "imbalance": "Time that the busiest rank works before the gather over the mean of the ranks'; 1 is even.",
    "waiting": "Share of the ranks' time in steps that they wait for slower ones.",
    "TTFT p50": "From arrival to the first token, the median.",
    "TPOT p50": "From one token to the next, the mean of each request; of that the median.",
    "tokens/s": "Tokens generated a second, from the first arrival to the last token.",
    "GPU-h/day": "GPU-hours a day in steps; of an option, what is left if the time it saves is given back as GPUs.",
}


def render(snapshot: Snapshot, place: Place) -> Elements:
    """Show the options with their gains, what to set, and what could not be told."""
    heading = show_heading(TITLE, SAYS)
    if snapshot.asked is None:
        return [heading, show_missing(NOT_ASKED)]
    try:
        result = snapshot.asked.get()
    except DprankdiagError as error:
        return [heading, show_missing(f"{error}.{NO_STEPS}")]
    return [heading, *_show(result), show_words(MEANINGS)]


def _show(result: WhatIf) -> Iterator[Component]:
    look, name = LOOKS[result.verdict]
    badge = make_elements(tag("span", name, class_=f"status {look}"))
    facts = html.P("; ".join(list_facts(result)), className="says")
    yield html.Section([html.H2([*badge, " ", result.headline]), facts], className=f"outcome {look}")
    yield show_panel(make_gains_panel(result), meanings=MEANINGS)
    if commands := [option for option in result.options if option.command and not option.is_current]:
        best = set(result.best)
        items = [_show_command(option) for option in sorted(commands, key=lambda option: option.key not in best)]
        yield html.Section([html.H2("What to set"), html.Ul(items)])
    rows = list_served(result)
    if rows:
        table = show_table("served", "What each makes of the load", COLUMNS, rows, COLUMNS[1:], MEANINGS)
        yield html.Section([html.H2("What each makes of the load"), table])
    if absent := [option for option in result.options if option.reasons]:
        lines = [html.Li(f"{option.key}: {reason}") for option in absent for reason in option.reasons]
        yield html.Section([html.H2("Numbers that are absent"), html.Ul(lines)])
    for heading, lines_told in list_sections(result):
        yield html.Section([html.H2(heading), html.Ul([html.Li(line) for line in lines_told])])


def _show_command(option: Option) -> Component:
    command = make_elements(write_command(option.command or ""))
    return html.Li([html.Strong(option.key), f" ({describe_gain(option)}), {option.title}: ", *command])


PAGE = Page("/whatif", TITLE, render)
