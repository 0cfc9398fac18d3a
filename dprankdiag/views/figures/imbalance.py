"""Uneven load against waiting: where the one explains the other, and where it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dprankdiag.model.ledger_results import LEDGER_HISTORY
from dprankdiag.model.schema import Columns
from dprankdiag.views.figures.base import BLUE, GREY, make_figure

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FloatArray = np.ndarray[Any, np.dtype[np.float64]]

MAX_POINTS = 2000
AWAY_PX = 4
"""Names of quadrants keep so far from the axes and their numbers."""

WAIT_BOUND = 0.03
"""Share of the time from which a loss is a warning."""

SHARE_BOUND = 0.03
RATIO_BOUND = 1.5
"""Largest over mean load from which it is a warning where nothing tells what that costs."""

QUADRANTS = {
    "even": "even, no waiting",
    "load": "uneven load and waiting",
    "other": "waiting without uneven load",
    "harmless": "uneven load without waiting",
}
BORDER_QUADRANTS = {
    "even": "even, no waiting at borders",
    "load": "uneven load and a late host",
    "other": "a late host at even load",
    "harmless": "uneven load, its cost not seen here",
}
"""Where only waits at borders of steps are told: they show late hosts, and nothing of what uneven load costs on "
"GPUs."""


@dataclass(frozen=True, slots=True)
class Imbalance:
    """One point a step or moment.

    Attributes:
        place: number of the step, or moment in UTC epoch ns.
        load: how uneven the load is, see `is_share`.
        wait: mean wait of the ranks as a share of the step.
        is_share: load is the attention time of the busiest rank beyond the mean, as a share of the step, and so in the
            measure of the wait; else it is the largest load over the mean.
        measured: what the load was taken from.
    """

    place: np.ndarray[Any, np.dtype[np.int64]]
    load: FloatArray
    wait: FloatArray
    is_share: bool
    measured: str

    @property
    def load_bound(self) -> float:
        """Tell from where the load is uneven."""
        return SHARE_BOUND if self.is_share else RATIO_BOUND

    @property
    def quadrants(self) -> dict[str, str]:
        """Name the quadrants."""
        return QUADRANTS if self.is_share else BORDER_QUADRANTS

    def count(self) -> dict[str, int]:
        """Count the points of each quadrant."""
        uneven, waiting = self.load >= self.load_bound, self.wait >= WAIT_BOUND
        found = {
            "even": ~uneven & ~waiting,
            "load": uneven & waiting,
            "other": ~uneven & waiting,
            "harmless": uneven & ~waiting,
        }
        return {name: int(mask.sum()) for name, mask in found.items()}


def measure_steps(rank_steps: Columns, steps: Columns) -> Imbalance:
    """Measure each step of one group of a trace.

    Args:
        rank_steps, steps: rows of `model.results.RANK_STEPS` and `STEPS` of the group.
    """
    numbers, row = np.unique(rank_steps["step"], return_inverse=True)
    n_ranks = np.bincount(row)
    attention = rank_steps["attention_ns"].astype(np.float64)
    largest = np.full(len(numbers), -np.inf)
    np.maximum.at(largest, row, attention)
    beyond = largest - np.bincount(row, attention) / n_ranks
    wait = np.bincount(row, rank_steps["wait_ns"].astype(np.float64)) / n_ranks
    length = (steps["end_ns"] - steps["start_ns"]).astype(np.float64)[np.searchsorted(steps["step"], numbers)]
    known = length > 0
    return Imbalance(
        numbers[known].astype(np.int64), beyond[known] / length[known], wait[known] / length[known], True, "attention"
    )


def measure_history(history: Columns) -> Imbalance:
    """Measure each moment of a running engine.

    Args:
        history: rows of `model.ledger_results.LEDGER_HISTORY` of the engine.
    """
    measured = next(
        (name for name in ("attention_pairs", "held_tokens", "running_requests") if not np.isnan(history[name]).all()),
        "running_requests",
    )
    place, row = np.unique(history["at_ns"], return_inverse=True)
    load, wait = history[measured], history["border_wait_ns"] / history["step_time_ns"]
    n_points = len(place)
    ratio, share = np.full(n_points, np.nan), _mean_by(row, wait, n_points)
    mean = _mean_by(row, load, n_points)
    largest = np.full(n_points, -np.inf)
    np.maximum.at(largest, row, np.nan_to_num(load, nan=-np.inf))
    np.divide(largest, mean, out=ratio, where=mean > 0)
    known = ~np.isnan(ratio) & ~np.isnan(share)
    meaning = {column.name: column.meaning for column in LEDGER_HISTORY.columns}[measured]
    return Imbalance(place[known], ratio[known], share[known], False, meaning)


def _mean_by(row: np.ndarray[Any, Any], values: FloatArray, n_points: int) -> FloatArray:
    known = ~np.isnan(values)
    counts = np.bincount(row[known], minlength=n_points)
    mean = np.full(n_points, np.nan)
    np.divide(np.bincount(row[known], values[known], n_points), counts, out=mean, where=counts > 0)
    return mean


def draw_imbalance(points: Imbalance) -> Figure:
    """Draw the points, the bounds of the quadrants and their names; of very many, every n-th."""
    from plotly import graph_objects

    kept = slice(None, None, max(-(-len(points.place) // MAX_POINTS), 1))
    scale = 100.0 if points.is_share else 1.0
    x, y = points.load[kept] * scale, points.wait[kept] * 100
    bound = points.load_bound * scale
    label = "step %{customdata}" if points.is_share else "%{customdata}"
    trace = graph_objects.Scatter(
        x=x,
        y=y,
        mode="markers",
        marker={"color": BLUE, "size": 9, "opacity": 0.85, "line": {"color": GREY, "width": 1}},
        customdata=points.place[kept].tolist() if points.is_share else _write_times(points.place[kept]),
        hovertemplate=f"{label}<br>load %{{x:.3g}}, wait %{{y:.3g}} %<extra></extra>",
        name="steps",
    )
    right = max(float(x.max(initial=0)) * 1.1, 2 * bound)
    left = min(0.0 if points.is_share else 1.0, float(x.min(initial=right)))
    top = max(float(y.max(initial=0)) * 1.1, 200 * WAIT_BOUND)
    lines = [_draw_line(x0=bound, x1=bound, y0=0, y1=top), _draw_line(x0=left, x1=right, y0=3, y1=3)]
    if points.is_share:
        end = min(right, top)
        lines.append({**_draw_line(x0=0, x1=end, y0=0, y1=end), "line": {"color": GREY, "width": 1}})
    title = (
        "attention of the busiest rank beyond the mean (% of the step)" if points.is_share else "largest load over mean"
    )
    corners = {"load": (1, 1), "other": (0, 1), "harmless": (1, 0)}
    names = [_name_corner(points.quadrants[name], *corner) for name, corner in corners.items()]
    # Under the rising line, which leaves from the corner itself.
    even = {"x": bound, "xref": "x", "xanchor": "right", "xshift": -AWAY_PX}
    names.append({**_name_corner(points.quadrants["even"], 0, 0), **even})
    return make_figure(
        [trace],
        440,
        showlegend=False,
        shapes=lines,
        annotations=names,
        xaxis={"title": {"text": title}, "range": [left, right], "zeroline": False, "automargin": True},
        yaxis={
            "title": {"text": f"mean wait{'' if points.is_share else ' at borders'} (% of the step)"},
            "range": [0, top],
            "zeroline": False,
            "automargin": True,
        },
    )


def _draw_line(**ends: float) -> dict[str, Any]:
    return {"type": "line", "line": {"color": GREY, "width": 1, "dash": "dot"}, **ends}


def _name_corner(text: str, x: int, y: int) -> dict[str, Any]:
    sides = ("left" if x == 0 else "right"), ("bottom" if y == 0 else "top")
    place = {"x": x, "y": y, "xref": "paper", "yref": "paper", "xanchor": sides[0], "yanchor": sides[1]}
    shift = {"xshift": AWAY_PX if x == 0 else -AWAY_PX, "yshift": AWAY_PX if y == 0 else -AWAY_PX}
    return {"text": f"<i>{text}</i>", "showarrow": False, **place, **shift}


def _write_times(at_ns: np.ndarray[Any, Any]) -> list[str]:
    return [f"{str(moment)[11:19]} UTC" for moment in at_ns.astype("datetime64[ns]").astype("datetime64[s]")]
