"""A few steps after each other, a track a rank: what each rank spends them on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dprankdiag.model.results import COMPONENTS
from dprankdiag.model.schema import Columns, take_rows
from dprankdiag.units import format_ns
from dprankdiag.views.figures.base import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    VERMILION,
    choose_unit,
    height_of,
    make_figure,
    rank_axis,
)
from dprankdiag.views.figures.timeline import MAX_BARS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PARTS = (*COMPONENTS, "wait", "transfer")
"""What a step of a rank consists of, in the order in which it is drawn."""

LABELS = {
    "attention": "attention",
    "expert": "experts",
    "probe": "equal work",
    "other": "other work",
    "contention": "slowed by collectives",
    "host": "idle: not launched yet",
    "rest": "idle",
    "wait": "waiting",
    "transfer": "transfer",
}
_LOOKS = {
    "attention": (BLUE, ""),
    "expert": (VERMILION, ""),
    "probe": (PURPLE, ""),
    "other": ("#56B4E9", ""),
    "contention": ("#F0E442", "."),
    "host": (GREY, "x"),
    "rest": (GREY, ""),
    "wait": (ORANGE, "/"),
    "transfer": (GREEN, ""),
}


@dataclass(frozen=True, slots=True)
class Around:
    """Steps around one, of the ranks there is room for.

    Attributes:
        rows: of `model.results.RANK_STEPS`.
        start_ns: of the step, one a row.
    """

    rows: Columns
    start_ns: np.ndarray[Any, np.dtype[np.int64]]
    step: int
    ranks: tuple[int, ...]


def choose_around(rank_steps: Columns, steps: Columns, step: int, named: Collection[int], most: int = 3) -> Around:
    """Choose the steps around one, as many as there is room for bars; of very many ranks the named and the first.

    Args:
        rank_steps, steps: rows of `model.results.RANK_STEPS` and `STEPS` of one group.
        most: steps before and after.
    """
    everyone = np.unique(rank_steps["rank"]).tolist()
    room = MAX_BARS // len(PARTS)
    ranks = sorted(sorted(everyone, key=lambda rank: (rank not in named, rank))[:room])
    beside = min(most, max(room // len(ranks) - 1, 0) // 2)
    near = np.abs(rank_steps["step"].astype(np.int64) - step) <= beside
    rows = take_rows(rank_steps, near & np.isin(rank_steps["rank"], ranks))
    start = steps["start_ns"][np.searchsorted(steps["step"], rows["step"])]
    return Around(rows, start, step, tuple(ranks))


def draw_around(around: Around, named: Collection[int]) -> Figure:
    """Draw the steps where they lie in time; inside a step parts stand by kind, not by time."""
    from plotly import graph_objects

    rows = around.rows
    origin = int(around.start_ns.min())
    offset = (around.start_ns - origin).astype(np.float64)
    ends = sum((rows[f"{part}_ns"].astype(np.float64) for part in PARTS), start=offset)
    size, unit = choose_unit(float(ends.max(initial=1.0)))
    traces = []
    for part in PARTS:
        length = rows[f"{part}_ns"].astype(np.float64)
        color, pattern = _LOOKS[part]
        if length.any():
            traces.append(
                graph_objects.Bar(
                    orientation="h",
                    y=[str(rank) for rank in rows["rank"].tolist()],
                    base=offset / size,
                    x=length / size,
                    marker={"color": color, "pattern": {"shape": pattern}, "line": {"width": 0}},
                    name=LABELS[part],
                    customdata=_describe(rows["step"].tolist(), length.tolist()),
                    hovertemplate=f"rank %{{y}}, {LABELS[part]}: %{{customdata}}<extra></extra>",
                )
            )
        offset = offset + length
    here = rows["step"] == around.step
    edges = [float(around.start_ns[here].min() - origin), float(ends[here].max())] if here.any() else []
    lines = [
        {"type": "line", "xref": "x", "yref": "paper", "x0": edge / size, "x1": edge / size, "y0": 0, "y1": 1}
        | {"line": {"color": GREY, "width": 1, "dash": "dot"}}
        for edge in edges
    ]
    return make_figure(
        traces,
        height_of(len(around.ranks)) + 20,
        barmode="overlay",
        bargap=0.25,
        shapes=lines,
        xaxis={"title": {"text": f"time ({unit}); the step lies between the dotted lines"}, "zeroline": False},
        yaxis=rank_axis(list(around.ranks), named),
    )


def _describe(steps: Sequence[int], lengths: Sequence[float]) -> list[str]:
    return [f"{format_ns(length)} of step {step}" for step, length in zip(steps, lengths, strict=True)]
