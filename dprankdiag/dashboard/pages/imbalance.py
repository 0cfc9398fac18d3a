"""Uneven load against waiting: whether the one explains the other."""

from __future__ import annotations

from collections.abc import Iterator

from dprankdiag.dashboard.pages.base import RECORD_ALL, TELL_WAITS, Elements, Page, show_heading, show_panel, show_words
from dprankdiag.dashboard.places import Place
from dprankdiag.dashboard.provider import Snapshot
from dprankdiag.model import results
from dprankdiag.model.ledger_results import LEDGER_HISTORY
from dprankdiag.model.results import find_table
from dprankdiag.model.schema import take_rows
from dprankdiag.views.figures.imbalance import (
    BORDER_QUADRANTS,
    QUADRANTS,
    Imbalance,
    draw_imbalance,
    measure_history,
    measure_steps,
)
from dprankdiag.views.panels import MAX_GROUPS, Panel, list_groups, take_group_rows
from dprankdiag.views.words import is_ledger

MEANINGS = {
    QUADRANTS["load"]: "Route requests better: who waits, waits for the busiest rank.",
    QUADRANTS["other"]: "Not the load: look for a slow chip, a late host, a slow link or a hot expert.",
    QUADRANTS["harmless"]: "Uneven, but nobody waits for it: nothing to win.",
    QUADRANTS["even"]: "Nothing to do.",
}
BORDER_MEANINGS = {
    BORDER_QUADRANTS[
        "load"
    ]: "A host launches late, and the load is uneven besides: two causes, or one behind the other.",
    BORDER_QUADRANTS["other"]: "A host launches late; the load is not why.",
    BORDER_QUADRANTS[
        "harmless"
    ]: "GPUs may wait for the busiest rank inside steps, which only a recording of all ranks "
    f"shows: {RECORD_ALL} prints the calls that make one.",
    BORDER_QUADRANTS["even"]: "No late host and even load; the speed of the chips does not show here.",
}
TITLE = "Uneven load against waiting"


def render(snapshot: Snapshot, place: Place) -> Elements:
    """Show a point a step, or live a point a moment."""
    says = "Does uneven load explain the waiting, or is it something else?"
    panels = list(_draw_live(snapshot) if _is_live(snapshot) else _draw_steps(snapshot))
    panels = panels or [Panel("imbalance", "Each step", "", missing="No steps could be compared, or none were kept.")]
    return [
        show_heading(TITLE, says),
        *(show_panel(panel) for panel in panels),
        show_words(BORDER_MEANINGS if _is_live(snapshot) else MEANINGS),
    ]


def _is_live(snapshot: Snapshot) -> bool:
    return is_ledger(snapshot.diagnosis) or LEDGER_HISTORY.name in snapshot.tables


def _draw_steps(snapshot: Snapshot) -> Iterator[Panel]:
    for group in list_groups(snapshot.diagnosis, snapshot.tables)[:MAX_GROUPS]:
        rank_steps = take_group_rows(snapshot.tables, results.RANK_STEPS, group.number)
        steps = take_group_rows(snapshot.tables, results.STEPS, group.number)
        if rank_steps is None or steps is None:
            continue
        points = measure_steps(rank_steps, steps)
        says = (
            f"A point for each of {len(points.place)} steps. On the rising line the load explains all waiting: the "
            "ranks wait as long as the busiest one's attention takes beyond the mean. Above it they wait for something "
            "else."
        )
        title = f"Each step: {group.label}" if group.label else "Each step"
        yield _make_panel(f"imbalance-{group.number}", title, says, points)


def _draw_live(snapshot: Snapshot) -> Iterator[Panel]:
    history = find_table(snapshot.tables, LEDGER_HISTORY)
    if history is None:
        missing = "Saved numbers of engines hold one window. Ask the engine itself: dprankdiag dashboard TARGET."
        yield Panel("imbalance", TITLE, "", missing=missing)
        return
    for engine in dict.fromkeys(history["engine"].tolist()):
        points = measure_history(take_rows(history, history["engine"] == engine))
        title = f"Each moment{'' if engine in ('', 'default') else f': {engine}'}"
        key = f"imbalance-{engine}".replace(".", "-")
        if not len(points.place):
            yield Panel(key, title, "", missing=TELL_WAITS)
            continue
        says = (
            f"A point for each of {len(points.place)} moments, each over the window that ends then. Load is measured "
            f"by {points.measured}. The wait at the border of a step shows late hosts, not load that is uneven on the "
            "GPUs only."
        )
        yield _make_panel(key, title, says, points)


def _make_panel(key: str, title: str, says: str, points: Imbalance) -> Panel:
    counts = points.count()
    meanings = MEANINGS | BORDER_MEANINGS
    rows = [(points.quadrants[name], str(count), meanings[points.quadrants[name]]) for name, count in counts.items()]
    columns = ("quadrant", "points", "what it means")
    return Panel(key, title, says, draw_imbalance(points), "", columns, rows, ("points",))


PAGE = Page("/imbalance", "Imbalance", render)
