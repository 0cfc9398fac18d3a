"""Who waits for whom: all pairs of a group, step by step, and the way that the end of one step waited for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dprankdiag.model.blame import Link
from dprankdiag.views.figures.base import (
    CALM,
    IDLE,
    PURPLE,
    SEQUENTIAL,
    TRANSFER,
    WORK,
    choose_unit,
    height_of,
    make_figure,
    rank_axis,
)
from dprankdiag.views.figures.waits import WaitGrid, draw_grid

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FloatArray = np.ndarray[Any, np.dtype[np.float64]]

UNKNOWN = "not known"
MOST_LINKS = 1_500
"""Links of a chain that are drawn: of more those that take longest."""


def draw_pairs(
    waiting: Sequence[int], blamed: Sequence[int], caused_ns: FloatArray, named: Collection[int], usual_ns: float
) -> Figure:
    """Draw how long each rank (row) waits because of each other (column).

    Args:
        caused_ns: `(n_waiting, n_blamed)` a step.
        named: ranks that findings name.
        usual_ns: length of a usual step.
    """
    from plotly import graph_objects

    longest = max(float(caused_ns.max(initial=0.0)), CALM * usual_ns)
    size, unit = choose_unit(longest)
    trace = graph_objects.Heatmap(
        z=(caused_ns / size).astype(np.float32),
        x=[str(rank) for rank in blamed],
        y=[str(rank) for rank in waiting],
        colorscale=SEQUENTIAL,
        zmin=0,
        zmax=max(longest / size, 1e-9),
        colorbar={"title": {"text": f"wait a step ({unit})", "side": "right"}, "thickness": 14},
        hovertemplate=f"rank %{{y}} waits %{{z:.4g}} {unit} a step<br>because of rank %{{x}}<extra></extra>",
    )
    across = rank_axis(blamed, named) | {"autorange": True, "title": {"text": "because of rank"}}
    down = rank_axis(waiting, named) | {"title": {"text": "rank that waits"}}
    return make_figure([trace], height_of(len(waiting)), xaxis=across, yaxis=down)


def draw_blame_steps(grid: WaitGrid, named: Collection[int], usual_ns: float = 0.0) -> Figure:
    """Draw what each rank makes the others wait in each step; whoever gates the group is the bright line.

    Args:
        grid: its waits are the mean of the others' because of the rank.
        named: ranks that findings name.
        usual_ns: length of a usual step.
    """
    longest = float(grid.wait_ns.max(initial=0.0))
    says = "because of rank %{{y}} the others wait<br>%{{z:.4g}} {unit} each, {label} %{{x}}<extra></extra>"
    return draw_grid(grid, named, max(longest, CALM * usual_ns), scale="others wait a step", says=says)


def draw_chain(links: Sequence[Link], names: Sequence[str], named: Collection[int]) -> Figure:
    """Draw the way that the end of a step waited for, from rank to rank.

    Args:
        links: in order of time; of each, work is drawn before idle time, whatever their order was.
        names: of the links' meetings, fit for a label.
        named: ranks that findings name.
    """
    from plotly import graph_objects

    start_ns = links[0].start_ns
    size, unit = choose_unit(links[-1].end_ns - start_ns)
    chosen = sorted(range(len(links)), key=lambda k: links[k].start_ns - links[k].end_ns)[:MOST_LINKS]
    parts: dict[str, list[tuple[int, int, int]]] = {"work": [], "idle": [], "in the collective": []}
    for row in sorted(chosen):
        link, length = links[row], links[row].end_ns - links[row].start_ns
        since = link.start_ns - start_ns
        if link.is_out:
            parts["in the collective"].append((row, since, length))
        else:
            parts["work"].append((row, since, link.work_ns))
            parts["idle"].append((row, since + link.work_ns, length - link.work_ns))
    colors = {"work": WORK, "idle": IDLE, "in the collective": TRANSFER}
    traces = [
        graph_objects.Bar(
            orientation="h",
            y=[_name(links[row]) for row, _, _ in bars],
            base=[since / size for _, since, _ in bars],
            x=[length / size for _, _, length in bars],
            customdata=[names[row] for row, _, _ in bars],
            name=part,
            marker={"color": colors[part]},
            hovertemplate=f"rank %{{y}}, {part}: %{{x:.4g}} {unit}<br>%{{customdata}}<extra></extra>",
        )
        for part, bars in parts.items()
    ]
    if late := [row for row in sorted(chosen) if is_inherited(links[row])]:
        traces.append(
            graph_objects.Scatter(
                y=[_name(links[row]) for row in late],
                x=[(links[row].start_ns - start_ns) / size for row in late],
                customdata=[[names[row], (links[row].inherited_ns or 0) / size] for row in late],
                mode="markers",
                name="released late: inherited",
                marker={"color": PURPLE, "symbol": "diamond", "size": 10},
                hovertemplate=f"rank %{{y}} left its meeting before %{{customdata[1]:.4g}} {unit} after the others"
                "<br>%{customdata[0]}<extra></extra>",
            )
        )
    ranks = sorted({link.rank for link in links if link.rank is not None})
    axis = rank_axis(ranks, named)
    if any(link.rank is None for link in links):
        for key in ("categoryarray", "tickvals", "ticktext"):
            axis[key] = [*axis[key], UNKNOWN]
    across = {"title": {"text": f"since the start of the step ({unit})"}, "zeroline": False}
    return make_figure(traces, height_of(len(ranks)), barmode="overlay", xaxis=across, yaxis=axis)


def is_inherited(link: Link) -> bool:
    """Tell whether a rank came late to a meeting more because it was released late than of its own."""
    return bool(link.behind_ns) and 2 * (link.inherited_ns or 0) > (link.behind_ns or 0)


def _name(link: Link) -> str:
    return UNKNOWN if link.rank is None else str(link.rank)
