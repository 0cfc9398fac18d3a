"""Who gates whom: for whom each rank waits, over which steps, and link by link in one of them."""

from __future__ import annotations

import numpy as np
from dash import dcc, html

from dprankdiag.dashboard.pages.base import (
    GET_TRACE,
    Elements,
    Page,
    explain_missing,
    show_heading,
    show_missing,
    show_panel,
    show_words,
)
from dprankdiag.dashboard.places import Place, write_address
from dprankdiag.dashboard.provider import Snapshot
from dprankdiag.model import results
from dprankdiag.model.blame import Link
from dprankdiag.pipelines.chain import trace_chain
from dprankdiag.units import format_ns
from dprankdiag.views.blame import (
    list_stretches,
    make_blame_steps_panel,
    make_chain_panel,
    make_pairs_panel,
    name_meeting,
)
from dprankdiag.views.meetings import name_meetings
from dprankdiag.views.panels import MAX_GROUPS, Group, Panel, list_groups, make_lost_panel, take_group_rows
from dprankdiag.views.words import is_ledger

BLAMED = "blamed"
"""Begins the key of a figure of which a click leads to the chain of a step."""

LONGEST_STRETCHES = 5
TO_CHAIN = "A click on a step shows its chain below."
MEANINGS = {
    "others wait because of it": "Mean wait of the other ranks a step that leads back to this rank: it took longer "
    "than they did on its way to a meeting, or out of one. All charges add up to all waiting.",
    "of their time": "That wait over the length of the steps.",
    "waits where it came last": "Mean wait of the others a step at meetings to which this rank came last, to blame or "
    "not.",
    "handed on": "The latter less the first: lateness that the rank had inherited, charged to others. Negative of a "
    "rank that makes others late.",
    "waits itself": "What the rank itself waits a step.",
    "behind": "By how much ranks on the way came to meetings later than the median of the others there.",
    "inherited": "Part of that by which they had left their meeting before later than the others.",
    "in collectives": "From the last arrival at a meeting to the rank's own way out of it.",
}
KEPT = "A bundle keeps the meetings of the worst step of a group only. dprankdiag dashboard TRACE shows every step so."


def render(snapshot: Snapshot, place: Place) -> Elements:
    """Show the account of lost time, who waits for whom, how that moves, and the chain of one step."""
    heading = show_heading(
        "Blame",
        "Who gates whom: the wait of each rank, charged to the rank that it leads back to, and what that costs.",
    )
    diagnosis, tables = snapshot.diagnosis, snapshot.tables
    reason = explain_missing(snapshot)
    lost = show_panel(make_lost_panel(diagnosis), reason=reason)
    if is_ledger(diagnosis) or not diagnosis.ranks:
        return [heading, show_missing(GET_TRACE), lost]
    groups = list_groups(diagnosis, tables)
    parts: Elements = [heading]
    for group in groups[:MAX_GROUPS] or [Group(0, "", frozenset())]:
        parts.append(show_panel(make_pairs_panel(diagnosis, tables, group), reason=reason, meanings=MEANINGS))
        moves = make_blame_steps_panel(diagnosis, tables, group)
        parts.append(show_panel(moves, note=TO_CHAIN if moves.figure is not None else "", reason=reason))
    parts += [*_show_chain(snapshot, place, groups), lost]
    return [*parts, show_words(MEANINGS)]


def _show_chain(snapshot: Snapshot, place: Place, groups: list[Group]) -> Elements:
    """Show the chain of the step asked for, or of the worst one."""
    group = next((one for one in groups if one.number == place.group), groups[0] if groups else None)
    steps = take_group_rows(snapshot.tables, results.STEPS, group.number) if group else None
    worst = take_group_rows(snapshot.tables, results.WORST_STEPS, group.number) if group else None
    if group is None or steps is None or worst is None:
        return []
    worst_step = int(worst["step"][0])
    step = worst_step if place.step is None else place.step
    step = int(np.clip(step, steps["step"].min(), steps["step"].max()))
    meetings = snapshot.take_step(group.number, step).meetings
    if meetings is None:
        title = f"The chain of blame of step {step}"
        to_worst = dcc.Link(f"The worst step, {worst_step}", href=_address(group, worst_step), className="stay")
        return [show_panel(Panel("chain", title, "", missing=KEPT)), html.P(to_worst)]
    kind = int(steps["kind"][np.searchsorted(steps["step"], step)])
    every = name_meetings(snapshot.tables)
    names = {at: name for (of, sort, at), name in every.items() if (of, sort) == (group.number, kind)}
    links = trace_chain(meetings)
    panel = make_chain_panel(links, names, group, step)
    return [show_panel(panel, meanings=MEANINGS), _list_ways(links, names, group, step, worst_step)]


def _list_ways(links: tuple[Link, ...], names: dict[int, str], group: Group, step: int, worst: int) -> html.Section:
    """Lead from the longest stretches of the chain to their kernels, and to other steps."""
    told = [stretch for stretch in list_stretches(links) if stretch[0].rank is not None]
    longest = sorted(told, key=lambda stretch: stretch[0].start_ns - stretch[-1].end_ns)[:LONGEST_STRETCHES]
    items = []
    for stretch in longest:
        link = max(stretch, key=lambda one: one.end_ns - one.start_ns)
        length = format_ns(stretch[-1].end_ns - stretch[0].start_ns)
        where = Place("/timeline", group.number, step, link.rank, link.position)
        text = f"Rank {link.rank}, {length} up to {name_meeting(stretch[-1], names)}"
        items.append(html.Li([dcc.Link(text, href=write_address(where)), ": its kernels on the timeline"]))
    others = [
        dcc.Link(text, href=_address(group, to), className="button stay")
        for text, to in (
            ("← step before", max(step - 1, 0)),
            ("step after →", step + 1),
            (f"worst step, {worst}", worst),
        )
    ]
    whole = dcc.Link(f"Step {step} on the timeline", href=write_address(Place("/timeline", group.number, step)))
    return html.Section(
        [html.Div(others, className="choice"), html.H3("Longest stretches of the chain"), html.Ul(items), html.P(whole)]
    )


def _address(group: Group, step: int) -> str:
    return write_address(Place("/blame", group.number, step))


PAGE = Page("/blame", "Blame", render)
