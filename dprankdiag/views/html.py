"""The diagnosis as one HTML file that needs nothing outside itself: verdict, findings, figures, tables.

Every text is escaped where it enters the page, and a content security policy lets no script run but the two written
here and lets nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dprankdiag import __version__
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.views.assets import read_asset
from dprankdiag.views.base import DEFAULT_WIDTH, Tables
from dprankdiag.views.cards import (
    write_abstentions,
    write_finding,
    write_inputs,
    write_measured,
    write_notes,
    write_table,
    write_verdict,
)
from dprankdiag.views.figures.base import CONFIG
from dprankdiag.views.markup import Markup, join, tag
from dprankdiag.views.panels import Panel, make_panels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def render(diagnosis: Diagnosis, tables: Tables, *, width: int = DEFAULT_WIDTH, color: bool = False) -> str:
    """Write the whole page; width and colour do not apply."""
    panels = make_panels(diagnosis, tables)
    findings = [write_finding(number, item, diagnosis) for number, item in enumerate(diagnosis.findings, 1)]
    told = tag("section", tag("h2", "Findings"), *findings) if findings else ""
    abstentions = write_abstentions(diagnosis)
    undecided = diagnosis.status == "inconclusive"
    main = tag(
        "main",
        abstentions if undecided else "",
        told,
        *(_write_panel(panel) for panel in panels if panel.figure is not None or panel.rows),
        _write_missing([panel for panel in panels if panel.figure is None and not panel.rows]),
        write_measured(diagnosis),
        write_inputs(diagnosis),
        "" if undecided else abstentions,
        write_notes(diagnosis),
    )
    footer = tag("footer", f"Made by dprankdiag {__version__}. Nothing on this page is sent or fetched.")
    return _write_page(diagnosis, join(write_verdict(diagnosis), main, footer), panels)


def _write_page(diagnosis: Diagnosis, body: Markup, panels: Sequence[Panel]) -> str:
    scripts = [Markup(_load_plotly()), Markup(read_asset("report.js"))]
    data = tag("script", Markup(_write_figures(panels)), type="application/json", id="figures")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_write_policy(scripts)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{diagnosis.status}: {diagnosis.headline or 'dprankdiag'}"),
        tag("style", Markup(read_asset("report.css"))),
    )
    page = tag("html", head, tag("body", body, data, *(tag("script", script) for script in scripts)), lang="en")
    return f"<!doctype html>\n{page}\n"


def _write_policy(scripts: Sequence[str]) -> str:
    """Allow the given scripts alone; figures set styles of their elements and are saved as images by blob."""
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _load_plotly() -> str:
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script


def _write_panel(panel: Panel) -> Markup:
    parts: list[str] = [tag("h2", panel.title, id=f"{panel.key}-title")]
    if panel.missing:
        parts.append(tag("p", tag("strong", "Not shown. "), panel.missing, class_="missing"))
    if panel.figure is not None:
        picture = tag("div", id=panel.key, class_="figure", role="group", aria_label=panel.title)
        no_script = tag("noscript", tag("p", "The figure needs JavaScript; its numbers are in the table below."))
        parts.append(tag("figure", picture, no_script, tag("figcaption", panel.says)))
    if panel.rows:
        table = write_table(panel.title, panel.columns, panel.rows, panel.numbers)
        if panel.figure is None or panel.key == "ranks":
            parts.append(table)
        else:
            parts.append(tag("details", tag("summary", "The numbers as a table"), table))
    return tag("section", *parts, aria_labelledby=f"{panel.key}-title")


def _write_missing(panels: Sequence[Panel]) -> Markup:
    """Name the figures without data, and why they have none; nothing if all were drawn."""
    titles: dict[str, list[str]] = {}
    for panel in panels:
        titles.setdefault(panel.missing, []).append(panel.title)
    items = [tag("li", tag("strong", ", ".join(names)), f": {reason}") for reason, names in titles.items()]
    if not items:
        return Markup("")
    return tag("section", tag("h2", "Figures that are missing"), tag("ul", *items, class_="missing"))


def _write_figures(panels: Sequence[Panel]) -> str:
    figures = [{"id": panel.key, **_plain(panel.figure)} for panel in panels if panel.figure is not None]
    return write_inline_json({"config": CONFIG, "figures": figures})


def _plain(figure: Figure) -> dict[str, Any]:
    """Turn a figure into plain values, arrays as base64 of their bytes."""
    from plotly.io import to_json

    plain: dict[str, Any] = json.loads(to_json(figure, validate=False, engine="json"))
    return {"data": plain["data"], "layout": plain["layout"]}


def write_inline_json(document: Any) -> str:
    """Write JSON that may stand inside a script element: nothing in it can end the element or begin another."""
    text = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
