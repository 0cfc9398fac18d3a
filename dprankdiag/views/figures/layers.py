"""Which rank takes longer than the others in which layer, as heat maps before and after the gather."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dprankdiag.model.results import COMPONENTS
from dprankdiag.model.schema import Columns
from dprankdiag.views.figures.base import CALM, DIVERGING, ROW_PX, choose_unit, make_figure, rank_axis

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

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
    from plotly import graph_objects

    largest = max(float(np.nanmax(np.abs(values), initial=0.0)) for values in excess.excess_ns.values())
    largest = max(largest, CALM * excess.usual_ns)
    size, unit = choose_unit(largest)
    ranks, numbers = excess.ranks.tolist(), excess.layers.tolist()
    n_rows = len(excess.excess_ns)
    gap = 0.16 / max(n_rows, 1)
    share = (1 - gap * (n_rows - 1)) / n_rows
    layout: dict[str, Any] = {"annotations": []}
    traces = []
    for place, (side, values) in enumerate(excess.excess_ns.items()):
        suffix = "" if place == 0 else str(place + 1)
        top = 1 - place * (share + gap)
        traces.append(
            graph_objects.Heatmap(
                z=(values / size).astype(np.float32),
                x=numbers,
                y=[str(rank) for rank in ranks],
                xaxis=f"x{suffix}",
                yaxis=f"y{suffix}",
                coloraxis="coloraxis",
                hovertemplate=f"rank %{{y}}, layer %{{x}}, {SIDES[side]}<br>%{{z:+.3g}} {unit}<extra></extra>",
            )
        )
        is_bottom = place == n_rows - 1
        layout[f"xaxis{suffix}"] = {
            "title": {"text": "layer" if is_bottom else ""},
            "type": "category",
            "anchor": f"y{suffix}",
            "matches": "x" if place else None,
            "showticklabels": is_bottom,
            "showgrid": False,
        }
        bottom = max(top - share, 0.0)
        layout[f"yaxis{suffix}"] = {**rank_axis(ranks, named), "domain": [bottom, top], "anchor": f"x{suffix}"}
        layout["annotations"].append(
            {"text": SIDES[side], "x": 0, "y": top, "xref": "paper", "yref": "paper", "xanchor": "left"}
            | {"yanchor": "bottom", "showarrow": False}
        )
    bound = max(largest / size, 1e-9)
    layout["coloraxis"] = {
        "colorscale": DIVERGING,
        "cmin": -bound,
        "cmax": bound,
        "colorbar": {"title": {"text": f"beyond the median ({unit})", "side": "right"}, "thickness": 14},
    }
    height = min(max(n_rows * (ROW_PX * len(ranks) + 40) + 90, 280), 1000)
    return make_figure(traces, height, **layout)
