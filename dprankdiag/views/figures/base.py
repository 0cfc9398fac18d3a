"""What the figures share: colours that everyone can tell apart, safe labels, units and the axis of ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from dprankdiag.units import NS_PER_MS, NS_PER_S, NS_PER_US
from dprankdiag.views.printable import make_printable

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

CONFIG = {"displaylogo": False, "showSendToCloud": False, "responsive": True}
"""How every figure is shown: nothing in it leads to a service outside."""

BLUE, ORANGE, GREEN, VERMILION, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#8C8C8C"
"""Colours told apart with any colour vision, on white and on black.

Source: Okabe and Ito, "Color Universal Design" (2008).
"""

WORK, IDLE, WAIT, TRANSFER = BLUE, GREY, ORANGE, GREEN
SEQUENTIAL = "Cividis"
DIVERGING = [[0.0, "#2166AC"], [0.25, "#92C5DE"], [0.5, "#F2F2F2"], [0.75, "#FDB863"], [1.0, "#B35806"]]
"""Blue over white to orange-brown: less and more than the others."""

MAX_COLUMNS = 2000
MAX_CELLS = 200_000
FEWEST_COLUMNS = 100
CALM = 0.05
"""A colour scale reaches at least so far, as a share of the usual time: what is even looks even."""

MAX_LABELS, FEWER_LABELS = 64, 40
"""Rows that all bear a label, and how many do where there are more."""

ROW_PX, LEAST_PX, MOST_PX = 22, 240, 900

_NAMES = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs"))


def escape_label(text: str) -> str:
    """Make text that plotly shows as it is; it reads some tags and entities in labels and hover texts."""
    return escape(make_printable(text), quote=False)


def choose_unit(largest_ns: float) -> tuple[float, str]:
    """Choose the unit in which a value has a digit before the point: the unit's length in ns, and its name."""
    return next(((size, name) for size, name in _NAMES if abs(largest_ns) >= size), (NS_PER_US, "µs"))


def make_figure(traces: Sequence[Any], height_px: int, **layout: Any) -> Figure:
    """Make a figure without colours of its own for text, axes and background."""
    from plotly import graph_objects

    known = {
        "template": "none",
        "height": height_px,
        "margin": {"l": 64, "r": 24, "t": 24, "b": 56},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "hoverlabel": {"align": "left"},
    }
    return graph_objects.Figure(traces, {**known, **layout})


def rank_axis(ranks: Sequence[int], named: Collection[int]) -> dict[str, Any]:
    """Describe an axis of ranks, the first on top, with the named ones in bold."""
    axis: dict[str, Any] = {
        "title": {"text": "rank"},
        "type": "category",
        "categoryorder": "array",
        "categoryarray": [str(rank) for rank in ranks],
        "autorange": "reversed",
        "automargin": True,
        "showgrid": False,
    }
    shown = [ranks[row] for row in choose_labels([rank in named for rank in ranks])]
    axis["tickvals"] = [str(rank) for rank in shown]
    axis["ticktext"] = [f"<b>{rank}</b>" if rank in named else str(rank) for rank in shown]
    return axis


def choose_labels(is_named: Sequence[bool]) -> list[int]:
    """Choose the rows that bear a label; where there is no room for all, the named ones first, then every so many."""
    if len(is_named) <= MAX_LABELS:
        return list(range(len(is_named)))
    apart = -(-len(is_named) // FEWER_LABELS)
    chosen: list[int] = []
    for row in (*(row for row, named in enumerate(is_named) if named), *range(0, len(is_named), apart)):
        if all(abs(row - other) >= apart for other in chosen):
            chosen.append(row)
    return sorted(chosen)


def columns_for(n_ranks: int) -> int:
    """Return how many columns a heat map with a row a rank may have, so that browsers draw it without delay."""
    return min(MAX_COLUMNS, max(MAX_CELLS // max(n_ranks, 1), FEWEST_COLUMNS))


def height_of(n_ranks: int) -> int:
    """Return the height of a figure with a row a rank, px."""
    return min(max(ROW_PX * n_ranks + 110, LEAST_PX), MOST_PX)
