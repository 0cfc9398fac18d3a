"""Which rank takes longer than the others in which layer, as heat maps before and after the gather."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dprankdiag.model.results import COMPONENTS
from dprankdiag.model.schema import Columns
from dprankdiag.views.figures.base import CALM, DIVERGING, ROW_PX, choose_unit, make_figure, rank_axis

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_STACKED_PX = 1000

SIDES = {"pre": "before the gather", "post": "after the gather", "both": "whole layer", "none": "elsewhere"}


@dataclass(frozen=True, slots=True)
class LayerExcess:
    """Time between meetings beyond the ranks' median.

    Attributes:
        layers: `(n_layers,)` layer numbers, ascending.
        ranks: `(n_ranks,)` rank numbers, ascending.
        excess_ns: by side of the gather, `(n_ranks, n_layers)`; NaN where a layer has no meeting on that side.
        usual_ns: median time between two meetings.
    """

    layers: np.ndarray[Any, Any]
    ranks: np.ndarray[Any, Any]
    excess_ns: Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]
    usual_ns: float


def measure_excess(layers: Columns, side_of: Mapping[int, str]) -> LayerExcess:
    """Sum, over the meetings of a layer, what each rank takes beyond the ranks' median.

    Args:
        layers: rows of `model.results.LAYERS` of one kind of step of one group.
        side_of: side of the gather by position; a position without one is taken as "both".
    """
    numbers, column = np.unique(layers["layer"], return_inverse=True)
    ranks, row = np.unique(layers["rank"], return_inverse=True)
    segment = np.sum([layers[f"{name}_ns"] for name in COMPONENTS], axis=0).astype(np.float64)
    usual = float(np.median(segment))
    excess = {}
    sides = np.array([side_of.get(position, "both") for position in layers["position"].tolist()])
    for position in np.unique(layers["position"]):
        here = layers["position"] == position
        segment[here] -= np.median(segment[here])
    for side in SIDES:
        here = sides == side
        if here.any():
            total = np.zeros((len(ranks), len(numbers)))
            np.add.at(total, (row[here], column[here]), segment[here])
            total[:, np.setdiff1d(np.arange(len(numbers)), column[here])] = np.nan
            excess[side] = total
    return LayerExcess(numbers, ranks, excess, usual)


def draw_layers(excess: LayerExcess, named: Collection[int]) -> Figure:
    """Draw one heat map for each side of the gather, on one scale around zero.

    Args:
        named: ranks that findings name.
    """
    largest = max(float(np.nanmax(np.abs(values), initial=0.0)) for values in excess.excess_ns.values())
    largest = max(largest, CALM * excess.usual_ns)
    size, unit = choose_unit(largest)
    bound = max(largest / size, 1e-9)
    n_rows = len(excess.excess_ns)
    gap = 0.16 / n_rows
    share = (1 - gap * (n_rows - 1)) / n_rows
    traces: list[Any] = []
    layout: dict[str, Any] = {"annotations": []}
    for place, side in enumerate(excess.excess_ns):
        top = 1 - place * (share + gap)
        suffix = "" if place == 0 else str(place + 1)
        traces.append(_draw_side(excess, side, suffix, size, unit))
        layout["annotations"].append(_write_label(SIDES[side], top))
        layout |= _lay_axes(excess.ranks.tolist(), named, suffix, (max(top - share, 0.0), top), place == n_rows - 1)
    title = {"text": f"beyond the median ({unit})", "side": "right"}
    layout["coloraxis"] = {
        "colorscale": DIVERGING,
        "cmin": -bound,
        "cmax": bound,
        "colorbar": {"title": title, "thickness": 14},
    }
    height = min(max(n_rows * (ROW_PX * len(excess.ranks) + 40) + 90, 280), MOST_STACKED_PX)
    return make_figure(traces, height, **layout)


def _draw_side(excess: LayerExcess, side: str, suffix: str, size: float, unit: str) -> Any:
    from plotly import graph_objects

    return graph_objects.Heatmap(
        z=(excess.excess_ns[side] / size).astype(np.float32),
        x=excess.layers.tolist(),
        y=[str(rank) for rank in excess.ranks.tolist()],
        xaxis=f"x{suffix}",
        yaxis=f"y{suffix}",
        coloraxis="coloraxis",
        hovertemplate=f"rank %{{y}}, layer %{{x}}, {SIDES[side]}<br>%{{z:+.3g}} {unit}<extra></extra>",
    )


def _write_label(text: str, top: float) -> dict[str, Any]:
    place = {"x": 0, "y": top, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    return {"text": text, "showarrow": False, **place}


def _lay_axes(
    ranks: Sequence[int], named: Collection[int], suffix: str, domain: tuple[float, float], is_bottom: bool
) -> dict[str, Any]:
    """Describe the axes of one of the stacked heat maps; only the lowest shows its layers."""
    layers = {
        "title": {"text": "layer" if is_bottom else ""},
        "type": "category",
        "anchor": f"y{suffix}",
        "matches": "x" if suffix else None,
        "showticklabels": is_bottom,
        "showgrid": False,
    }
    return {
        f"xaxis{suffix}": layers,
        f"yaxis{suffix}": {**rank_axis(ranks, named), "domain": domain, "anchor": f"x{suffix}"},
    }
