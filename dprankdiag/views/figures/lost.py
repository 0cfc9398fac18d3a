"""The account of lost time as a waterfall that closes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dprankdiag.model.diagnosis import Lost
from dprankdiag.views.figures.base import BLUE, GREEN, GREY, ORANGE, choose_unit, escape_label, make_figure

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def draw_lost(lost: Lost) -> Figure:
    """Draw causes and the unexplained up to the total, and jitter beside it.

    Args:
        lost: an account that could be computed.
    """
    from plotly import graph_objects

    size, unit = choose_unit(max(lost.total_ns or 0, lost.jitter_ns or 0))
    steps = [(escape_label(item.cause), item.lost_ns or 0) for item in lost.by_cause]
    steps.append(("unexplained", lost.unexplained_ns or 0))
    names = [name for name, _ in steps]
    values = [value / size for _, value in steps]
    waterfall = graph_objects.Waterfall(
        x=[*names, "total"],
        y=[*values, (lost.total_ns or 0) / size],
        measure=[*("relative" for _ in names), "total"],
        text=[f"{value:.3g} {unit}" for value in (*values, (lost.total_ns or 0) / size)],
        textposition="outside",
        cliponaxis=False,
        increasing={"marker": {"color": ORANGE}},
        decreasing={"marker": {"color": GREEN}},
        totals={"marker": {"color": BLUE}},
        connector={"line": {"color": GREY, "width": 1, "dash": "dot"}},
        hovertemplate="%{x}: %{text}<extra></extra>",
        name="lost",
    )
    traces = [waterfall]
    if lost.jitter_ns is not None:
        jitter = graph_objects.Bar(
            x=["jitter"],
            y=[lost.jitter_ns / size],
            text=[f"{lost.jitter_ns / size:.3g} {unit}"],
            textposition="outside",
            cliponaxis=False,
            marker={"color": GREY, "pattern": {"shape": "/"}},
            hovertemplate="jitter, not in the total: %{text}<extra></extra>",
            name="jitter",
        )
        traces.append(jitter)
    return make_figure(
        traces,
        340,
        showlegend=False,
        waterfallgap=0.4,
        bargap=0.4,
        xaxis={"type": "category", "automargin": True, "showgrid": False},
        yaxis={"title": {"text": f"lost time ({unit})"}, "rangemode": "tozero", "automargin": True},
    )
