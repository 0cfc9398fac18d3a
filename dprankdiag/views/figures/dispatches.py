"""How full each choice of a router was, how full it was believed to be, and when it was chosen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dprankdiag.model.dispatches import Line, Track
from dprankdiag.views.figures.base import BLUE, VERMILION, choose_unit, escape_label, make_figure

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_TRACKS = 16
"""Rows of a figure; a row less high than its marks says nothing."""
_ROW_PX, _LEAST_PX = 78, 260
_GAP = 0.14
"""Of a row's height, between two rows."""


def draw_tracks(tracks: Sequence[Track], what: str, window_ns: tuple[int, int]) -> Figure:
    """Draw a row for each choice of one router: its truth as a line, what was believed as points, choices as marks.

    Args:
        tracks: of one router, `MOST_TRACKS` at most.
        what: what is chosen: rank or worker.
        window_ns: the time shown.
    """
    start_ns, end_ns = window_ns
    size, unit = choose_unit(float(max(end_ns, 1)))
    highest = max((value for track in tracks for value in _list_values(track, window_ns)), default=1)
    traces: list[Any] = []
    layout: dict[str, Any] = {}
    height = 1 / len(tracks)
    legend = next((place for place, track in enumerate(tracks) if _choose_marks(track, window_ns)), 0)
    for place, track in enumerate(tracks):
        number = "" if place == 0 else str(place + 1)
        traces += _draw(track, f"y{number}", what, size, unit, highest, window_ns, labels=place == legend)
        top = 1 - place * height
        layout[f"yaxis{number}"] = {
            "domain": [top - height * (1 - _GAP), top],
            "title": {"text": f"{what} {track.choice}", "standoff": 4},
            "range": [0, max(highest * 1.15, 1)],
            "nticks": 3,
            "zeroline": False,
            "gridcolor": "rgba(140,140,140,0.25)",
        }
    axis = {
        "title": {"text": f"time ({unit})"},
        "range": [start_ns / size, end_ns / size],
        "showgrid": False,
        "zeroline": False,
        "anchor": f"y{'' if len(tracks) == 1 else len(tracks)}",
    }
    return make_figure(traces, max(_ROW_PX * len(tracks) + 110, _LEAST_PX), xaxis=axis, **layout)


def _list_values(track: Track, window_ns: tuple[int, int]) -> Iterator[int]:
    for line in (track.true, track.believed):
        yield from (value for _, value in _cut(line, window_ns) if value is not None)


def _choose_marks(track: Track, window_ns: tuple[int, int]) -> list[int]:
    return [at_ns for at_ns in track.chosen_ns if window_ns[0] <= at_ns <= window_ns[1]]


def _cut(line: Line, window_ns: tuple[int, int]) -> list[tuple[int, int | None]]:
    """Cut a line to a window; the last value before it stands at its beginning."""
    start_ns, end_ns = window_ns
    points = list(zip(line.time_ns, line.value, strict=True))
    before = [(start_ns, value) for at_ns, value in points if at_ns < start_ns][-1:]
    return [*before, *((at_ns, value) for at_ns, value in points if start_ns <= at_ns <= end_ns)]


def _draw(
    track: Track, axis: str, what: str, size: float, unit: str, highest: int, window_ns: tuple[int, int], labels: bool
) -> Iterator[Any]:
    from plotly import graph_objects

    name = escape_label(f"{what} {track.choice}")
    true = _cut(track.true, window_ns)
    if true:
        # A step holds until the next; the last one until the figure ends.
        true.append((window_ns[1], true[-1][1]))
    believed = [
        (at, value) for at, value in _cut(track.believed, window_ns) if value is not None and at >= window_ns[0]
    ]
    chosen = _choose_marks(track, window_ns)
    common = {"yaxis": axis, "showlegend": labels}
    yield graph_objects.Scatter(
        x=[at / size for at, _ in true],
        y=[value for _, value in true],
        mode="lines",
        line={"color": BLUE, "width": 1.5, "shape": "hv"},
        name="true",
        legendgroup="true",
        hovertemplate=f"{name}, %{{x:.6g}} {unit}<br>has %{{y:,}} {track.measure}<extra></extra>",
        **common,
    )
    yield graph_objects.Scatter(
        x=[at / size for at, _ in believed],
        y=[value for _, value in believed],
        mode="markers",
        marker={"color": VERMILION, "size": 4},
        name="believed",
        legendgroup="believed",
        hovertemplate=f"{name}, %{{x:.6g}} {unit}<br>believed %{{y:,}} {track.measure}<extra></extra>",
        **common,
    )
    yield graph_objects.Scatter(
        x=[at / size for at in chosen],
        y=[max(highest * 1.1, 0.95)] * len(chosen),
        mode="markers",
        marker={"color": "#8C8C8C", "size": 7, "symbol": "line-ns-open"},
        name="chosen",
        legendgroup="chosen",
        hovertemplate=f"{name} chosen at %{{x:.6g}} {unit}<extra></extra>",
        **common,
    )
