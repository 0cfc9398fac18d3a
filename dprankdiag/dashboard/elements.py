"""From the markup of the HTML page to elements of the dashboard, so that both say the same in the same words.

Nothing here is given to the browser as HTML: each element is made anew and each text is a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

from dash import html
from dash.development.base_component import Component

from dprankdiag.dashboard.parts import name_part
from dprankdiag.views.markup import Markup

_NAMES = {"class": "className", "tabindex": "tabIndex", "colspan": "colSpan", "for": "htmlFor"}
_TAGS = {
    name: getattr(html, name.capitalize())
    for name in [
        "a",
        "article",
        "aside",
        "button",
        "caption",
        "code",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "em",
        "figure",
        "figcaption",
        "footer",
        "h1",
        "h2",
        "h3",
        "h4",
        "header",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "section",
        "span",
        "strong",
        "summary",
        "table",
        "tbody",
        "td",
        "th",
        "thead",
        "tr",
        "ul",
    ]
}


class _Builder(HTMLParser):
    """Makes elements of markup."""

    def __init__(self, titles: Mapping[str, str]) -> None:
        super().__init__(convert_charrefs=True)
        self._titles = titles
        self.open: list[tuple[str, dict[str, Any], list[Any]]] = [("", {}, [])]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append((tag, {_NAMES.get(name, name): value or "" for name, value in attrs}, []))

    def handle_endtag(self, tag: str) -> None:
        name, attributes, children = self.open.pop()
        if name == "code" and len(children) == 1 and children[0] in self._titles:
            attributes["title"] = self._titles[children[0]]
        self.open[-1][2].append(_TAGS[name](children, **attributes))

    def handle_data(self, data: str) -> None:
        self.open[-1][2].append(data)


def make_elements(markup: Markup, titles: Mapping[str, str] | None = None) -> list[Any]:
    """Make elements of markup of ours.

    Args:
        titles: what to show over a name written as code.
    """
    builder = _Builder(titles or {})
    builder.feed(markup)
    builder.close()
    return builder.open[0][2]


def show_table(
    key: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str | tuple[str, str]]],
    numbers: Sequence[str] = (),
    meanings: Mapping[str, str] | None = None,
) -> Component:
    """Show a table that scrolls by itself; the browser's script draws it, so that hundreds of rows cost little.

    Args:
        key: unique on the page.
        rows: of cells, each a text, or a text and what hovering over it shows.
        numbers: columns that are aligned right.
        meanings: what to show over the heading of a column.
    """
    told = meanings or {}
    head = [
        {"text": column, "number": column in numbers, **({"title": told[column]} if column in told else {})}
        for column in columns
    ]
    content = json.dumps({"columns": head, "rows": [list(row) for row in rows]}, separators=(",", ":"))
    attributes: dict[str, Any] = {"data-table": content, "aria-label": f"{title}: table"}
    return html.Div(id=name_part("table", key), className="scroll", tabIndex=0, role="group", **attributes)
