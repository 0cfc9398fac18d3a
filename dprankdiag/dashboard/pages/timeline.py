"""One step and those beside it: what each rank does, who comes last to which meeting and so releases the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from dprankdiag.dashboard.elements import make_elements, show_table
from dprankdiag.dashboard.kernels import show_kernels
from dprankdiag.dashboard.pages.base import (
    GET_TRACE,
    Elements,
    Page,
    show_graph,
    show_heading,
    show_missing,
    show_panel,
    show_words,
)
from dprankdiag.dashboard.places import Place, write_address
from dprankdiag.dashboard.provider import Snapshot
from dprankdiag.model import results
from dprankdiag.model.schema import Columns, take_rows
from dprankdiag.units import format_ns
from dprankdiag.views.cards import write_command
from dprankdiag.views.figures.around import LABELS, PARTS, choose_around, draw_around
from dprankdiag.views.meetings import name_meetings, name_rank
from dprankdiag.views.panels import (
    Group,
    Panel,
    describe_longest,
    list_groups,
    make_step_panel,
    make_worst_panel,
    take_group_rows,
)
from dprankdiag.views.words import is_ledger

MEANINGS = {
    "attention": "Attention kernels and writes of the KV cache: what grows with the load of the rank.",
    "experts": "Grouped GEMMs of the experts.",
    "equal work": "Kernels with the same work on all ranks: they tell the speed of the chip.",
    "slowed by collectives": "How much longer work took because a collective ran beside it.",
    "idle: not launched yet": "The GPU stood ready, the host had not launched the next kernel.",
    "waiting": "From the rank's own arrival at a meeting to the last one's.",
    "transfer": "From the last arrival to the end of the collective.",
    "last to come": "The rank on whose arrival the collective began: it released the others.",
}
MEETINGS = "meetings"
"""Begins the key of a figure whose meetings can be clicked."""

TO_MEETING = "A click on a meeting shows its kernels below."
TO_PERFETTO = "dprankdiag analyze TRACE -o run.perfetto.json"
TO_KERNELS = (
    " writes the worst step with its kernels for ui.perfetto.dev, and an arrow from the late rank to each that waits "
    "for it; the page Export has it too."
)


def render(snapshot: Snapshot, place: Place) -> Elements:
    """Show the step asked for, or the worst one."""
    heading = show_heading("Timeline", "What each rank does in a step and in those beside it, and who releases whom.")
    groups = list_groups(snapshot.diagnosis, snapshot.tables)
    group = next((one for one in groups if one.number == place.group), groups[0] if groups else None)
    rows = take_group_rows(snapshot.tables, results.RANK_STEPS, group.number) if group else None
    steps = take_group_rows(snapshot.tables, results.STEPS, group.number) if group else None
    if group is None or rows is None or steps is None:
        return [heading, show_missing(_explain(snapshot))]
    worst = take_group_rows(snapshot.tables, results.WORST_STEPS, group.number)
    worst_step = int(worst["step"][0]) if worst is not None else None
    step = place.step if place.step is not None else worst_step
    step = int(np.clip(step or 0, steps["step"].min(), steps["step"].max()))
    parts: Elements = [heading, _show_choice(groups, group, steps, step, worst_step)]
    parts.append(_show_around(snapshot, place, group, rows, steps, step))
    full = snapshot.take_step(group.number, step)
    names = _name_positions(snapshot, group, steps, step)
    if full.meetings is not None:
        parts += _show_meetings(snapshot, group, full.meetings, step, step == worst_step, names)
        parts.append(show_kernels(full, place, group, step, names))
    elif worst_step is not None:
        link = dcc.Link(
            f"the worst step, {worst_step}", href=write_address(Place("/timeline", group.number, worst_step))
        )
        kept = "Meeting by meeting and kernel by kernel a bundle keeps only the worst step of a group: see "
        more = [". ", *make_elements(write_command("dprankdiag dashboard TRACE")), " shows every step so."]
        parts.append(html.P([html.Strong("Not shown. "), kept, link, *more], className="missing"))
    parts.append(html.P(["To look closer: ", *make_elements(write_command(TO_PERFETTO)), TO_KERNELS]))
    return [*parts, show_words(MEANINGS)]


def _explain(snapshot: Snapshot) -> str:
    if is_ledger(snapshot.diagnosis) or not snapshot.diagnosis.ranks:
        return GET_TRACE
    return "No steps could be compared; the page Verdict says why and what would help."


def _show_choice(groups: list[Group], group: Group, steps: Columns, step: int, worst: int | None) -> Component:
    """Show where in the recording this is, and ways to other steps and groups."""
    numbers = steps["step"]
    first, last = int(numbers.min()), int(numbers.max())
    row = int(np.searchsorted(numbers, step))
    length, since = steps["end_ns"][row] - steps["start_ns"][row], steps["start_ns"][row] - steps["start_ns"].min()

    def link(text: str, to: int) -> Component:
        return dcc.Link(text, href=write_address(Place("/timeline", group.number, to)), className="button")

    parts: Elements = [
        link("← earlier", max(step - 1, first)),
        html.Label("step ", htmlFor="step"),
        dcc.Input(id="step", type="number", min=first, max=last, step=1, value=step, debounce=True),
        link("later →", min(step + 1, last)),
        *([link("worst", worst)] if worst is not None else []),
        dcc.Store(id="step-shown", data={"group": group.number, "step": step}),
        html.Span(f"of {first} to {last}; it takes {format_ns(int(length))}, {format_ns(int(since))} after the first"),
    ]
    if len(groups) > 1:
        others = [
            html.Li(dcc.Link(one.label, href=write_address(Place("/timeline", one.number))))
            for one in groups
            if one is not group
        ]
        parts.append(html.Details([html.Summary(group.label), html.Ul(others)]))
    return html.Div(parts, className="choice")


def _show_around(snapshot: Snapshot, place: Place, group: Group, rows: Columns, steps: Columns, step: int) -> Component:
    named = group.named | ({place.rank} if place.rank is not None else set())
    around = choose_around(rows, steps, step, named)
    shown = sorted(set(around.rows["step"].tolist()))
    says = (
        f"Steps {shown[0]} to {shown[-1]}. " if len(shown) > 1 else f"Step {step}. "
    ) + "Inside a step the parts stand by kind, not by time."
    if len(around.ranks) < len(np.unique(rows["rank"])):
        says += f" Of {len(np.unique(rows['rank']))} ranks {len(around.ranks)} are drawn, those of the findings first."
    here = take_rows(rows, rows["step"] == step)
    here = take_rows(here, np.argsort(here["rank"]))
    cells = [
        (str(rank), *(format_ns(int(here[f"{part}_ns"][row])) for part in PARTS))
        for row, rank in enumerate(here["rank"].tolist())
    ]
    columns = ("rank", *(LABELS[part] for part in PARTS))
    panel = Panel("around", f"Step {step} and those beside it", says, None, "", columns, cells, columns)
    figure = Panel(panel.key, panel.title, says, draw_around(around, named))
    table = show_table("around", f"Step {step}", columns, cells, columns, MEANINGS)
    return html.Section(
        [
            html.H2(panel.title),
            show_graph(figure),
            html.Details([html.Summary(f"The numbers of step {step} as a table"), table]),
        ]
    )


def _show_meetings(
    snapshot: Snapshot, group: Group, meetings: Columns, step: int, is_worst: bool, names: Mapping[int, str]
) -> Elements:
    """Show a step meeting by meeting, and who came when."""
    key = f"{MEETINGS}-{group.number}-{step}"
    if is_worst:
        panel = make_worst_panel(snapshot.diagnosis, snapshot.tables, group)
        panel = replace(panel, key=key)
    else:
        title = f"Step {step}, meeting by meeting"
        panel = make_step_panel(key, title, describe_longest(meetings, names), meetings, names, group)
    columns = ("meeting", "first to come", "last to come", "apart", "waits behind it", "order of arrival")
    rows = list_arrivals(meetings, names)
    table = show_table("released", "Who released whom", columns, rows, columns[3:5], MEANINGS)
    says = "The last to come to a meeting releases the others; whoever comes late may have been released late before."
    return [
        show_panel(panel, note=TO_MEETING),
        html.Section([html.H2("Who released whom"), html.P(says), table]),
    ]


def _name_positions(snapshot: Snapshot, group: Group, steps: Columns, step: int) -> dict[int, str]:
    kind = int(steps["kind"][np.searchsorted(steps["step"], step)])
    named = name_meetings(snapshot.tables)
    return {position: name for (of, sort, position), name in named.items() if (of, sort) == (group.number, kind)}


MOST_ORDERED = 8


def list_arrivals(meetings: Columns, names: Mapping[int, str]) -> list[tuple[str, ...]]:
    """List the meetings of a step: who came first and last, how far apart, what that cost, and who came in between.

    Args:
        meetings: rows of `model.results.WORST_MEETINGS` of one group.
        names: of the meetings by position.
    """
    rows: list[tuple[str, ...]] = []
    for position in np.unique(meetings["position"]).tolist():
        mine = take_rows(meetings, meetings["position"] == position)
        mine = take_rows(mine, np.argsort(mine["arrival_ns"], kind="stable"))
        ranks = mine["rank"].tolist()
        apart = int(mine["arrival_ns"][-1] - mine["arrival_ns"][0])
        order = [*ranks[:3], "…", *ranks[-4:]] if len(ranks) > MOST_ORDERED else ranks
        rows.append(
            (
                names.get(position, f"meeting {position}"),
                name_rank(ranks[0]),
                name_rank(int(mine["last_rank"][-1])),
                format_ns(apart),
                format_ns(int(mine["wait_ns"].sum())),
                " ".join(map(str, order)),
            )
        )
    return rows


PAGE = Page("/timeline", "Timeline", render)
