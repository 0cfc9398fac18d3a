"""How long each rank waits in each step, as a heat map."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dprankdiag.model.schema import Columns
from dprankdiag.views.figures.base import CALM, SEQUENTIAL, choose_unit, height_of, make_figure, rank_axis

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@dataclass(frozen=True, slots=True)
class WaitGrid:
    """Waits by rank and step, or by runs of steps where there are too many.

    Attributes:
        ranks: `(n_ranks,)` rank numbers, ascending.
        first_step: `(n_columns,)` first step of each column.
        steps_each: steps in a column; the last may hold fewer.
        wait_ns: `(n_ranks, n_columns)` mean over the steps of a column.
    """

    ranks: np.ndarray[Any, Any]
    first_step: np.ndarray[Any, Any]
    steps_each: int
    wait_ns: np.ndarray[Any, np.dtype[np.float64]]


def grid_waits(rank_steps: Columns) -> WaitGrid:
    """Lay the waits of one group out by rank and step.

    Args:
        rank_steps: rows of `model.results.RANK_STEPS` of one group; every rank has every step.
    """
    ranks, row = np.unique(rank_steps["rank"], return_inverse=True)
    steps, column = np.unique(rank_steps["step"], return_inverse=True)
    wait = np.full((len(ranks), len(steps)), np.nan)
    wait[row, column] = rank_steps["wait_ns"]
    return WaitGrid(ranks, steps, 1, wait)


def count_shared(n_steps: int, max_columns: int) -> int:
    """Return how many steps share a column."""
    return max(-(-n_steps // max_columns), 1)


def bin_waits(grid: WaitGrid, max_columns: int) -> WaitGrid:
    """Let neighbouring steps share a column where there are more than `max_columns`."""
    each = count_shared(len(grid.first_step), max_columns)
    edges = np.arange(0, len(grid.first_step), each)
    counts = np.diff(np.append(edges, len(grid.first_step)))
    return WaitGrid(grid.ranks, grid.first_step[edges], each, np.add.reduceat(grid.wait_ns, edges, axis=1) / counts)


def draw_waits(grid: WaitGrid, named: Collection[int], usual_ns: float = 0.0) -> Figure:
    """Draw the waits; a rank that hardly waits where the others do is the one they wait for.

    Args:
        grid: of as many columns as shall be drawn.
        named: ranks that findings name.
        usual_ns: length of a usual step.
    """
    longest = float(np.nanmax(grid.wait_ns, initial=0.0))
    says = "rank %{{y}}, {label} %{{x}}<br>waits %{{z:.4g}} {unit}<extra></extra>"
    return draw_grid(grid, named, max(longest, CALM * usual_ns), scale="wait a step", says=says)


def draw_grid(grid: WaitGrid, named: Collection[int], longest_ns: float, *, scale: str, says: str) -> Figure:
    """Draw a time of each rank in each step as a heat map.

    Args:
        grid: of as many columns as shall be drawn.
        named: ranks that findings name.
        longest_ns: where the scale ends.
        scale: what the scale is of.
        says: shown of a cell; `{label}` stands for what a column is, `{unit}` for that of the times.
    """
    from plotly import graph_objects

    size, unit = choose_unit(longest_ns)
    label = "step" if grid.steps_each == 1 else f"first of {grid.steps_each} steps"
    trace = graph_objects.Heatmap(
        z=(grid.wait_ns / size).astype(np.float32),
        x=grid.first_step,
        y=[str(rank) for rank in grid.ranks.tolist()],
        colorscale=SEQUENTIAL,
        zmin=0,
        zmax=max(longest_ns / size, 1e-9),
        colorbar={"title": {"text": f"{scale} ({unit})", "side": "right"}, "thickness": 14},
        hovertemplate=says.format(label=label, unit=unit),
    )
    across = {"title": {"text": label}, "showgrid": False, "zeroline": False}
    ranks = grid.ranks.tolist()
    return make_figure([trace], height_of(len(ranks)), xaxis=across, yaxis=rank_axis(ranks, named))
