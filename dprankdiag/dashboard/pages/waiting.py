"""Who waits, and when: the rank that the others wait for is the dark line in a bright field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from dprankdiag.dashboard.pages.base import (
    TELL_WAITS,
    Elements,
    Page,
    explain_missing,
    show_heading,
    show_panel,
    show_words,
)
from dprankdiag.dashboard.places import Place, write_address
from dprankdiag.dashboard.provider import Snapshot
from dprankdiag.model import results
from dprankdiag.model.diagnosis import Finding, TimeWindow
from dprankdiag.model.ledger_results import LEDGER_HISTORY
from dprankdiag.model.results import find_table
from dprankdiag.model.schema import Columns, take_rows
from dprankdiag.units import format_ns, format_ratio
from dprankdiag.views.figures.base import columns_for
from dprankdiag.views.figures.waits import count_shared
from dprankdiag.views.panels import Panel, list_groups, make_group_panels, take_group_rows
from dprankdiag.views.words import find_named, is_ledger

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]

LONGEST_STEPS = 8
TO_STEP = "Click a step to see it on the timeline, or take one of the longest from the list below."
MEANINGS = {
    "wait": "From a rank's own arrival at a meeting to the last rank's. Who waits least is who the others wait for.",
    "step": "Ordinal of the step in its lockstep group, in order of time.",
}


def render(snapshot: Snapshot, place: Place) -> Elements:
    """Show waits by rank and step, or live by rank and moment."""
    parts: Elements = [show_heading("Waiting", "Which rank waits for the others, in which step, and how long.")]
    if is_ledger(snapshot.diagnosis) or LEDGER_HISTORY.name in snapshot.tables:
        return [*parts, *(show_panel(panel) for panel in _draw_live(snapshot)), show_words(MEANINGS)]
    for panel in make_group_panels("waits", snapshot.diagnosis, snapshot.tables):
        group = int(panel.key.rpartition("-")[2])
        parts.append(show_panel(panel, note=TO_STEP, reason=explain_missing(snapshot)))
        if panel.figure is not None:
            parts.append(_list_longest(snapshot, group))
    for panel in make_group_panels("arrivals", snapshot.diagnosis, snapshot.tables):
        parts.append(show_panel(panel, reason=explain_missing(snapshot)))
    return [*parts, show_words(MEANINGS)]


def _list_longest(snapshot: Snapshot, group: int) -> Component:
    """List the steps in which the ranks wait longest, each leading to the timeline."""
    step, wait, length = measure_steps(snapshot, group)
    longest = np.argsort(-wait, kind="stable")[:LONGEST_STEPS].tolist()
    items = []
    for row in longest:
        link = dcc.Link(f"Step {step[row]}", href=write_address(Place("/timeline", group, int(step[row]))))
        share = format_ratio(wait[row] / length[row]) if length[row] > 0 else "-"
        items.append(html.Li([link, f": ranks wait {format_ns(float(wait[row]))} on average, {share} of it"]))
    return html.Section([html.H3("Steps with the longest waits"), html.Ul(items)])


def measure_steps(snapshot: Snapshot, group: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return the steps of a group, the mean wait of its ranks in each, and the step's length, ns."""
    rank_steps = take_group_rows(snapshot.tables, results.RANK_STEPS, group)
    steps = take_group_rows(snapshot.tables, results.STEPS, group)
    if rank_steps is None or steps is None:
        return np.empty(0, np.int64), np.empty(0), np.empty(0)
    numbers, row = np.unique(rank_steps["step"], return_inverse=True)
    wait = np.bincount(row, rank_steps["wait_ns"].astype(np.float64)) / np.bincount(row)
    length = (steps["end_ns"] - steps["start_ns"])[np.searchsorted(steps["step"], numbers)]
    return numbers.astype(np.int64), wait, length.astype(np.float64)


def find_group(snapshot: Snapshot, finding: Finding) -> int | None:
    """Find the lockstep group that a finding is about; None if none was saved."""
    groups = list_groups(snapshot.diagnosis, snapshot.tables)
    members = find_table(snapshot.tables, results.MEMBERS)
    if members is not None and finding.ranks:
        mine = members["group"][(members["engine"] == finding.engine) & (members["rank"] == finding.ranks[0])]
        return int(mine[0]) if len(mine) else None
    return groups[0].number if groups else None


def find_worst_step(snapshot: Snapshot, group: int, window: TimeWindow) -> int | None:
    """Find the step of a group in a window in which its ranks wait the largest share of it."""
    step, wait, length = measure_steps(snapshot, group)
    steps = take_group_rows(snapshot.tables, results.STEPS, group)
    if steps is None or not len(step):
        return None
    row = np.searchsorted(steps["step"], step)
    start, end = steps["start_ns"][row], steps["end_ns"][row]
    inside = (start < window.end_ns) & (end > window.start_ns)
    share = np.where(inside if inside.any() else True, wait / np.maximum(length, 1), -1.0)
    return int(step[int(share.argmax())])


def find_longest(snapshot: Snapshot, group: int, first: int) -> int:
    """Find the step with the longest mean wait in a column of the heat map, by the first step of the column."""
    rank_steps = take_group_rows(snapshot.tables, results.RANK_STEPS, group)
    step, wait, _ = measure_steps(snapshot, group)
    if rank_steps is None or first not in step:
        return first
    each = count_shared(len(step), columns_for(len(np.unique(rank_steps["rank"]))))
    row = int(np.searchsorted(step, first))
    return int(step[row + int(wait[row : row + each].argmax())])


def _draw_live(snapshot: Snapshot) -> Iterator[Panel]:
    from dprankdiag.views.figures.moments import draw_moments

    history = find_table(snapshot.tables, LEDGER_HISTORY)
    if history is None:
        missing = (
            "Saved numbers of engines hold one window, not its moments. To see them follow each other ask the engine: "
            "dprankdiag dashboard TARGET."
        )
        yield Panel("moments", "Wait per rank and moment", "", missing=missing)
        return
    for engine in dict.fromkeys(history["engine"].tolist()):
        mine = take_rows(history, history["engine"] == engine)
        title = f"Wait per rank and moment{'' if engine in ('', 'default') else f': {engine}'}"
        key = f"moments-{engine}".replace(".", "-")
        if np.isnan(mine["border_wait_ns"]).all():
            yield Panel(key, title, "", missing=TELL_WAITS)
            continue
        named = {rank for of_engine, rank in find_named(snapshot.diagnosis) if of_engine == engine}
        says = (
            "Mean wait at the border of a step over the window that ends at each moment. It shows late hosts, "
            "not load that is uneven on the GPUs only."
        )
        columns = ("rank", "wait now", "mean wait", "longest", "moments")
        yield Panel(key, title, says, draw_moments(mine, named), "", columns, _sum_ranks(mine), columns)


def _sum_ranks(history: Columns) -> list[tuple[str, ...]]:
    rows = []
    for rank in np.unique(history["rank"]).tolist():
        wait = history["border_wait_ns"][history["rank"] == rank]
        known = wait[~np.isnan(wait)]
        if len(known):
            cells = (format_ns(float(value)) for value in (known[-1], known.mean(), known.max()))
            rows.append((str(rank), *cells, str(len(known))))
    return rows


PAGE = Page("/waiting", "Waiting", render)
