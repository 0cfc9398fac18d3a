"""Who gates whom, as figures with their words and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dprankdiag.model import compared, results
from dprankdiag.model.blame import Link
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.schema import Columns
from dprankdiag.units import format_ns, format_ratio
from dprankdiag.views import words
from dprankdiag.views.base import Tables
from dprankdiag.views.figures.base import CALM, columns_for, escape_label
from dprankdiag.views.figures.blame import is_inherited
from dprankdiag.views.figures.waits import WaitGrid, bin_waits
from dprankdiag.views.panels import Group, Panel, explain_missing, take_group_rows, title_of

IntArray = np.ndarray[Any, np.dtype[np.int64]]

PAIR_COLUMNS = (
    "rank",
    "others wait because of it",
    "of their time",
    "waits where it came last",
    "handed on",
    "waits itself",
)


def make_pairs_panel(diagnosis: Diagnosis, tables: Tables, group: Group) -> Panel:
    """Show for whom each rank of a group waits."""
    key, title = f"pairs-{group.number}", title_of("Who waits for whom", group)
    pairs = take_group_rows(tables, results.BLAME, group.number)
    steps = take_group_rows(tables, results.STEPS, group.number)
    ranks = take_group_rows(tables, results.MEMBERS, group.number)
    if steps is None or ranks is None or results.BLAME.name not in tables:
        return Panel(key, title, "", missing=explain_missing(diagnosis))
    if pairs is None:
        return Panel(key, title, "", missing="No rank of this group waits for another: there is nobody to blame.")
    from dprankdiag.views.figures.blame import draw_pairs

    n_steps = len(steps["step"])
    waiting = np.unique(ranks["rank"])
    blamed = np.unique(pairs["blamed"][pairs["blamed"] >= 0])
    known = pairs["blamed"] >= 0
    caused = np.zeros((len(waiting), len(blamed)))
    rows, columns = np.searchsorted(waiting, pairs["rank"][known]), np.searchsorted(blamed, pairs["blamed"][known])
    caused[rows, columns] = pairs["caused_ns"][known] / n_steps
    figure = draw_pairs(waiting.tolist(), blamed.tolist(), caused, group.named, float(diagnosis.step.median_ns or 0))
    says = (
        "Each row is a rank that waits, each column the rank because of which it waits. A bright column is a rank that "
        "gates the others. A rank that comes last because it was released late itself is not blamed for that: the wait "
        "is charged to whom it leads back to."
    )
    says += "".join(f" {text}" for text in _list_doubts(pairs, tables, group))
    return Panel(key, title, says, figure, "", PAIR_COLUMNS, _sum_ranks(pairs, waiting, steps), PAIR_COLUMNS)


def _list_doubts(pairs: Columns, tables: Tables, group: Group) -> Iterator[str]:
    """Say what keeps a bright column from being a culprit."""
    if group.named:
        yield "Ranks that a finding names are bold."
    else:
        yield "No finding names a rank of this group: what shows here is what chance and even load leave."
    unknown = int(pairs["caused_ns"][pairs["blamed"] < 0].sum())
    if unknown:
        share = format_ratio(unknown / max(int(pairs["caused_ns"].sum()), 1))
        yield f"Of {share} of the waiting it is not known, or not told apart, because of whom."
    told = take_group_rows(tables, compared.GROUPS, group.number)
    missing = 0 if told is None else int(told["missing"][0])
    if missing:
        unseen = words.count_of(missing, "rank")
        yield f"{unseen} of the deployment were not recorded: whoever shows here may have waited for one of them."


def _sum_ranks(pairs: Columns, ranks: IntArray, steps: Columns) -> list[tuple[str, ...]]:
    """Sum what each rank makes the others wait, those who do so longest first; times are of all others, a step."""
    n_steps, n_others = len(steps["step"]), max(len(ranks) - 1, 1)
    length = max(int((steps["end_ns"] - steps["start_ns"]).sum()), 1)
    rows = []
    for rank in ranks.tolist():
        mine, own = pairs["blamed"] == rank, pairs["rank"] == rank
        caused, last = int(pairs["caused_ns"][mine].sum()), int(pairs["last_ns"][mine].sum())
        waits = int(pairs["last_ns"][own].sum())
        cells = (
            f"{format_ns(caused / n_others / n_steps)}",
            format_ratio(caused / n_others / length),
            format_ns(last / n_others / n_steps),
            format_ns((last - caused) / n_others / n_steps),
            format_ns(waits / n_steps),
        )
        rows.append((-caused, rank, cells))
    return [(str(rank), *cells) for _, rank, cells in sorted(rows)]


def make_blame_steps_panel(diagnosis: Diagnosis, tables: Tables, group: Group) -> Panel:
    """Show how blame moves from rank to rank over the steps."""
    key, title = f"blamed-{group.number}", title_of("Blame over the steps", group)
    mine = take_group_rows(tables, results.BLAME_STEPS, group.number)
    steps = take_group_rows(tables, results.STEPS, group.number)
    members = take_group_rows(tables, results.MEMBERS, group.number)
    if steps is None or members is None or results.BLAME_STEPS.name not in tables:
        return Panel(key, title, "", missing=explain_missing(diagnosis))
    if mine is None:
        return Panel(key, title, "", missing="No rank of this group waits for another in any step.")
    from dprankdiag.views.figures.blame import draw_blame_steps

    grid = grid_blame(mine, steps, members)
    drawn = bin_waits(grid, columns_for(len(grid.ranks)))
    says = (
        "How long the others wait on average because of each rank. One line is one culprit; where it begins, "
        "ends or jumps from rank to rank, the blame moves."
    )
    if drawn.steps_each > 1:
        says += f" Each column is the mean of {drawn.steps_each} steps."
    top = grid.wait_ns.argmax(axis=0)
    rows = []
    for place in np.argsort(-grid.wait_ns.mean(axis=1), kind="stable").tolist():
        wait = grid.wait_ns[place]
        often = format_ratio(float(np.mean((top == place) & (grid.wait_ns.max(axis=0) > 0))))
        longest = int(wait.argmax())
        times = (format_ns(float(wait.mean())), format_ns(float(wait[longest])), str(grid.first_step[longest]))
        rows.append((str(grid.ranks[place]), *times, often))
    columns = ("rank", "others wait a step", "most", "in step", "steps in which it is the first to blame")
    figure = draw_blame_steps(drawn, group.named, float(diagnosis.step.median_ns or 0))
    return Panel(key, title, says, figure, "", columns, rows, columns)


def grid_blame(rows: Columns, steps: Columns, members: Columns) -> WaitGrid:
    """Lay out what each rank makes the others wait, on average of them, by rank and step.

    Args:
        rows: of `model.results.BLAME_STEPS` of one group; `steps` and `members` likewise.
    """
    ranks, numbers = np.unique(members["rank"]), np.unique(steps["step"])
    caused = np.zeros((len(ranks), len(numbers)))
    place, column = np.searchsorted(ranks, rows["rank"]), np.searchsorted(numbers, rows["step"])
    caused[place, column] = rows["caused_ns"] / max(len(ranks) - 1, 1)
    return WaitGrid(ranks, numbers, 1, caused)


CHAIN_COLUMNS = ("rank", "from", "to", "takes", "work", "idle", "in collectives", "behind", "inherited")


def make_chain_panel(links: Sequence[Link], names: Mapping[int, str], group: Group, step: int) -> Panel:
    """Show the way that the end of a step waited for.

    Args:
        links: in order of time.
        names: of the meetings by position.
    """
    from dprankdiag.views.figures.blame import draw_chain

    labels = [escape_label(describe_link(link, names)) for link in links]
    figure = draw_chain(links, labels, group.named)
    stretches = list_stretches(links)
    rows = [_sum_stretch(stretch, names) for stretch in reversed(stretches)]
    title = title_of(f"The chain of blame of step {step}", group)
    return Panel(
        f"chain-{group.number}-{step}", title, describe_chain(links), figure, "", CHAIN_COLUMNS, rows, CHAIN_COLUMNS[3:]
    )


def list_stretches(links: Sequence[Link]) -> list[list[Link]]:
    """Join links that follow each other on one rank."""
    stretches: list[list[Link]] = []
    for link in links:
        if stretches and stretches[-1][-1].rank == link.rank:
            stretches[-1].append(link)
        else:
            stretches.append([link])
    return stretches


def describe_link(link: Link, names: Mapping[int, str]) -> str:
    """Say where a link leads to."""
    meeting = name_meeting(link, names)
    if link.rank is None:
        return f"before {meeting}: who was waited for is not known"
    if link.is_out:
        return f"comes out of {meeting}"
    if link.behind_ns is None:
        return f"on its way to {meeting}"
    inherited = f", {format_ns(link.inherited_ns)} of it inherited" if link.inherited_ns else ""
    return f"on its way to {meeting}, {format_ns(link.behind_ns)} behind the others{inherited}"


def name_meeting(link: Link, names: Mapping[int, str]) -> str:
    """Name the meeting of a link."""
    return names.get(link.position, f"meeting {link.position}")


def describe_chain(links: Sequence[Link]) -> str:
    """Say on whom a step spends its time, and how much of the lateness on the way is inherited."""
    length = links[-1].end_ns - links[0].start_ns
    spent: dict[int | None, int] = {}
    for link in links:
        if not link.is_out:
            spent[link.rank] = spent.get(link.rank, 0) + link.end_ns - link.start_ns
    most = sorted((rank for rank in spent if rank is not None), key=lambda rank: (-spent[rank], rank))[:1]
    behind, inherited = (sum(getattr(link, name) or 0 for link in links) for name in ("behind_ns", "inherited_ns"))
    says = (
        "Read from the right: the step ends when the last rank is through; before that it waited for that rank, before "
        "that for whoever had released it, and so on back to its start."
    )
    for rank in most:
        share = format_ratio(spent[rank] / length if length else None)
        says += f" The way leads over rank {rank} for {format_ns(spent[rank])}, {share} of the step."
    if behind:
        says += f" Ranks on it came {format_ns(behind)} behind the others in all"
        says += f", {format_ns(inherited)} of that inherited." if inherited > CALM * behind else "."
    if any(is_inherited(link) for link in links):
        says += " A diamond marks who was late to a meeting because it had been released late from the one before."
    return says


def _sum_stretch(stretch: Sequence[Link], names: Mapping[int, str]) -> tuple[str, ...]:
    way = [link for link in stretch if not link.is_out]
    work = sum(link.work_ns for link in way)
    idle = sum(link.end_ns - link.start_ns for link in way) - work
    out = sum(link.end_ns - link.start_ns for link in stretch if link.is_out)
    behind = [link.behind_ns for link in way if link.behind_ns is not None]
    inherited = [link.inherited_ns for link in way if link.inherited_ns is not None]
    first, last = stretch[0], stretch[-1]
    return (
        words.ABSENT if first.rank is None else str(first.rank),
        f"{'out of ' if first.is_out else 'the way to '}{name_meeting(first, names)}",
        name_meeting(last, names),
        format_ns(last.end_ns - first.start_ns),
        format_ns(work),
        format_ns(idle),
        format_ns(out),
        format_ns(sum(behind)) if behind else words.ABSENT,
        format_ns(sum(inherited)) if inherited else words.ABSENT,
    )
