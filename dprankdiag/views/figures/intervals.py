"""Numbers with the intervals they lie in, one below the other, about a line at nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dprankdiag.views.figures.base import BLUE, GREY, LEAST_PX, MOST_PX, PURPLE, VERMILION, escape_label, make_figure

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Sense = Literal["better", "worse", "neither", "bound"]
COLORS: dict[Sense, str] = {"better": BLUE, "worse": VERMILION, "neither": GREY, "bound": PURPLE}
SYMBOLS: dict[Sense, str] = {
    "better": "triangle-up",
    "worse": "triangle-down",
    "neither": "circle",
    "bound": "triangle-left",
}
ROW_PX = 34
SIZE_PX = 11
MARGIN = 0.06


@dataclass(frozen=True, slots=True)
class Bar:
    """A number with its interval.

    Attributes:
        label: unique in a figure.
        value: None where only the bounds are known; they must be then.
        low, high: bounds; None where they are not known.
        sense: whether it is clearly better or worse than nothing; or a bound that is no estimate.
        text: shown over it.
    """

    label: str
    value: float | None
    low: float | None
    high: float | None
    sense: Sense
    text: str


def draw_intervals(bars: Sequence[Bar], title: str, senses: dict[Sense, str]) -> Figure:
    """Draw numbers with their intervals, the first on top.

    Args:
        title: of the axis, with its unit.
        senses: what each sense is called.
    """
    from plotly import graph_objects

    traces = []
    for sense, name in senses.items():
        mine = [bar for bar in bars if bar.sense == sense]
        if not mine:
            continue
        middle = [_find_middle(bar) for bar in mine]
        above = [0.0 if bar.high is None else bar.high - at for bar, at in zip(mine, middle, strict=True)]
        below = [0.0 if bar.low is None else at - bar.low for bar, at in zip(mine, middle, strict=True)]
        traces.append(
            graph_objects.Scatter(
                x=middle,
                y=[escape_label(bar.label) for bar in mine],
                error_x={"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 2},
                customdata=[escape_label(bar.text) for bar in mine],
                mode="markers",
                name=name,
                marker={
                    "color": COLORS[sense],
                    "symbol": SYMBOLS[sense],
                    "size": [0 if bar.value is None else SIZE_PX for bar in mine],
                },
                hovertemplate="%{y}<br>%{customdata}<extra></extra>",
            )
        )
    labels = [escape_label(bar.label) for bar in bars]
    down = {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": labels,
        "autorange": "reversed",
        "automargin": True,
        "showgrid": True,
    }
    across = {"title": {"text": title}, "zeroline": True, "zerolinewidth": 2, "range": _find_range(bars)}
    height = min(max(ROW_PX * len(bars) + 120, LEAST_PX - 60), MOST_PX)
    return make_figure(traces, height, xaxis=across, yaxis=down)


def _find_middle(bar: Bar) -> float:
    """Find where a bar is hung up: at its number, or in the middle of its bounds."""
    return ((bar.low or 0.0) + (bar.high or 0.0)) / 2 if bar.value is None else bar.value


def _find_range(bars: Sequence[Bar]) -> list[float]:
    """Find a range that holds nothing, every number and every bound, with room for the marks."""
    ends = [0.0, *(end for bar in bars for end in (bar.low, bar.value, bar.high) if end is not None)]
    room = MARGIN * (max(ends) - min(ends)) or 1.0
    return [min(ends) - room, max(ends) + room]
