"""How long each rank of running engines waits at the border of a step, moment by moment."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from dprankdiag.model.schema import Columns
from dprankdiag.views.figures.base import (
    CALM,
    SEQUENTIAL,
    choose_unit,
    columns_for,
    escape_label,
    height_of,
    make_figure,
    rank_axis,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def draw_moments(history: Columns, named: Collection[int]) -> Figure:
    """Draw the waits of one engine.

    Args:
        history: rows of `model.ledger_results.LEDGER_HISTORY` of the engine.
        named: ranks that findings name.
    """
    from plotly import graph_objects

    ranks, row = np.unique(history["rank"], return_inverse=True)
    moments, column = np.unique(history["at_ns"], return_inverse=True)
    wait = np.full((len(ranks), len(moments)), np.nan)
    wait[row, column] = history["border_wait_ns"]
    kept = slice(-columns_for(len(ranks)), None)
    wait, moments = wait[:, kept], moments[kept]
    usual = float(np.nanmedian(history["step_time_ns"])) if not np.isnan(history["step_time_ns"]).all() else 0.0
    longest = max(float(np.nanmax(wait, initial=0.0)), CALM * usual)
    size, unit = choose_unit(longest)
    trace = graph_objects.Heatmap(
        z=(wait / size).astype(np.float32),
        x=_write_moments(moments),
        y=[str(rank) for rank in ranks.tolist()],
        colorscale=SEQUENTIAL,
        zmin=0,
        zmax=max(longest / size, 1e-9),
        colorbar={"title": {"text": f"wait a step ({unit})", "side": "right"}, "thickness": 14},
        hovertemplate=f"rank %{{y}}, %{{x|%H:%M:%S}} UTC<br>waits %{{z:.4g}} {unit}<extra></extra>",
    )
    axis = {"title": {"text": "time (UTC)"}, "type": "date", "showgrid": False, "zeroline": False}
    return make_figure([trace], height_of(len(ranks)), xaxis=axis, yaxis=rank_axis(ranks.tolist(), named))


def _write_moments(at_ns: np.ndarray[Any, Any]) -> list[str]:
    return [escape_label(str(moment)) for moment in at_ns.astype("datetime64[ns]").astype("datetime64[ms]")]
