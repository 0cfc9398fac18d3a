"""The figures of a page: each with what it shows in words, its numbers as a table, or the reason why it is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dprankdiag.model import results
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.results import find_table
from dprankdiag.model.schema import Columns, Table, take_rows
from dprankdiag.units import format_ns, format_ratio
from dprankdiag.views import words
from dprankdiag.views.base import Tables
from dprankdiag.views.ledgers import LEGEND, list_ledger_rows
from dprankdiag.views.ledgers import TITLE as LEDGER_TITLE
from dprankdiag.views.meetings import name_meetings, name_rank

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_GROUPS = 3
"""Lockstep groups drawn on one page, those of the findings first."""

MAX_NAMED_GROUPS = 8
MAX_TABLE_ROWS = 256


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure of the page.

    Attributes:
        key: unique on the page, fit for an id.
        title: heading.
        says: what to see in it, in words.
        figure: None where the data are missing.
        missing: why there is no figure and what would show it; empty if there is one.
        columns, rows: the figure's numbers; the columns in `numbers` are aligned right.
    """

    key: str
    title: str
    says: str
    figure: Figure | None = None
    missing: str = ""
    columns: tuple[str, ...] = ()
    rows: Sequence[Sequence[str]] = ()
    numbers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A lockstep group of the page; `named` are its ranks that findings name."""

    number: int
    label: str
    named: frozenset[int]


def make_panels(diagnosis: Diagnosis, tables: Tables) -> list[Panel]:
    """Make every figure of the page, in reading order."""
    if words.is_ledger(diagnosis):
        return [make_lost_panel(diagnosis), *make_ledger_panels(diagnosis, tables)]
    panels = [make_lost_panel(diagnosis)]
    for subject in SUBJECTS:
        panels += make_group_panels(subject, diagnosis, tables)
    panels += make_ledger_panels(diagnosis, tables)
    panels.append(make_ranks_panel(diagnosis))
    if left_out := [group.label for group in list_groups(diagnosis, tables)[MAX_GROUPS:]]:
        title = f"Figures of {words.count_of(len(left_out), 'more lockstep group')}"
        shown = "; ".join(left_out[:MAX_NAMED_GROUPS]) + (" and others" if len(left_out) > MAX_NAMED_GROUPS else "")
        reason = f"One page draws {MAX_GROUPS} groups, those of the findings first. Not drawn: {shown}."
        panels.append(Panel("more-groups", title, "", missing=reason))
    return panels


def list_groups(diagnosis: Diagnosis, tables: Tables) -> list[Group]:
    """List the lockstep groups, those of the findings first."""
    columns = find_table(tables, results.MEMBERS)
    if columns is None:
        # An older version saved no members, and there is rarely more than one group.
        saved = find_table(tables, results.RANK_STEPS)
        numbers = np.unique(saved["group"]).tolist() if saved is not None else []
        everyone = frozenset(number for _, number in words.find_named(diagnosis))
        return [Group(number, "" if len(numbers) == 1 else f"group {number}", everyone) for number in numbers]
    rows = list(zip(columns["group"].tolist(), columns["engine"].tolist(), columns["rank"].tolist(), strict=True))
    numbers = sorted({number for number, _, _ in rows})
    groups = []
    for number in numbers:
        members = {(engine, rank) for where, engine, rank in rows if where == number}
        named = frozenset(rank for _, rank in members & words.find_named(diagnosis))
        engines = ", ".join(sorted({engine for engine, _ in members}))
        label = "" if len(numbers) == 1 else f"ranks {words.format_ranks(rank for _, rank in members)} of {engines}"
        groups.append(Group(number, label, named))
    return sorted(groups, key=lambda group: (not group.named, group.number))


Draw = Callable[[Diagnosis, Tables, Group], Panel]


def make_group_panels(subject: str, diagnosis: Diagnosis, tables: Tables) -> Iterator[Panel]:
    """Make the figures of one subject (see SUBJECTS), one a lockstep group."""
    groups = list_groups(diagnosis, tables)
    for group in groups[:MAX_GROUPS] or [Group(0, "", frozenset())]:
        yield SUBJECTS[subject](diagnosis, tables, group)


def title_of(text: str, group: Group) -> str:
    """Title a figure of a group, which has a label where there are several."""
    return f"{text}: {group.label}" if group.label else text


def take_group_rows(tables: Tables, table: Table, group: int) -> Columns | None:
    """Take a group's rows of a table; None if the table was not saved or has none of it."""
    columns = find_table(tables, table)
    if columns is None:
        return None
    mine = take_rows(columns, columns["group"] == group)
    return mine if len(mine["group"]) else None


def explain_missing(diagnosis: Diagnosis) -> str:
    """Say why a table is not there."""
    if diagnosis.time.steps:
        return (
            "The saved diagnosis does not hold what this figure shows: an older version made it. "
            "Analyse the recording again to see it."
        )
    reason = [*(item.reason for item in diagnosis.abstentions), *diagnosis.notes, diagnosis.headline][0]
    return f"No steps could be compared, so there is nothing to draw: {reason.rstrip('.')}."


def make_lost_panel(diagnosis: Diagnosis) -> Panel:
    """Show the account of lost time, or why there is none."""
    key, title = "lost", "Lost time"
    rows = words.list_lost_rows(diagnosis)
    if not rows:
        return Panel(key, title, "", missing=words.explain_no_loss(diagnosis))
    from dprankdiag.views.figures.lost import draw_lost

    says = (
        "Causes and what nobody could attribute add up to the total: the wall time that the replay of the measured "
        "steps wins without the faults. Jitter, what random noise costs, stands beside the total and is no part of it."
    )
    return Panel(key, title, says, draw_lost(diagnosis.lost), "", words.LOST_COLUMNS, rows, ("lost", "share"))


def _draw_waits(diagnosis: Diagnosis, tables: Tables, group: Group) -> Panel:
    key, title = f"waits-{group.number}", title_of("Wait per rank and step", group)
    mine = take_group_rows(tables, results.RANK_STEPS, group.number)
    if mine is None:
        return Panel(key, title, "", missing=explain_missing(diagnosis))
    from dprankdiag.views.figures.base import columns_for
    from dprankdiag.views.figures.waits import bin_waits, draw_waits, grid_waits

    grid = grid_waits(mine)
    drawn = bin_waits(grid, columns_for(len(grid.ranks)))
    says = "Where ranks wait it is bright. The rank that they wait for stays dark: it waits least."
    if group.named:
        says += " Ranks that a finding names are bold."
    if drawn.steps_each > 1:
        says += f" Each column is the mean of {drawn.steps_each} steps."
    rows = []
    for rank, waits in zip(grid.ranks.tolist(), grid.wait_ns, strict=True):
        longest = int(waits.argmax())
        cells = (format_ns(float(value)) for value in (waits.mean(), np.median(waits), waits[longest]))
        rows.append((str(rank), *cells, str(grid.first_step[longest])))
    figure = draw_waits(drawn, group.named, float(diagnosis.step.median_ns or 0))
    columns = ("rank", "mean wait", "median wait", "longest wait", "in step")
    return Panel(key, title, says, figure, "", columns, rows, columns)


def _draw_arrivals(diagnosis: Diagnosis, tables: Tables, group: Group) -> Panel:
    key, title = f"arrivals-{group.number}", title_of("Arrival lag per rank", group)
    mine = take_group_rows(tables, results.ARRIVALS, group.number)
    if mine is None:
        return Panel(key, title, "", missing=explain_missing(diagnosis))
    from dprankdiag.views.figures.arrivals import MAX_BOXES, draw_arrivals

    says = (
        "How much later than the median rank each one comes to its meetings; negative is earlier. Boxes reach from "
        "quarter to quarter, whiskers from 5 to 95 per cent. A rank that is late may have been released late: the "
        "findings name where lateness begins."
    )
    if len(mine["rank"]) > MAX_BOXES:
        says += f" Of {len(mine['rank'])} ranks the {MAX_BOXES} latest are drawn."
    columns = ("rank", "5 %", "25 %", "median", "75 %", "95 %", "largest", "meetings", "came last")
    lags = ("lag_p05_ns", "lag_p25_ns", "lag_p50_ns", "lag_p75_ns", "lag_p95_ns", "lag_max_ns")
    rows = []
    for row in range(len(mine["rank"])):
        met, last = int(mine["meetings"][row]), int(mine["last"][row])
        share = format_ratio(last / met if met else None)
        cells = [format_ns(int(mine[name][row])) for name in lags]
        rows.append((str(mine["rank"][row]), *cells, str(met), f"{last} ({share})"))
    return Panel(key, title, says, draw_arrivals(mine), "", columns, rows, columns)


def _draw_layers(diagnosis: Diagnosis, tables: Tables, group: Group) -> Panel:
    key, title = f"layers-{group.number}", title_of("Excess by layer and rank", group)
    mine = take_group_rows(tables, results.LAYERS, group.number)
    if mine is None:
        return Panel(key, title, "", missing=explain_missing(diagnosis))
    from dprankdiag.views.figures.layers import SIDES, draw_layers, measure_excess

    kind = int(mine["kind"].min())
    mine = take_rows(mine, mine["kind"] == kind)
    positions = take_group_rows(tables, results.POSITIONS, group.number)
    sides: dict[int, str] = {}
    if positions is not None:
        usual = take_rows(positions, positions["kind"] == kind)
        sides = dict(zip(usual["position"].tolist(), usual["side"].tolist(), strict=True))
    excess = measure_excess(mine, sides)
    says = (
        f"What each rank takes beyond the ranks' median, mean over the {_name_kind(tables, group, kind)}. "
        "Uneven load shows before the gather on one rank in every layer, a hot expert after it on another rank in each "
        "layer, a slow chip on both sides."
    )
    rows = []
    for side, values in excess.excess_ns.items():
        for column, layer in enumerate(excess.layers.tolist()):
            if not np.isnan(values[:, column]).any():
                slowest = int(values[:, column].argmax())
                beyond = format_ns(float(values[slowest, column]))
                rows.append((SIDES[side], str(layer), str(excess.ranks[slowest]), beyond))
    columns = ("where", "layer", "slowest rank", "beyond the median")
    return Panel(key, title, says, draw_layers(excess, group.named), "", columns, rows, columns[1:])


def _name_kind(tables: Tables, group: Group, kind: int) -> str:
    columns = take_group_rows(tables, results.KINDS, group.number)
    if columns is None or kind not in columns["kind"].tolist():
        return "most frequent kind of step"
    row = columns["kind"].tolist().index(kind)
    return f"{columns['steps'][row]} steps of the kind '{columns['name'][row]}'"


def make_worst_panel(diagnosis: Diagnosis, tables: Tables, group: Group) -> Panel:
    """Show the worst step of a group meeting by meeting."""
    key, title = f"worst-{group.number}", title_of("The worst step", group)
    meetings = take_group_rows(tables, results.WORST_MEETINGS, group.number)
    step = take_group_rows(tables, results.WORST_STEPS, group.number)
    if meetings is None or step is None:
        return Panel(key, title, "", missing=explain_missing(diagnosis))
    kind = int(step["kind"][0])
    names = {
        position: name
        for (number, of_kind, position), name in name_meetings(tables).items()
        if (number, of_kind) == (group.number, kind)
    }
    mean, median = format_ns(int(step["wait_ns"][0])), format_ns(int(step["median_ns"][0]))
    says = (
        f"Step {step['step'][0]}, in which the ranks wait {mean} on average, the most against the median length of its "
        f"kind of step ({median}). {describe_longest(meetings, names)}"
    )
    return make_step_panel(key, title, says, meetings, names, group)


def make_step_panel(
    key: str, title: str, says: str, meetings: Columns, names: Mapping[int, str], group: Group
) -> Panel:
    """Show a step meeting by meeting.

    Args:
        meetings: rows of `model.results.WORST_MEETINGS` of one step.
        names: of the meetings by position.
    """
    from dprankdiag.views.figures.timeline import draw_step

    rows = [_sum_meetings(meetings, rank) for rank in np.unique(meetings["rank"]).tolist()]
    columns = ("rank", "work", "idle", "wait", "transfer", "came last to")
    return Panel(key, title, says, draw_step(meetings, names, group.named), "", columns, rows, columns)


def describe_longest(meetings: Columns, names: Mapping[int, str]) -> str:
    """Say who waits the longest in a step, for whom and where."""
    row = int(meetings["wait_ns"].argmax())
    position, rank = int(meetings["position"][row]), int(meetings["rank"][row])
    wait, last = format_ns(int(meetings["wait_ns"][row])), name_rank(int(meetings["last_rank"][row]))
    return f"The longest wait: rank {rank} waits {wait} for {last} at {names.get(position, f'meeting {position}')}."


def _sum_meetings(meetings: Columns, rank: int) -> tuple[str, ...]:
    """Sum a rank's times in the worst step, and count the meetings that it reached last."""
    mine = take_rows(meetings, meetings["rank"] == rank)
    segment = int((mine["arrival_ns"] - mine["start_ns"]).sum())
    work, wait = int(mine["work_ns"].sum()), int(mine["wait_ns"].sum())
    transfer = int((mine["end_ns"] - mine["arrival_ns"]).sum()) - wait
    last = int((mine["last_rank"] == rank).sum())
    times = (work, segment - work, wait, transfer)
    return str(rank), *(format_ns(time) for time in times), f"{last} of {len(mine['rank'])}"


def make_ledger_panels(diagnosis: Diagnosis, tables: Tables) -> list[Panel]:
    """Show what each rank told, if the input was a ledger."""
    headings, rows = list_ledger_rows(diagnosis, tables, MAX_TABLE_ROWS)
    cells: list[Any] = rows
    return [Panel("ledger", LEDGER_TITLE, LEGEND, None, "", headings, cells, headings)] if rows else []


def make_ranks_panel(diagnosis: Diagnosis) -> Panel:
    """Show what the time of each rank consists of."""
    key, title = "ranks", "Ranks"
    if not diagnosis.ranks:
        return Panel(key, title, "", missing="No ranks could be told apart in the input.")
    named = words.find_named(diagnosis)
    shown = words.choose_ranks(diagnosis, MAX_TABLE_ROWS)
    rows: list[Any] = [words.list_rank_cells(rank, (rank.engine, rank.rank) in named) for rank in shown]
    says = "What the time of each rank in the analysed steps consists of."
    if named:
        says += f" {words.NAMED_RANKS}"
    if len(shown) < len(diagnosis.ranks):
        says += f" {len(diagnosis.ranks) - len(shown)} more ranks are in the JSON."
    known = [rank for rank in shown if rank.work_ns is not None and rank.wait_ns is not None]
    if not known:
        missing = "No time could be measured for these ranks, because no steps could be compared."
        return Panel(key, title, "", None, missing, words.RANK_COLUMNS, rows, words.RANK_COLUMNS[:5])
    from dprankdiag.views.figures.ranks import draw_ranks

    return Panel(key, title, says, draw_ranks(known), "", words.RANK_COLUMNS, rows, words.RANK_COLUMNS[:5])


SUBJECTS: Mapping[str, Draw] = {
    "waits": _draw_waits,
    "worst": make_worst_panel,
    "arrivals": _draw_arrivals,
    "layers": _draw_layers,
}
"""What is drawn for every lockstep group, in reading order."""
