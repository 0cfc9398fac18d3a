"""What every page is: an address, a title, and elements made of a snapshot; and how it shows what it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from dprankdiag.catalog.causes import load_causes
from dprankdiag.catalog.evidence import load_evidence
from dprankdiag.dashboard.elements import make_elements, show_table
from dprankdiag.dashboard.parts import name_part
from dprankdiag.dashboard.places import Place
from dprankdiag.dashboard.provider import Snapshot
from dprankdiag.views.cards import write_command
from dprankdiag.views.figures.base import CONFIG
from dprankdiag.views.panels import Panel
from dprankdiag.views.words import is_ledger, split_commands

Elements = list[Any]
"""Elements and texts, one after the other."""

RECORD_ALL = "dprankdiag capture TARGET"
GET_TRACE = (
    "What engines tell of themselves holds no steps and no layers. A recording of all ranks does: "
    f"{RECORD_ALL} prints the calls that make one, and dprankdiag dashboard FILE shows it."
)

TELL_WAITS = (
    "This engine does not tell how long its ranks wait for each other. SGLang does from 0.5.22 on, if it is started "
    "with --enable-metrics and SGLANG_ENABLE_METRICS_DP_ATTENTION=1; dprankdiag doctor TARGET says what is missing."
)


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        path: its address.
        title: its name in the list of pages.
        render: makes its elements, the heading of first level among them.
    """

    path: str
    title: str
    render: Callable[[Snapshot, Place], Elements]


def show_heading(title: str, says: str) -> Component:
    """Show the heading of a page and what the page is for."""
    return html.Header([html.H1(title), html.P(says, className="says")])


def show_advice(text: str) -> Elements:
    """Show advice with its commands ready to copy."""
    parts: Elements = []
    for piece, is_command in split_commands(text):
        parts += make_elements(write_command(piece)) if is_command else [piece]
    return parts


def show_missing(reason: str) -> Component:
    """Say why something is not there, and what would show it."""
    return html.P([html.Strong("Not shown. "), *show_advice(reason)], className="missing")


def show_words_of(key: str, elements: Elements) -> Component:
    """Show words that change while they are looked at."""
    return html.Div(elements, id=name_part("words", key))


def show_graph(panel: Panel, note: str = "") -> Component:
    """Show a figure with what it says in words."""
    figure: Any = panel.figure
    attributes: dict[str, Any] = {"aria-label": panel.title}
    config: Any = dict(CONFIG)
    height: Any = {"height": f"{figure.layout.height}px"}
    graph = dcc.Graph(id=name_part("figure", panel.key), figure=figure, config=config, responsive=True, style=height)
    picture = html.Div(graph, className="figure", role="group", **attributes)
    says = " ".join(text for text in (panel.says, note) if text)
    return html.Figure([picture, html.Figcaption(says, id=name_part("words", panel.key))])


def show_panel(
    panel: Panel,
    *,
    note: str = "",
    reason: str | None = None,
    meanings: Mapping[str, str] | None = None,
    open_table: bool = False,
) -> Component:
    """Show a figure, its words and its numbers as a table; or why there is none and what would show it.

    Args:
        note: said after what the figure says.
        reason: why there is no figure, where that is known better than the panel knows.
        meanings: of the columns of the table.
        open_table: show the table at once.
    """
    title_id = f"{panel.key}-title"
    parts: Elements = [html.H2(panel.title, id=title_id)]
    if panel.missing:
        parts.append(show_missing(panel.missing if reason is None else reason))
    if panel.figure is not None:
        parts.append(show_graph(panel, note))
    elif panel.says:
        parts.append(html.P(panel.says))
    if panel.rows:
        table = show_table(panel.key, panel.title, panel.columns, panel.rows, panel.numbers, meanings)
        if open_table or panel.figure is None:
            parts.append(table)
        else:
            parts.append(html.Details([html.Summary("The numbers as a table"), table]))
    attributes: dict[str, Any] = {"aria-labelledby": title_id}
    return html.Section(parts, **attributes)


def explain_missing(snapshot: Snapshot) -> str | None:
    """Say why figures of steps are missing from an engine's own numbers, which never hold them; None of others."""
    return GET_TRACE if is_ledger(snapshot.diagnosis) or snapshot.at_ns is not None else None


def show_words(words: Mapping[str, str]) -> Component:
    """Define the words of a page, for reading with the keyboard what hovering shows."""
    items: Elements = []
    for word, meaning in words.items():
        items += [html.Dt(word), html.Dd(meaning)]
    return html.Details([html.Summary("What the words mean"), html.Dl(items)], className="words")


def list_definitions() -> dict[str, str]:
    """Define causes and kinds of evidence by name."""
    kinds = {name: f"{kind.definition} Unit: {kind.unit}." for name, kind in load_evidence().items()}
    return kinds | {name: cause.says for name, cause in load_causes().items()}


def choose_definitions(names: Sequence[str]) -> dict[str, str]:
    """Define the causes and kinds of evidence that a page names."""
    known = list_definitions()
    return {name: known[name] for name in dict.fromkeys(names) if name in known}
