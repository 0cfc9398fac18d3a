"""One step as a timeline, a track a rank: bars where they are few, else a picture of equal size."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dprankdiag.model.schema import Columns, take_rows
from dprankdiag.units import format_ns
from dprankdiag.views.figures.base import (
    IDLE,
    TRANSFER,
    WAIT,
    WORK,
    choose_unit,
    columns_for,
    escape_label,
    height_of,
    make_figure,
    rank_axis,
)
from dprankdiag.views.meetings import name_rank

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_BARS = 1800
"""Bars a browser draws and zooms without delay.

Source: measured with plotly.js 4.1 in Chromium: some hundred bars 0.1 s, 100,000 more than a minute.
"""

STATES = ("work", "idle", "wait", "transfer")
COLORS = dict(zip(STATES, (WORK, IDLE, WAIT, TRANSFER), strict=True))
LABELS = {
    "work": "segment, mostly work",
    "idle": "segment, mostly idle",
    "wait": "waiting for the last",
    "transfer": "transfer",
}


def list_spans(meetings: Columns) -> Columns:
    """Part every meeting into its segment, its wait and its transfer, leaving out what has no length.

    Args:
        meetings: rows of `model.results.WORST_MEETINGS` of one group.

    Returns:
        state (index into STATES), start_ns and end_ns, and row (index into the meetings).
    """
    arrival = meetings["arrival_ns"]
    released = arrival + meetings["wait_ns"]
    is_idle = 2 * meetings["work_ns"] < arrival - meetings["start_ns"]
    n = len(arrival)
    spans = {
        "state": np.concatenate([is_idle.astype(np.int8), np.full(n, 2, np.int8), np.full(n, 3, np.int8)]),
        "start_ns": np.concatenate([meetings["start_ns"], arrival, released]),
        "end_ns": np.concatenate([arrival, released, meetings["end_ns"]]),
        "row": np.tile(np.arange(n), 3),
    }
    return take_rows(spans, spans["end_ns"] > spans["start_ns"])


def draw_step(meetings: Columns, names: Mapping[int, str], named: Collection[int]) -> Figure:
    """Draw the step.

    Args:
        meetings: rows of `model.results.WORST_MEETINGS` of one group.
        names: of the meetings, by position.
        named: ranks that findings name.
    """
    spans = list_spans(meetings)
    origin = int(meetings["start_ns"].min())
    length = float(meetings["end_ns"].max() - origin)
    size, unit = choose_unit(length)
    ranks = np.unique(meetings["rank"]).tolist()
    if len(spans["row"]) <= MAX_BARS:
        traces = _draw_bars(meetings, spans, names, origin, size)
    else:
        traces = _draw_picture(meetings, spans, origin, size, unit)
    return make_figure(
        traces,
        height_of(len(ranks)) + 20,
        barmode="overlay",
        bargap=0.25,
        xaxis={"title": {"text": f"time in the step ({unit})"}, "zeroline": False, "range": [0, length / size]},
        yaxis=rank_axis(ranks, named),
    )


def _draw_bars(meetings: Columns, spans: Columns, names: Mapping[int, str], origin: int, size: float) -> list[Any]:
    from plotly import graph_objects

    traces = []
    for code, state in enumerate(STATES):
        mine = take_rows(spans, spans["state"] == code)
        rows = mine["row"]
        length = mine["end_ns"] - mine["start_ns"]
        traces.append(
            graph_objects.Bar(
                orientation="h",
                y=[str(rank) for rank in meetings["rank"][rows].tolist()],
                base=(mine["start_ns"] - origin) / size,
                x=length / size,
                marker={"color": COLORS[state], "line": {"width": 0}},
                name=LABELS[state],
                customdata=[
                    [_describe(meetings, names, row, ns), int(meetings["position"][row])]
                    for row, ns in zip(rows.tolist(), length.tolist(), strict=True)
                ],
                hovertemplate=f"rank %{{y}}: {state} %{{customdata[0]}}<extra></extra>",
            )
        )
    return traces


def _describe(meetings: Columns, names: Mapping[int, str], row: int, length_ns: int) -> str:
    position = int(meetings["position"][row])
    name = escape_label(names.get(position, f"meeting {position}"))
    return f"{format_ns(length_ns)}<br>{name}<br>last to come: {name_rank(int(meetings['last_rank'][row]))}"


def _draw_picture(meetings: Columns, spans: Columns, origin: int, size: float, unit: str) -> list[Any]:
    """Colour moments of equal distance on every track after what the rank does then."""
    from plotly import graph_objects

    ranks = np.unique(meetings["rank"])
    n_columns = columns_for(len(ranks))
    width = (int(meetings["end_ns"].max()) - origin) / n_columns
    moment = origin + (np.arange(n_columns) + 0.5) * width
    state = np.full((len(ranks), n_columns), np.nan, np.float32)
    position = np.full((len(ranks), n_columns), -1, np.int16)
    rank_of = meetings["rank"][spans["row"]]
    for track, rank in enumerate(ranks):
        mine = take_rows(spans, rank_of == rank)
        mine = take_rows(mine, np.argsort(mine["start_ns"], kind="stable"))
        index = np.searchsorted(mine["start_ns"], moment, side="right") - 1
        inside = (index >= 0) & (moment < mine["end_ns"][index])
        state[track, inside] = mine["state"][index[inside]]
        position[track, inside] = meetings["position"][mine["row"][index[inside]]]
    edges = [(code / len(STATES), (code + 1) / len(STATES), COLORS[name]) for code, name in enumerate(STATES)]
    picture = graph_objects.Heatmap(
        z=state,
        x=(moment - origin) / size,
        y=[str(rank) for rank in ranks.tolist()],
        customdata=position,
        zmin=-0.5,
        zmax=len(STATES) - 0.5,
        colorscale=[[place, color] for low, high, color in edges for place in (low, high)],
        showscale=False,
        ygap=2,
        hovertemplate=f"rank %{{y}}, %{{x:.4g}} {unit}<br>meeting %{{customdata}}<extra></extra>",
    )
    keys = [
        graph_objects.Scatter(
            x=[None], y=[None], mode="markers", marker={"color": COLORS[name], "symbol": "square"}, name=LABELS[name]
        )
        for name in STATES
    ]
    return [picture, *keys]
