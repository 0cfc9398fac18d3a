"""The kernels of a step, meeting by meeting: which of them makes the rank late that the others wait for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from dprankdiag.dashboard.elements import show_table
from dprankdiag.dashboard.pages.base import Elements, show_advice, show_graph, show_missing, show_words_of
from dprankdiag.dashboard.places import Place, write_address
from dprankdiag.dashboard.provider import FullStep
from dprankdiag.model.results import REPLAY_FAMILY
from dprankdiag.model.schema import Columns
from dprankdiag.units import format_ns
from dprankdiag.views.figures.kernels import Shown, choose_kernels, draw_kernels
from dprankdiag.views.kernel_times import (
    COLUMNS,
    Meeting,
    choose_meeting,
    compare_segment,
    compare_step,
    describe_late,
    find_longest_wait,
    list_cells,
    order_ranks,
)
from dprankdiag.views.panels import Group, Panel

TITLE, SECTION = "Kernels", "kernels"
BEFORE = "Kernels before the meeting"
WHOLE_STEP = "The same over the whole step"
RECORD = "nsys profile -t cuda,nvtx,osrt --cuda-graph-trace=node --trace-fork-before-exec=true"
NOT_RECORDED = f"The recording holds no kernels of these ranks. A recording with kernels does: {RECORD}."
NOT_SAVED = (
    "This bundle holds no kernels: an older version saved it. dprankdiag analyze TRACE -o run.dprank saves those of "
    "the worst step, dprankdiag dashboard TRACE shows those of every step."
)
WHOLE_GRAPHS = (
    "CUDA graphs were recorded as a whole: what runs inside one is not visible, so a replay is one bar. "
    f"To see their kernels record with {RECORD}."
)
MEANINGS = {
    "kernel": "Name as recorded, shortened; the whole name shows over it.",
    "calls": "How often it runs on the rank that comes last.",
    "last to come": "Its time on the rank that comes last, without the time in which it waited for its own stream.",
    "median of the others": "The same on the other ranks that meet here, and of these the median.",
    "longer by": "The difference of the two; negative where the rank that comes last is faster.",
}


def show_kernels(full: FullStep, place: Place, group: Group, step: int, names: Mapping[int, str]) -> Component:
    """Show the kernels between two meetings of a step, and what takes longer on the rank that comes last.

    Args:
        names: of the meetings by position.
    """
    parts: Elements = [html.H2(TITLE)]
    if full.kernels is None or full.meetings is None:
        return html.Section([*parts, show_missing(NOT_SAVED)])
    if not len(full.kernels["rank"]):
        return html.Section([*parts, show_missing(NOT_RECORDED)])
    positions = np.unique(full.meetings["position"]).tolist()
    longest = find_longest_wait(full.meetings)
    chosen = longest if place.meeting is None or place.meeting not in positions else place.meeting
    meeting = choose_meeting(full.meetings, chosen)
    here = Place("/timeline", group.number, step, place.rank)
    choice = html.Div(_list_choices(here, positions, chosen, longest, names), className="choice")
    parts.append(show_words_of("meeting", [choice]))
    if REPLAY_FAMILY in full.kernels["family"]:
        parts.append(html.P(show_advice(WHOLE_GRAPHS)))
    named = group.named | ({place.rank} if place.rank is not None else set())
    order = order_ranks(meeting, full.kernels, named)
    differences = compare_segment(full.kernels, meeting)
    if order:
        shown = choose_kernels(full.kernels, meeting, order)
        says = _describe_shown(shown, meeting, full.kernels, names)
        parts.append(show_graph(Panel("kernels", BEFORE, says, draw_kernels(shown, meeting, named))))
    parts.append(show_words_of("late", [html.P(describe_late(meeting, differences))]))
    parts.append(show_table("segment", BEFORE, COLUMNS, list_cells(differences), COLUMNS[2:], MEANINGS))
    whole = list_cells(compare_step(full.kernels, meeting))
    table = show_table("whole-step", WHOLE_STEP, COLUMNS, whole, COLUMNS[2:], MEANINGS)
    parts.append(html.Details([html.Summary(f"{WHOLE_STEP}; collectives with their waits"), table]))
    return html.Section(parts, id=SECTION)


def _name(names: Mapping[int, str], position: int) -> str:
    return names.get(position, f"meeting {position}")


def _list_choices(here: Place, positions: list[int], chosen: int, longest: int, names: Mapping[int, str]) -> Elements:
    """Show which meeting this is, and ways to others."""
    at = positions.index(chosen)

    def link(text: str, to: int) -> Component:
        address = write_address(Place(here.path, here.group, here.step, here.rank, to))
        return dcc.Link(text, href=address, className="button stay")

    return [
        link("← meeting before", positions[max(at - 1, 0)]),
        html.Span([html.Strong(_name(names, chosen)), f", meeting {chosen} of {positions[0]} to {positions[-1]}"]),
        link("meeting after →", positions[min(at + 1, len(positions) - 1)]),
        link("longest wait", longest),
    ]


def _describe_shown(shown: Shown, meeting: Meeting, kernels: Columns, names: Mapping[int, str]) -> str:
    says = f"From the meeting before of all these ranks to {_name(names, meeting.awaited)}. "
    if meeting.awaited != meeting.position:
        says += f"Work at {_name(names, meeting.position)} needs that call, which ran beside it. "
    says += f"The longest wait here is {format_ns(meeting.wait_ns)}."
    n_members, n_known = len(meeting.here["rank"]), len(np.intersect1d(kernels["rank"], meeting.here["rank"]))
    if n_known < n_members:
        says += f" Of {n_members} ranks the kernels of {n_known} were kept, those of the findings first."
    if len(shown.ranks) < n_known:
        says += (
            f" Of {n_known} ranks {len(shown.ranks)} are drawn: the last to come, those of the findings, the first to "
            "come, then the others."
        )
    if shown.left_out:
        says += f" {shown.left_out} more kernels, the shortest, are not drawn."
    return says
