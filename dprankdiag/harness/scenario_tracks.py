"""Keep the choices of a router with the truth, and lay both over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from dprankdiag.harness.scenario_truths import HeldRequests, Place
from dprankdiag.model.dispatches import Line, Measure, Role, Track
from dprankdiag.model.schema import Columns
from dprankdiag.simulate.base import IntArray, Load
from dprankdiag.simulate.decisions import Decision, LedgerError
from dprankdiag.simulate.world_tables import Outcome

MOST_POINTS = 200
"""Moments between choices that are shown, so that a browser draws them without delay."""


@dataclass(frozen=True, slots=True)
class Book:
    """The choices of one router.

    Attributes:
        ledger: whose, in words.
        worker: whose ranks it chooses among; none for a gateway.
        role: of the workers.
        first: number of the first choice: of a gateway its first worker, else 0.
        places: the ranks of each choice.
        numbers: of the decisions in the tables of the world, `(decisions,)`.
        compares: what its policy compares, in words; none where it compares no loads.
        decisions: what it believed.
        levels, truths: the load of each choice at each decision: as schedulers count, and with what they leave out.
        errors: of each decision.
    """

    ledger: str
    worker: int | None
    role: Role | None
    first: int
    places: tuple[tuple[Place, ...], ...]
    numbers: IntArray
    compares: str | None = None
    decisions: list[Decision] = field(default_factory=list)
    levels: list[list[Load]] = field(default_factory=list)
    truths: list[list[Load]] = field(default_factory=list)
    errors: list[LedgerError] = field(default_factory=list)

    def pairs(self) -> Iterator[tuple[Decision, LedgerError]]:
        """Give each decision with its error."""
        return zip(self.decisions, self.errors, strict=True)

    def count_held(self, held: HeldRequests, decision: int, now_ns: int, choice: int) -> int | None:
        """Count the requests that a choice has; none where untold."""
        counts = [held.count(place, decision, now_ns) for place in self.places[choice]]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


def draw_tracks(book: Book, outcome: Outcome, held: HeldRequests) -> Iterator[Track]:
    """Give the track of each choice of a router, in what its policy compares."""
    measure: Measure = "tokens" if book.compares is not None and "tokens" in book.compares else "requests"
    times = tuple(decision.at_ns for decision in book.decisions)
    for choice, places in enumerate(book.places):
        told = [decision.tokens if measure == "tokens" else decision.requests for decision in book.decisions]
        yield Track(
            ledger=book.ledger,
            worker=book.worker,
            choice=book.first + choice,
            measure=measure,
            believed=Line(times, tuple(None if values is None else values[choice] for values in told)),
            true=_trace_truth(book, choice, measure, outcome, held.list_changes(places)),
            chosen_ns=tuple(decision.at_ns for decision in book.decisions if decision.rank == choice),
        )


def _trace_truth(
    book: Book, choice: int, measure: Measure, outcome: Outcome, changes: list[tuple[int, int]] | None
) -> Line:
    """Trace how full a choice is; of requests that are untold as its schedulers count them."""
    if measure == "requests" and changes is not None:
        return _make_line(changes)
    points = _sum_levels(outcome, book.places[choice], measure)
    pairs = zip(book.decisions, book.truths, strict=True)
    points += [(decision.at_ns, _count(truth[choice], measure)) for decision, truth in pairs]
    return _make_line(sorted(points, key=lambda point: point[0]))


def _count(load: Load, measure: Measure) -> int:
    return load.total_tokens if measure == "tokens" else load.running + load.waiting


def _make_line(points: list[tuple[int, int]]) -> Line:
    """Make a line of points in order of time; of those at one moment the last stands."""
    last = dict(points)
    return Line(tuple(last), tuple(last.values()))


def _sum_levels(outcome: Outcome, places: Sequence[Place], measure: Measure) -> list[tuple[int, int]]:
    """Sum up what the schedulers of some ranks count, at some of the moments at which any of them is known."""
    known = [_list_levels(outcome, *place, measure) for place in places]
    moments = np.unique(np.concatenate([times for times, _ in known]))
    moments = moments[:: max(-(-len(moments) // MOST_POINTS), 1)]
    total = np.zeros(len(moments), np.int64)
    for times, levels in known:
        # A rank has nothing before it is heard of first.
        total += np.concatenate([[0], levels])[np.searchsorted(times, moments, side="right")]
    return list(zip(moments.tolist(), total.tolist(), strict=True))


def _list_levels(outcome: Outcome, worker: int, rank: int, measure: Measure) -> tuple[IntArray, IntArray]:
    """List what a scheduler counts as its steps begin and as it publishes, which it also does when its work ends."""
    rows, steps, told = outcome.rank_steps, outcome.steps, outcome.publishes
    here = (rows["worker"] == worker) & (rows["rank"] == rank)
    there = (told["worker"] == worker) & (told["rank"] == rank)
    order = np.argsort(steps["step"], kind="stable")
    starts = steps["start_ns"][order[np.searchsorted(steps["step"], rows["step"][here], sorter=order)]]
    times = np.concatenate([told["time_ns"][there], starts])
    levels = np.concatenate([_take(told, measure)[there], _take(rows, measure)[here]])
    sorting = np.argsort(times, kind="stable")
    return times[sorting], levels[sorting]


def _take(table: Columns, measure: Measure) -> IntArray:
    taken: IntArray = table["total_tokens"] if measure == "tokens" else table["running"] + table["waiting"]
    return taken
