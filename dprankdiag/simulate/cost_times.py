"""Observed times and the steps that lie in them, as a run is served now; and the terms that explain them best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dprankdiag.simulate.base import FloatArray, IntArray
from dprankdiag.simulate.cost_prior import lean_rows
from dprankdiag.simulate.cost_walks import STEP_SCATTER, find_stretches, list_moments
from dprankdiag.simulate.cost_windows import WINDOW_ERROR, Window, list_window_spans
from dprankdiag.simulate.costs import OWN, TERMS, StepTable, solve_positive, table_steps
from dprankdiag.simulate.replay import Site
from dprankdiag.simulate.step_spans import GROUPS, Span, find_span, list_groups
from dprankdiag.simulate.world_tables import Outcome

TAIL_DEGREES = 4.0
"""Degrees of freedom of Student's t, by which errors are taken to be drawn: a few moments that are far off (a log that
was written late) hardly count."""

LIFT_RATIO = 0.1
"""Of the most that a term could be, what it is lifted by to begin elsewhere."""

TURNS = 4
"""Times that the busiest ranks, and the times that are far off, are found anew for one run."""

SPREAD_TURNS = 6

PRIOR_ROWS = 4.0
"""What is expected of the size of errors weighs as much as so many of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """What was seen of a run.

    Attributes:
        arrival_ns: of each request, by its number: `(n,)`.
        first_ns, end_ns: of its first and last token, from its arrival: `(n,)`; -1 if unknown.
        windows: steps that an engine counted.
        window_error_ratio: what the time of a window is off by beyond the scatter of its steps.
    """

    arrival_ns: IntArray
    first_ns: IntArray
    end_ns: IntArray
    windows: tuple[Window, ...] = ()
    window_error_ratio: float = WINDOW_ERROR


class Piece(Protocol):
    """Observed times of one group."""

    @property
    def target(self) -> FloatArray:
        """Give the times as observed, `(n,)` ns."""

    def sum(self, amounts: FloatArray) -> FloatArray:
        """Sum amounts of steps, `(steps, ...)`, over each time."""

    def whiten(self, errors: FloatArray) -> FloatArray:
        """Turn errors, `(n, ...)` ns, into ones that are alike and independent, of size 1 as far as is known."""


class Times:
    """Observed times, and the steps that lie in each.

    Attributes:
        pieces: stretches between tokens, then windows of counted steps, with the steps of their group.
        walked: how many of the pieces are stretches.
        rows: how many times there are.
        kinds: rows of stretches and of windows: how far they are off is told apart.
    """

    def __init__(self, walks: Sequence[tuple[StepTable, Piece]], counts: Sequence[tuple[StepTable, Piece]]) -> None:
        self.pieces = [*walks, *counts]
        self.walked = len(walks)
        sizes = [sum(len(piece.target) for _, piece in part) for part in (walks, counts)]
        self.rows = sum(sizes)
        self.kinds = [part for part in (slice(0, sizes[0]), slice(sizes[0], self.rows)) if part.stop > part.start]
        whole = [piece.whiten(piece.target) for _, piece in self.pieces]
        self._target = np.concatenate(whole) if whole else np.zeros(0)

    def design(self, terms: FloatArray) -> FloatArray:
        """Sum what terms are multiplied by over the steps of each time, in units of what it is likely to be off by.

        The busiest ranks are those by `terms`.
        """
        return np.concatenate([piece.whiten(piece.sum(table.design(terms))) for table, piece in self.pieces])

    def errors(self, terms: FloatArray) -> FloatArray:
        """Give what terms miss of each time, in units of what it is likely to be off by: `(rows,)`."""
        missed: FloatArray = self._target - self.design(terms) @ terms
        return missed

    def spreads(self, errors: FloatArray) -> FloatArray:
        """Estimate how much larger errors are than expected, `(kinds,)`: the likeliest scale of Student's t."""
        found = np.ones(len(self.kinds))
        for place, rows in enumerate(self.kinds):
            squares = errors[rows] ** 2
            count = len(squares) + PRIOR_ROWS
            scale = (float(np.median(squares)) * len(squares) + PRIOR_ROWS) / count
            for _ in range(SPREAD_TURNS):
                trusted = (TAIL_DEGREES + 1) * squares / (TAIL_DEGREES + squares / scale)
                scale = (float(trusted.sum()) + PRIOR_ROWS) / count
            found[place] = np.sqrt(scale)
        return found

    def measure(self, terms: FloatArray) -> float:
        """Measure how unlikely the times are under terms: less the logarithm of their likelihood, for each time."""
        errors = self.errors(terms)
        spreads = self.spreads(errors)
        told = [unlikely(errors[rows, None], spreads[[place]])[0] for place, rows in enumerate(self.kinds)]
        return float(sum(told)) / max(self.rows, 1)

    def miss_windows(self, terms: FloatArray) -> float:
        """Give the share by which the time of counted steps is missed: the mean size over the windows; 0 without any.

        A window in which steps were counted and none is served is missed whole.
        """
        missed = whole = 0.0
        for table, piece in self.pieces[self.walked :]:
            missed += float(np.abs(piece.sum(table.time(terms)) - piece.target).sum())
            whole += float(piece.target.sum())
        return missed / whole if whole > 0 else 0.0

    def bound(self) -> FloatArray:
        """Give the most that each term could be, if it alone took all the time: `(len(TERMS),)`."""
        used, whole = np.zeros(len(TERMS)), 0.0
        for table, piece in self.pieces:
            used += piece.sum(table.most_work()).sum(axis=0)
            whole += float(piece.target.sum())
        most: FloatArray = np.divide(whole, used, out=np.zeros(len(TERMS)), where=used > 0)
        return most

    def search(self, terms: FloatArray, sparse: bool = False) -> FloatArray:
        """Solve from several beginnings: a term at 0 has no say in which rank is the busiest, and would stay there.

        So each term in turn decides alone who the busiest ranks are, and is lifted beside the others.

        Args:
            sparse: attention is taken to read only some of the context, where times do not tell.
        """
        most = self.bound()
        alone = np.diag(most)[TERMS.index(OWN[0]) : -1]
        starts = [terms, *alone, *(terms + LIFT_RATIO * lift for lift in alone)]
        lean = lean_rows(most, sparse)
        return min((self.solve(start, lean) for start in starts), key=self.measure)

    def solve(
        self, terms: FloatArray, lean: tuple[FloatArray, FloatArray] | None = None, chosen: IntArray | None = None
    ) -> FloatArray:
        """Solve for the terms, finding the busiest ranks anew until they stay; the best of all turns counts.

        Args:
            lean: equations, `(n, len(TERMS))` and `(n,)`, that count beside the times, as they are.
            chosen: times to be used; all if not given.
        """
        rows = np.arange(self.rows) if chosen is None else chosen
        best: tuple[float, FloatArray] | None = None
        for _ in range(TURNS):
            design = self.design(terms)
            errors = self._target - design @ terms
            spreads = self.spreads(errors)
            scale = np.concatenate(
                [np.full(part.stop - part.start, spread) for part, spread in zip(self.kinds, spreads, strict=True)]
            )
            trust = 1.0 / np.sqrt(scale**2 + errors**2 / TAIL_DEGREES)
            matrix, target = design[rows] * trust[rows, None], (self._target * trust)[rows]
            if lean is not None:
                matrix, target = np.concatenate([matrix, lean[0]]), np.concatenate([target, lean[1]])
            terms = solve_positive(matrix, target)
            error = self.measure(terms)
            if best is None or error < best[0]:
                best = (error, terms)
        return terms if best is None else best[1]


def unlikely(errors: FloatArray, spread: FloatArray) -> FloatArray:
    """Give less the logarithm of the likelihood of errors, `(rows, many)`, under spreads, `(many,)`; up to a constant.

    Source: Student's t of `TAIL_DEGREES`.
    """
    squares = (errors / spread) ** 2 / TAIL_DEGREES
    told: FloatArray = (TAIL_DEGREES + 1) / 2 * np.log1p(squares).sum(axis=0) + len(errors) * np.log(spread)
    return told


@dataclass(frozen=True, slots=True, eq=False)
class _Lasting:
    """How long requests took, with the steps of a group that lie in them."""

    span: Span
    target: FloatArray
    scatter_ns: FloatArray

    def sum(self, amounts: FloatArray) -> FloatArray:
        return self.span.sum(amounts)

    def whiten(self, errors: FloatArray) -> FloatArray:
        told: FloatArray = errors / (self.scatter_ns if errors.ndim == 1 else self.scatter_ns[:, None])
        return told


def list_times(site: Site, outcome: Outcome, observed: Observed) -> Times:
    """List the stretches between tokens, and the windows, and find the steps that lie in them, as served."""
    known = table_steps(outcome)
    moments = list_moments(site, outcome, known, observed.arrival_ns, observed.first_ns, observed.end_ns)
    found = ((one.table, find_stretches(one)) for one in moments)
    walks = [(table, walk) for table, walk in found if walk is not None]
    return Times(walks, list_window_spans(known, observed.windows, observed.window_error_ratio))


def list_lasting(site: Site, outcome: Outcome, observed: Observed) -> Times:
    """List how long requests took, and the windows, and find the steps that lie in them, as served.

    The steps in one request are those in the next, so that these times tell less than stretches do; but they come out
    nearly right where steps are not yet the right ones.
    """
    served = outcome.requests
    number = served["request"]
    first, end = observed.first_ns[number], observed.end_ns[number]
    kept = served["refused"] == 0
    later = kept & (end >= 0) & (first >= 0) & (served["end_ns"] > served["first_ns"])
    kinds = (
        (kept & (first >= 0), "arrival_ns", "first_ns", "prefill_", first),
        (later, "first_ns", "end_ns", "", end - first),
        (kept & (end >= 0) & (first < 0), "arrival_ns", "end_ns", "", end),
    )
    known = table_steps(outcome)
    found: list[tuple[StepTable, Piece]] = []
    for mask, begin, until, role, told in kinds:
        rows = np.flatnonzero(mask)
        groups = list_groups(site, served[f"{role}worker"][rows], served[f"{role}rank"][rows])
        for key, table in known.items():
            mine = rows[groups == key[0] * GROUPS + key[1]]
            if len(mine):
                span = find_span(table, mine, served[begin][mine], served[until][mine])
                found.append((table, _last(table, span, told[mine].astype(float))))
    return Times(found, list_window_spans(known, observed.windows, observed.window_error_ratio))


def _last(table: StepTable, span: Span, target: FloatArray) -> _Lasting:
    """A moment that falls just before a step instead of just after it is off by one."""
    squares = STEP_SCATTER**2 * span.sum(table.total_ns.astype(float) ** 2)
    return _Lasting(span, target, np.sqrt(squares + float(np.median(table.total_ns)) ** 2))
