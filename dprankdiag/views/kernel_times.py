"""Which kernel takes longer on the rank that comes last than on the others, before one meeting or in a whole step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.model.schema import ABSENT_ID, Columns, take_rows
from dprankdiag.units import format_ns
from dprankdiag.views.kernel_names import shorten_names
from dprankdiag.views.printable import make_printable

IntArray = np.ndarray[Any, np.dtype[np.int64]]

IDLE_FAMILY = "idle"
NOT_LAUNCHED, NOT_BUSY = "GPU idle: the next kernel was not launched yet", "GPU idle"
COLUMNS = ("kernel", "family", "calls", "last to come", "median of the others", "longer by")
MOST_NAMES = 200


@dataclass(frozen=True, slots=True)
class Meeting:
    """One meeting of a step, and what each member does from the meeting before at which all of them met.

    Attributes:
        position: the meeting chosen.
        awaited: position of the meeting that is waited for: of work that needs a call beside it, that call.
        late: the rank that comes last; where that is not known, the one whose segment ends last.
        is_known: whether the last to come is known.
        here: rows of `model.results.WORST_MEETINGS` of the members at `awaited`, sorted by rank; start_ns is the end of
            the meeting before at which all of them met.
        between: rows of the members from there on, in order: meetings of some of them, then `here`.
        wait_ns: longest wait at the meeting chosen.
    """

    position: int
    awaited: int
    late: int
    is_known: bool
    here: Columns
    between: Columns
    wait_ns: int

    @property
    def first(self) -> int:
        """Tell the rank that comes first."""
        return int(self.here["rank"][self.here["arrival_ns"].argmin()])

    def measure_late(self, name: str) -> tuple[int, int]:
        """Return a moment of the last to come, and the median of the others."""
        is_late = self.here["rank"] == self.late
        others = self.here[name][~is_late]
        return int(self.here[name][is_late][0]), _middle(others) if len(others) else 0


@dataclass(frozen=True, slots=True)
class Difference:
    """What one kernel name, or idle time, takes on a rank and on the others.

    Attributes:
        calls: of the rank; None of idle time.
        late_ns: total of the rank, each instant of a stream counted once.
        median_ns: median of the others' totals.
    """

    name: str
    family: str
    calls: int | None
    late_ns: int
    median_ns: int

    @property
    def longer_ns(self) -> int:
        """Tell how much longer the rank takes."""
        return self.late_ns - self.median_ns


def find_longest_wait(meetings: Columns) -> int:
    """Find the position of the meeting at which somebody waits the longest, where it is known for whom."""
    wait = np.where(meetings["last_rank"] == ABSENT_ID, -1, meetings["wait_ns"])
    return int(meetings["position"][wait.argmax()])


def choose_meeting(meetings: Columns, position: int) -> Meeting:
    """Choose a meeting of a step; where several groups meet at the position, that of whoever waits the longest."""
    at = take_rows(meetings, meetings["position"] == position)
    row = int(at["wait_ns"].argmax())
    last, awaited = int(at["last_rank"][row]), int(at["awaited"][row])
    members = at["rank"][at["last_rank"] == last]
    awaited = position if awaited == ABSENT_ID else awaited
    of_members = take_rows(meetings, np.isin(meetings["rank"], [*members.tolist(), last]))
    of_members = take_rows(of_members, np.lexsort((of_members["rank"], of_members["position"])))
    begin = awaited
    while begin > 0 and not _met_together(of_members, begin - 1):
        begin -= 1
    between = take_rows(of_members, (of_members["position"] >= begin) & (of_members["position"] <= awaited))
    here = take_rows(between, between["position"] == awaited)
    here |= {"start_ns": between["start_ns"][between["position"] == begin]}
    is_known = last != ABSENT_ID
    late = last if is_known else int(here["rank"][here["arrival_ns"].argmax()])
    return Meeting(position, awaited, late, is_known, here, between, int(at["wait_ns"].max()))


def _met_together(of_members: Columns, position: int) -> bool:
    """Tell whether all members left a position together: one rank came last for all, and it stopped each of them.

    Where calls run beside work, who works longest is not stopped at all.
    """
    at = take_rows(of_members, of_members["position"] == position)
    stopped = np.where(at["awaited"] == position, at["end_ns"] > at["arrival_ns"], at["wait_ns"] > 0)
    return len(np.unique(at["last_rank"])) == 1 and bool(stopped.all())


def compare_segment(kernels: Columns, meeting: Meeting) -> list[Difference]:
    """Compare what the last to come and the others do before a meeting, the largest difference first.

    The differences' times add up to the time from the meeting before, where only one stream of a rank runs at a time.

    Args:
        kernels: rows of `model.results.STEP_KERNELS` of the step; of the ranks among them the others are.
    """
    rows = take_rows(kernels, np.isin(kernels["rank"], meeting.here["rank"]))
    of_rank = np.searchsorted(meeting.here["rank"], rows["rank"])
    begin, arrival = meeting.here["start_ns"][of_rank], meeting.here["arrival_ns"][of_rank]
    # The call itself begins at the arrival: it is no part of the segment, the idle time before it is.
    runs = (rows["start_ns"] >= begin) & (rows["start_ns"] < arrival)
    follows = (rows["start_ns"] > begin) & (rows["start_ns"] <= arrival)
    return _list_differences(rows, runs, follows, meeting.late)


def compare_step(kernels: Columns, meeting: Meeting) -> list[Difference]:
    """Compare what the last to come to a meeting and the others do in the whole step, calls with their waits."""
    rows = take_rows(kernels, np.isin(kernels["rank"], meeting.here["rank"]))
    everything = np.ones(len(rows["rank"]), bool)
    return _list_differences(rows, everything, everything, meeting.late)


def _list_differences(
    rows: Columns, runs: np.ndarray[Any, Any], follows: np.ndarray[Any, Any], late: int
) -> list[Difference]:
    ranks = np.unique(rows["rank"])
    if late not in ranks or len(ranks) < 2:
        return []
    is_late = ranks == late
    column = np.searchsorted(ranks, rows["rank"])
    found = []

    def add(name: str, family: str, calls: int | None, totals: IntArray) -> None:
        if totals.any():
            found.append(Difference(name, family, calls, int(totals[is_late][0]), _middle(totals[~is_late])))

    names: dict[tuple[str, str], int] = {}
    told = zip(rows["name"][runs].tolist(), rows["family"][runs].tolist(), strict=True)
    code = np.array([names.setdefault(key, len(names)) for key in told], np.int64)
    totals, calls = np.zeros((2, len(names), len(ranks)), np.int64)
    np.add.at(totals, (code, column[runs]), rows["own_ns"][runs])
    np.add.at(calls, (code, column[runs]), 1)
    for (name, family), row in names.items():
        add(name, family, int(calls[row][is_late][0]), totals[row])
    host = np.where(follows, np.maximum(rows["host_ns"], 0), 0)
    rest = np.where(follows, rows["idle_ns"], 0) - host
    add(NOT_LAUNCHED, IDLE_FAMILY, None, _sum_by(column, host, len(ranks)))
    add(NOT_BUSY, IDLE_FAMILY, None, _sum_by(column, rest, len(ranks)))
    return sorted(found, key=lambda item: (-item.longer_ns, item.name))


def _sum_by(index: IntArray, values_ns: IntArray, n: int) -> IntArray:
    sums = np.zeros(n, np.int64)
    np.add.at(sums, index, values_ns)
    return sums


def _middle(values: IntArray) -> int:
    """Return the median; moments have more digits than a float, so what is halved is a distance."""
    return int(values.min()) + round(float(np.median(values - values.min())))


def list_cells(differences: Sequence[Difference]) -> list[tuple[str | tuple[str, str], ...]]:
    """List differences as rows of a table with COLUMNS; of very many names the largest differences."""
    largest = sorted(differences, key=lambda item: -abs(item.longer_ns))[:MOST_NAMES]
    short = shorten_names([item.name for item in differences])
    return [
        (
            short[item.name] if short[item.name] == item.name else (short[item.name], make_printable(item.name)),
            item.family,
            "-" if item.calls is None else str(item.calls),
            format_ns(item.late_ns),
            format_ns(item.median_ns),
            format_ns(item.longer_ns),
        )
        for item in sorted(largest, key=differences.index)
    ]


def describe_late(meeting: Meeting, differences: Sequence[Difference]) -> str:
    """Say in words why the last to come is late at a meeting."""
    arrival, others = meeting.measure_late("arrival_ns")
    began, others_began = meeting.measure_late("start_ns")
    says = "" if meeting.is_known else "Who is waited for here is not known. "
    says += f"Rank {meeting.late} comes last"
    says += f", {format_ns(arrival - others)} after the median of the others. "
    held, taken = began - others_began, (arrival - began) - (others - others_began)
    if held > taken:
        says += f"Of that it was behind by {format_ns(held)} from the meeting before on: see what lies before that. "
    else:
        says += f"It takes {format_ns(taken)} longer than they do since they met before. "
    if not differences or differences[0].longer_ns <= 0:
        return says + "No kernel takes longer on it than on the others here."
    most = differences[0]
    short = shorten_names([item.name for item in differences])[most.name]
    what = short if most.family == IDLE_FAMILY else f"{short} ({most.family})"
    return says + (
        f"The largest difference: {what}, {format_ns(most.late_ns)} against {format_ns(most.median_ns)} in the median "
        "of the others."
    )


def order_ranks(meeting: Meeting, kernels: Columns, named: Collection[int]) -> list[int]:
    """Order the ranks whose kernels are known: the last to come, those named, the first to come, then the others."""
    known = np.intersect1d(kernels["rank"], meeting.here["rank"]).tolist()
    first = meeting.first
    return sorted(known, key=lambda rank: (rank != meeting.late, rank not in named, rank != first, rank))
