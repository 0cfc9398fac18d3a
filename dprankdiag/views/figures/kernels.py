"""The kernels between two meetings, a track a rank, coloured by what they do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dprankdiag.model.results import REPLAY_FAMILY
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
    escape_label,
    height_of,
    make_figure,
    rank_axis,
)
from dprankdiag.views.figures.timeline import MAX_BARS
from dprankdiag.views.kernel_names import shorten_names
from dprankdiag.views.kernel_times import Meeting

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_TRACKS = 16
MOST_STREAMS = 4
TRACK = 0.8
"""Share of a track's room that bars fill."""

WAITING, TRANSFER = "waiting in a collective", "collective"
LOOKS = {
    "attention": (BLUE, ""),
    "experts": (VERMILION, ""),
    "dense GEMM": (PURPLE, ""),
    "norm, activation, routing": ("#56B4E9", ""),
    "sampling, memory": ("#F0E442", ""),
    "other": (GREY, ""),
    "CUDA graph": (GREY, "x"),
    WAITING: (ORANGE, "/"),
    TRANSFER: (GREEN, ""),
}
_LOOK_OF = {
    "attention": "attention",
    "kv_write": "attention",
    "moe_expert": "experts",
    "gemm": "dense GEMM",
    "router": "norm, activation, routing",
    "norm": "norm, activation, routing",
    "activation": "norm, activation, routing",
    "quant": "norm, activation, routing",
    "sampling": "sampling, memory",
    "memory": "sampling, memory",
    REPLAY_FAMILY: "CUDA graph",
    "collective": TRANSFER,
    "dispatch": TRANSFER,
    "combine": TRANSFER,
    "notify": TRANSFER,
}


@dataclass(frozen=True, slots=True)
class Shown:
    """The kernels there is room for.

    Attributes:
        bars: rows of `model.results.STEP_KERNELS` and the `look` of each; calls are cut where their wait ends.
        ranks: drawn, in order.
        left_out: shorter bars of these ranks that are not drawn.
    """

    bars: Columns
    ranks: tuple[int, ...]
    left_out: int


def choose_kernels(kernels: Columns, meeting: Meeting, order: Sequence[int]) -> Shown:
    """Choose what to draw of a meeting and the segments before it.

    Args:
        kernels: rows of `model.results.STEP_KERNELS` of the step.
        order: ranks by importance (see `kernel_times.order_ranks`).
    """
    parts: list[Columns] = []
    ranks: list[int] = []
    for rank in order[:MOST_TRACKS]:
        bars = _list_bars(kernels, meeting, rank)
        if parts and sum(len(part["look"]) for part in parts) + len(bars["look"]) > MAX_BARS:
            break
        parts.append(bars)
        ranks.append(rank)
    bars = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
    longest = np.argsort(bars["start_ns"] - bars["end_ns"], kind="stable")[:MAX_BARS] if bars else np.empty(0, int)
    return Shown(take_rows(bars, np.sort(longest)), tuple(sorted(ranks)), len(bars.get("look", ())) - len(longest))


def _list_bars(kernels: Columns, meeting: Meeting, rank: int) -> Columns:
    """List a rank's bars from its leaving the meeting before to its leaving this one, calls cut where they wait."""
    at = int(np.searchsorted(meeting.here["rank"], rank))
    begin, end = int(meeting.here["start_ns"][at]), int(meeting.here["end_ns"][at])
    mine = (kernels["rank"] == rank) & (kernels["end_ns"] > begin) & (kernels["start_ns"] < end)
    rows = take_rows(kernels, mine)
    look = np.array([_LOOK_OF.get(family, "other") for family in rows["family"].tolist()], object)
    own = take_rows(meeting.between, meeting.between["rank"] == rank)
    number = np.minimum(np.searchsorted(own["end_ns"], rows["end_ns"]), len(own["end_ns"]) - 1)
    released = (own["arrival_ns"] + own["wait_ns"])[number]
    waits = (look == TRANSFER) & (rows["start_ns"] < released)
    whole = {**rows, "look": np.where(waits, WAITING, look)}
    whole["end_ns"] = np.where(waits, np.minimum(rows["end_ns"], released), rows["end_ns"])
    rest = waits & (rows["end_ns"] > released)
    after = take_rows({**rows, "look": look}, rest)
    after["start_ns"] = released[rest]
    return {name: np.concatenate([whole[name], after[name]]) for name in whole}


def draw_kernels(shown: Shown, meeting: Meeting, named: Collection[int]) -> Figure:
    """Draw the kernels; streams of a rank share its track.

    Args:
        named: ranks that findings name.
    """
    from plotly import graph_objects

    here = take_rows(meeting.here, np.isin(meeting.here["rank"], shown.ranks))
    origin = int(here["start_ns"].min())
    length = float(here["end_ns"].max() - origin)
    size, unit = choose_unit(length)
    place, n_places = _place_streams(shown.bars)
    width = TRACK / n_places
    traces = []
    for look, (color, pattern) in LOOKS.items():
        rows = np.flatnonzero(shown.bars["look"] == look)
        if not len(rows):
            continue
        mine = take_rows(shown.bars, rows)
        traces.append(
            graph_objects.Bar(
                orientation="h",
                y=[str(rank) for rank in mine["rank"].tolist()],
                base=(mine["start_ns"] - origin) / size,
                x=(mine["end_ns"] - mine["start_ns"]) / size,
                offset=place[rows] * width - TRACK / 2,
                width=np.full(len(rows), width),
                marker={"color": color, "pattern": {"shape": pattern}, "line": {"width": 0}},
                name=look,
                customdata=_describe(mine, origin),
                hovertemplate="rank %{y}: %{customdata}<extra></extra>",
            )
        )
    last = (int(here["arrival_ns"].max()) - origin) / size
    line = {"type": "line", "xref": "x", "yref": "paper", "x0": last, "x1": last, "y0": 0, "y1": 1}
    title = f"time ({unit}); the last comes at the dotted line"
    return make_figure(
        traces,
        height_of(len(shown.ranks)) + 20,
        barmode="overlay",
        bargap=1 - TRACK,
        shapes=[line | {"line": {"color": GREY, "width": 1, "dash": "dot"}}],
        xaxis={"title": {"text": title}, "zeroline": False, "range": [0, length / size]},
        yaxis=rank_axis(list(shown.ranks), named),
    )


def _place_streams(bars: Columns) -> tuple[np.ndarray[Any, Any], int]:
    """Give every bar the place of its stream in its rank's track, that with most work first; and count the places."""
    place = np.zeros(len(bars["rank"]), np.int64)
    is_work = (bars["look"] != WAITING) & (bars["look"] != TRANSFER)
    for rank in np.unique(bars["rank"]):
        rows = np.flatnonzero(bars["rank"] == rank)
        streams, index = np.unique(bars["stream"][rows], return_inverse=True)
        counts = np.bincount(index, is_work[rows])
        order = np.empty(len(streams), np.int64)
        order[np.argsort(-counts, kind="stable")] = np.arange(len(streams))
        place[rows] = np.minimum(order[index], MOST_STREAMS - 1)
    return place, int(place.max(initial=0)) + 1


def _describe(bars: Columns, origin: int) -> list[str]:
    short = shorten_names(list(dict.fromkeys(bars["name"].tolist())))
    told = (bars[name].tolist() for name in ("name", "family", "stream", "start_ns", "end_ns"))
    return [
        f"{format_ns(end - start)} from {format_ns(start - origin)} on<br>"
        f"{escape_label(short[name])}<br>{escape_label(family)}, stream {stream}"
        for name, family, stream, start, end in zip(*told, strict=True)
    ]
