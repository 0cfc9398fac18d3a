"""What the mean step consists of, before and after, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from dprankdiag.model.comparison import AccountRow
from dprankdiag.views.figures.base import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    VERMILION,
    choose_unit,
    escape_label,
    make_figure,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

EVEN, REST = BLUE, GREY
CAUSES = (ORANGE, VERMILION, PURPLE, GREEN)
PATTERNS = ("", "/", "\\", "x")
"""Tell more causes apart than there are colours."""


def draw_account(rows: Sequence[AccountRow]) -> Figure:
    """Draw the parts of the mean step on both sides; each bar is as long as the step.

    Args:
        rows: the last is the step of even ranks, the one before what is unexplained.
    """
    from plotly import graph_objects

    size, unit = choose_unit(max(sum(row.before_ns for row in rows), sum(row.after_ns for row in rows), 1))
    looks = cycle((color, pattern) for pattern in PATTERNS for color in CAUSES)
    *causes, rest, even = rows
    drawn = [(even, EVEN, ""), *((row, *look) for row, look in zip(causes, looks, strict=False)), (rest, REST, ".")]
    traces = [
        graph_objects.Bar(
            orientation="h",
            x=[row.before_ns / size, row.after_ns / size],
            y=["before", "after"],
            name=escape_label(row.name),
            marker={"color": color, "pattern": {"shape": pattern}},
            hovertemplate=f"{escape_label(row.name)}, %{{y}}: %{{x:.4g}} {unit}<extra></extra>",
        )
        for row, color, pattern in drawn
    ]
    across = {"title": {"text": f"of the mean step ({unit})"}, "zeroline": False}
    down = {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False}
    return make_figure(traces, 230, barmode="relative", bargap=0.35, xaxis=across, yaxis=down)
