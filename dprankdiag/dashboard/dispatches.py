"""What gateway, controller and scheduler believed at each dispatch: in sum, over time, and row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dash import dcc, html
from dash.development.base_component import Component

from dprankdiag.dashboard.elements import show_table
from dprankdiag.dashboard.pages.base import Elements, show_panel
from dprankdiag.dashboard.places import Place, write_address
from dprankdiag.model.dispatches import Dispatch, LedgerRecord, LedgerRun, Track
from dprankdiag.views.dispatches import (
    DIFFER,
    OFF_BY,
    TOTALS_COLUMNS,
    choose_dispatches,
    count_shown,
    list_cells,
    list_columns,
    list_remarks,
    list_totals,
    tell_worst,
)
from dprankdiag.views.figures.dispatches import MOST_TRACKS, draw_tracks
from dprankdiag.views.panels import Panel

TITLE = "Three ledgers"
MOST_FIGURES = 3
MOST_ROWS = 1_000
MEANINGS = {
    "dispatch": "A request that was sent to a rank, past the ledgers of gateway, controller and scheduler.",
    "believes": "What the ledger held of the choice as it was made, in what its policy compares; a dash where unknown.",
    "age": "Since the rank wrote what was believed; a dash where the router goes by its own counts.",
    "off by": OFF_BY,
    "the rank has": "Requests sent to it that have not ended; tokens that its scheduler holds and has queued.",
    "to compute": "Tokens of prompts that wait there to be computed.",
    "the truth would take": "The best choice by the truth where another was made, and by how much it is better.",
    "demanded": "Choices of the request or of a health check, not of the policy; they are in no median.",
    "would differ": DIFFER,
    "by in all": "By how much the best choices are better by the truth, added up.",
}


def show_ledgers(record: LedgerRecord, place: Place) -> Elements:
    """Show what the ledgers of a record were worth, one of its deployments in full.

    Args:
        place: its group is the deployment to show.
    """
    number = place.group if place.group is not None and place.group < len(record.runs) else 0
    run = record.runs[number]
    heading = html.H2(f"{TITLE}: {record.title}" if record.title else TITLE)
    return [
        html.Section([heading, html.P(record.why), _sum_up(record), html.P(" ".join(list_remarks(record)))]),
        _list_choices(record, place, number),
        *_draw_all(run),
        _list_dispatches(run),
    ]


def _sum_up(record: LedgerRecord) -> Component:
    numbers = TOTALS_COLUMNS[2:]
    return show_table("ledger-totals", "Ledgers", TOTALS_COLUMNS, list_totals(record.runs), numbers, MEANINGS)


def _name_columns(columns: Sequence[tuple[str, str]]) -> list[str]:
    """Name columns by whose ledger they are of, and the heading."""
    return [": ".join(text for text in column if text) for column in columns]


def _list_choices(record: LedgerRecord, place: Place, number: int) -> Component:
    """Show which deployment this is, and the way to others."""
    links = [
        html.Strong(run.name)
        if at == number
        else dcc.Link(run.name, href=write_address(Place(place.path, at)), className="button stay")
        for at, run in enumerate(record.runs)
    ]
    return html.Div([html.Span("Deployment:"), *links], className="choice")


def _draw_all(run: LedgerRun) -> Iterator[Component]:
    routers = list(dict.fromkeys((track.ledger, track.worker) for track in run.tracks))
    for ledger, worker in routers[:MOST_FIGURES]:
        tracks = [track for track in run.tracks if (track.ledger, track.worker) == (ledger, worker)]
        yield show_panel(_draw(run, tracks, ledger, worker, several=len(routers) > 1))
    if len(routers) > MOST_FIGURES:
        left_out = ", ".join(f"{ledger} of worker {worker}" for ledger, worker in routers[MOST_FIGURES:])
        yield html.P(f"Not drawn: {left_out}.")


def _draw(run: LedgerRun, tracks: Sequence[Track], ledger: str, worker: int | None, several: bool) -> Panel:
    title = f"What the {ledger} believed" + (f" in worker {worker}" if several and worker is not None else "")
    measure = tracks[0].measure
    says = f"The line is the {measure} that {'a worker' if worker is None else 'a rank'} has; points are what the "
    says += f"{ledger} believed of it at each of its choices; marks on top are those in which it was chosen."
    drawn = tracks[:MOST_TRACKS]
    if len(drawn) < len(tracks):
        says += f" Of {len(tracks)} the first {len(drawn)} are drawn."
    rows = [_sum_up_track(track) for track in tracks]
    what = "worker" if worker is None else "rank"
    columns = (what, "chosen", f"most {measure}", f"most {measure} believed")
    figure = draw_tracks(drawn, what, _choose_window(run))
    return Panel(f"believed-{ledger.replace(' ', '-')}-{worker}", title, says, figure, "", columns, rows, columns[1:])


def _sum_up_track(track: Track) -> tuple[str, ...]:
    most = [
        max((value for value in line.value if value is not None), default=None) for line in (track.true, track.believed)
    ]
    return (str(track.choice), str(len(track.chosen_ns)), *("-" if value is None else f"{value:,}" for value in most))


def _choose_window(run: LedgerRun) -> tuple[int, int]:
    """Choose the time from the first to the last dispatch that a policy chose, and a tenth before and after."""
    free = [dispatch.time_ns for dispatch in run.dispatches if dispatch.router.reason == "policy"]
    times = free or [dispatch.time_ns for dispatch in run.dispatches]
    first, last = min(times, default=0), max(times, default=1)
    margin = max((last - first) // 10, 1)
    return max(first - margin, 0), last + margin


def _list_dispatches(run: LedgerRun) -> Component:
    columns = _name_columns(list_columns(run))
    chosen = choose_dispatches(run)
    shown: Sequence[Dispatch] = run.dispatches if len(run.dispatches) <= MOST_ROWS else chosen
    worst = show_table("dispatches", "Dispatches", columns, [list_cells(run, each) for each in chosen], columns[1:])
    every = show_table("every-dispatch", "All", columns, [list_cells(run, each) for each in shown], columns[1:])
    return html.Section(
        [
            html.H2("Dispatches"),
            html.P(f"{count_shown(chosen, run)} {' '.join(tell_worst(run))}"),
            worst,
            html.Details([html.Summary(count_shown(shown, run)), every]),
        ]
    )
