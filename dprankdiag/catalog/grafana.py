"""Know the panels of the Grafana dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dprankdiag.catalog.rules import read_catalog
from dprankdiag.errors import TableError

CATALOG = "grafana.toml"


@dataclass(frozen=True, slots=True)
class Target:
    """An expression of a panel and the legend of its series."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel.

    Attributes:
        kind: text, stat, table, lines, states or bars.
        width: of 24.
        steps: values from which a darker colour is shown.
        empty: what is shown instead of 0.
        text: Markdown of a text panel.
    """

    title: str
    kind: str
    description: str
    width: int
    height: int
    unit: str = ""
    steps: tuple[float, ...] = ()
    empty: str = ""
    text: str = ""
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


def load_board() -> tuple[Row, ...]:
    """Load the rows of the dashboard shipped with the package."""
    rows = read_catalog(CATALOG)
    try:
        return tuple(Row(row["title"], tuple(_make_panel(panel) for panel in row["panels"])) for row in rows["rows"])
    except (KeyError, TypeError) as error:
        raise TableError(str(error), where=f"catalogue {CATALOG}") from error


def _make_panel(row: Mapping[str, Any]) -> Panel:
    targets = tuple(Target(**target) for target in row.get("targets", ()))
    values = {key: value for key, value in row.items() if key not in ("targets", "steps")}
    return Panel(targets=targets, steps=tuple(row.get("steps", ())), **values)
