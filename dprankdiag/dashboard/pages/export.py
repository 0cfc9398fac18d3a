"""What is shown, to take along."""

from __future__ import annotations

from dash import html

from dprankdiag.dashboard.pages.base import Elements, Page, show_heading
from dprankdiag.dashboard.places import Place
from dprankdiag.dashboard.provider import Snapshot
from dprankdiag.model.schema import count_rows
from dprankdiag.views.words import count_of

WHOLE = (
    ("diagnosis.html", "HTML", "the whole diagnosis with its figures, one file that needs no network"),
    ("diagnosis.md", "Markdown", "for an issue or a chat"),
    ("diagnosis.json", "JSON", "for programs; its schema comes with the package"),
    ("diagnosis.txt", "Text", "as on a terminal"),
    ("diagnosis.perfetto.json", "Perfetto", "the worst step for ui.perfetto.dev, with arrows from the late rank"),
    ("diagnosis.dprank", "Bundle", "diagnosis and tables, to be opened again: dprankdiag dashboard diagnosis.dprank"),
)


def render(snapshot: Snapshot, place: Place) -> Elements:
    """List files to save."""
    whole = [html.Li([_link(name, text), f": {says}"]) for name, text, says in WHOLE]
    tables = [
        html.Li([_link(f"{name}.csv", name), f": {count_of(count_rows(columns), 'row')}"])
        for name, columns in sorted(snapshot.tables.items())
    ]
    figures = "Every figure has a button of its own, at its upper right, that saves it as an image (PNG)."
    return [
        show_heading("Export", "What is shown now, to take along. Nothing is sent anywhere."),
        html.Section([html.H2("The diagnosis"), html.Ul(whole)]),
        html.Section([html.H2("Tables as CSV"), html.Ul(tables) if tables else html.P("No tables were kept.")]),
        html.Section([html.H2("Figures"), html.P(figures)]),
    ]


def _link(name: str, text: str) -> html.A:
    return html.A(text, href=f"/download/{name}", download=name)


PAGE = Page("/export", "Export", render)
