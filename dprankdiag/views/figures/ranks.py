"""What each rank's time consists of, as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dprankdiag.model.ranks import Rank
from dprankdiag.views.figures.base import IDLE, TRANSFER, WAIT, WORK, choose_unit, escape_label, make_figure

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_RANKS = 256


def draw_ranks(ranks: Sequence[Rank]) -> Figure:
    """Draw work, wait, transfer and idle time of ranks whose times are known."""
    from plotly import graph_objects

    single = len({rank.engine for rank in ranks}) == 1
    labels = [escape_label(str(rank.rank) if single else f"{rank.engine} {rank.rank}") for rank in ranks]
    parts = (
        ("work", WORK, [rank.work_ns or 0 for rank in ranks]),
        ("wait", WAIT, [rank.wait_ns or 0 for rank in ranks]),
        ("transfer", TRANSFER, [rank.transfer_ns or 0 for rank in ranks]),
        ("idle", IDLE, [rank.idle_ns or 0 for rank in ranks]),
    )
    size, unit = choose_unit(max((max(values) for _, _, values in parts), default=0))
    traces = [
        graph_objects.Bar(
            x=labels,
            y=[value / size for value in values],
            name=name,
            marker={"color": color, "pattern": {"shape": "/" if name == "wait" else ""}},
            hovertemplate=f"rank %{{x}}: {name} %{{y:.4g}} {unit}<extra></extra>",
        )
        for name, color, values in parts
    ]
    return make_figure(
        traces,
        340,
        barmode="stack",
        bargap=0.3,
        xaxis={"title": {"text": "rank"}, "type": "category", "automargin": True, "showgrid": False},
        yaxis={"title": {"text": f"time in the analysed steps ({unit})"}, "automargin": True},
    )
