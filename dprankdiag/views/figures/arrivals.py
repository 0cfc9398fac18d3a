"""How late each rank comes to its meetings, as boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dprankdiag.model.schema import Columns, take_rows
from dprankdiag.views.figures.base import BLUE, choose_unit, make_figure

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_BOXES = 256


def draw_arrivals(arrivals: Columns) -> Figure:
    """Draw the lag of every rank behind the median arrival: a box from quarter to quarter, whiskers from 5 to 95 %.

    Args:
        arrivals: rows of `model.results.ARRIVALS` of one group; of more than MAX_BOXES ranks the latest are drawn.
    """
    from plotly import graph_objects

    latest = np.argsort(-arrivals["lag_p95_ns"], kind="stable")[:MAX_BOXES]
    shown = take_rows(arrivals, np.sort(latest))
    size, unit = choose_unit(float(np.abs(shown["lag_p95_ns"]).max(initial=0)))
    quantiles = {name: shown[f"lag_{name}_ns"] / size for name in ("p05", "p25", "p50", "p75", "p95")}
    trace = graph_objects.Box(
        x=[str(rank) for rank in shown["rank"].tolist()],
        lowerfence=quantiles["p05"],
        q1=quantiles["p25"],
        median=quantiles["p50"],
        q3=quantiles["p75"],
        upperfence=quantiles["p95"],
        marker={"color": BLUE},
        line={"width": 1.5},
        whiskerwidth=0.4,
        boxpoints=False,
        name="lag",
    )
    return make_figure(
        [trace],
        340,
        showlegend=False,
        xaxis={"title": {"text": "rank"}, "type": "category", "automargin": True, "showgrid": False},
        yaxis={"title": {"text": f"lag behind the median arrival ({unit})"}, "automargin": True},
    )
