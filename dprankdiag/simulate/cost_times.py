"""Observed times and the steps that lie in them, as a run is served now; and the terms that explain them best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dprankdiag.simulate.base import FloatArray, IntArray
from dprankdiag.simulate.cost_windows import WINDOW_ERROR, Window, WindowSpan, list_window_spans
from dprankdiag.simulate.costs import OWN, TERMS, StepTable, solve_positive, table_steps
from dprankdiag.simulate.replay import Site
from dprankdiag.simulate.world_tables import Outcome

GUESSED_SHARES = (2.0, 0.5, 0.1, 0.4, 0.5, 0.3, 0.4)
"""Concentrations, term by term, of the random split that draws lean on where times do not tell; what is likely to be
little is leant on the more.

Attention reads every token of the context, and a row costs little beside that, unless attention is sparse: that is told
by the times or not at all.
"""

LEAST_NOISE = 1.0
"""Error that is taken to be there in any case, in units of what times are likely to be off by."""

LIFT_RATIO = 0.1
"""Of the most that a term could be, what it is lifted by to begin elsewhere."""

TURNS = 4
"""Times that the busiest ranks, and the times that are far off, are found anew for one run."""

FAR = 3.0
"""Times that are missed by much more than this, in units of what they are likely to be off by, say little."""

BLOCK = 256
"""Neighbouring times that are freed of what they share at once."""

UNSEEN_NS = 1e15
"""Edge of a time that says nothing."""

STEP_SCATTER = 0.03
"""How much the time of one and the same step scatters, as a share; healthy chips and hosts give 1 to 10 %."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How exactly the moments of a served run are known.

    Attributes:
        cut_steps: what an arrival is off by, in steps: it falls into a step, and where that began is not told.
        edge_steps: the same of a token, which comes at the end of a step.
        is_shared: times that share steps are known to share their scatter.
        in_time: the run was kept in the time of the recorded one, and misses a moment only where it holds other steps.
    """

    cut_steps: float = 1.0
    edge_steps: float = 1.0
    is_shared: bool = False
    in_time: bool = False


BY_COSTS = Precision()
LOOSE = Precision(in_time=True)
SHARP = Precision(0.3, 0.05, is_shared=True, in_time=True)
"""By costs alone; kept in time while costs are far off, so that much may be wrong; and when they are near."""


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """What was seen of a run.

    Attributes:
        first_ns, end_ns: of each request's first and last token, by its number: `(n,)` from its arrival; -1 if unknown.
        windows: steps that an engine counted.
        window_error_ratio: what the time of a window is off by beyond the scatter of its steps.
    """

    first_ns: IntArray
    end_ns: IntArray
    windows: tuple[Window, ...] = ()
    window_error_ratio: float = WINDOW_ERROR


class Times:
    """Observed times, and the steps that lie in each: those of requests in order of arrival, then those of windows.

    Times that share steps share their scatter too. So errors are compared free of what they share (whitened by the
    covariance that scattering steps give them), which leaves what terms alone explain.

    Args:
        edge_ns: `(n,)` what each time is off by beyond the scatter of its steps.
        missed_ns: `(n,)` by how much the run misses the moments that bound each time.
        is_shared: scatter is known to be shared; else each time is taken to be off by itself.

    Attributes:
        target: `(n,)` ns as observed.
        share: `(n,)` one over each time and a step.
    """

    def __init__(
        self,
        tables: Sequence[StepTable],
        spans: Sequence[Span | WindowSpan],
        target: FloatArray,
        edge_ns: FloatArray,
        missed_ns: FloatArray,
        is_shared: bool,
    ) -> None:
        self._tables, self._spans = tables, spans
        self.target = target
        step_ns = float(np.median(np.concatenate([table.total_ns for table in tables]))) if tables else 1.0
        self.share = 1.0 / (target + step_ns)
        self._missed = missed_ns / step_ns
        unseen = [span.rows[~span.is_seen] for span in spans if isinstance(span, WindowSpan)]
        self._unseen = np.zeros(len(target), bool)
        self._unseen[np.concatenate(unseen) if unseen else []] = True
        off_ns = np.hypot(edge_ns, missed_ns)
        self._blocks = list(whiten(tables, spans, np.where(self._unseen, UNSEEN_NS, off_ns), is_shared))
        self._freed_target = self.free(target)
        self._last_design: tuple[FloatArray, FloatArray] | None = None

    def free(self, amounts: FloatArray) -> FloatArray:
        """Free amounts of the times, `(n, ...)`, of what neighbours share: independent, in units of their noise."""
        freed = np.empty_like(amounts)
        for rows, inverse in self._blocks:
            freed[rows] = inverse @ amounts[rows]
        return freed

    def design(self, terms: FloatArray) -> FloatArray:
        """Sum what terms are multiplied by over the steps of each time, the busiest ranks by `terms` given."""
        last = self._last_design
        if last is not None and np.array_equal(last[0], terms):
            return last[1]
        summed = np.zeros((len(self.target), len(TERMS)))
        for table, span in zip(self._tables, self._spans, strict=True):
            summed[span.rows] = span.sum(table.design(terms))
        self._last_design = terms.copy(), summed
        return summed

    def errors(self, terms: FloatArray) -> FloatArray:
        """Give what terms miss of each time, in units of what it is likely to be off by: `(n,)`."""
        return self.free(self.target - self.design(terms) @ terms)

    def measure(self, terms: FloatArray) -> float:
        """Measure the error of terms, 0 to 1: errors much larger than `FAR` count as 1 and no more.

        So do a window in which steps were counted and none is served, and a time whose moments the run misses by far.

        Source: Geman and McClure, Bulletin of the International Statistical Institute 52 (1987).
        """
        squares = np.where(self._unseen, np.inf, self.errors(terms) ** 2 + self._missed**2)
        return float(np.mean(1 - FAR**2 / (squares + FAR**2)))

    def spread(self, terms: FloatArray) -> float:
        """Give the typical error in these units: the median of the sizes, as a standard deviation."""
        return max(1.4826 * float(np.median(np.abs(self.errors(terms)))), LEAST_NOISE)

    def miss_windows(self, terms: FloatArray, *, typically: bool = False) -> float:
        """Give the share by which the time of counted steps is missed: the mean size over the windows; 0 without any.

        A window in which steps were counted and none is served is missed whole.

        Args:
            typically: the median over the windows: what a few count of other steps does not matter.
        """
        rows = [span.rows for span in self._spans if isinstance(span, WindowSpan)]
        if not rows:
            return 0.0
        told = (self.design(terms) @ terms)[np.concatenate(rows)]
        target = self.target[np.concatenate(rows)]
        missed = np.abs(told - target)
        return float(np.median(missed / target) if typically else missed.sum() / target.sum())

    def bound(self) -> FloatArray:
        """Give the most that each term could be, if it alone took all the time: `(len(TERMS),)`."""
        used = np.zeros(len(TERMS))
        for table, span in zip(self._tables, self._spans, strict=True):
            used += span.sum(table.most_work()).sum(axis=0)
        most: FloatArray = np.divide(self.target.sum(), used, out=np.zeros(len(TERMS)), where=used > 0)
        return most

    def search(self, terms: FloatArray, leans: bool = True) -> FloatArray:
        """Solve from several beginnings: a term at 0 has no say in which rank is the busiest, and would stay there.

        So each term in turn decides alone who the busiest ranks are, and is lifted beside the others.

        Args:
            leans: terms lean on likely ones, where times do not tell them.
        """
        alone = np.diag(self.bound())[TERMS.index(OWN[0]) : -1]
        starts = [terms, *alone, *(terms + LIFT_RATIO * lift for lift in alone)]
        guess, lean = self.lean(terms) if leans else (None, None)
        return min((self.solve(start, None, guess, lean) for start in starts), key=self.measure)

    def lean(self, terms: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Give the likely share of each term, and how much to lean on it where times do not tell: as noise would."""
        most, shares = self.bound(), np.array(GUESSED_SHARES) / sum(GUESSED_SHARES)
        noise = self.spread(terms)
        return most * shares, np.divide(noise, most * shares, out=np.zeros(len(TERMS)), where=most > 0)

    def solve(
        self,
        terms: FloatArray,
        chosen: IntArray | None = None,
        guess: FloatArray | None = None,
        lean: FloatArray | None = None,
        noise: FloatArray | None = None,
    ) -> FloatArray:
        """Solve for the terms, finding the busiest ranks anew until they stay; the best of all turns counts.

        Args:
            chosen: times to be used; all if not given.
            guess, lean: what terms lean on, and how much, `(len(TERMS),)` each.
            noise: `(n,)` what the times are off by besides, in units of what they are likely to be off by.
        """
        rows = slice(None) if chosen is None else chosen
        best: tuple[float, FloatArray] | None = None
        seen = self._freed_target if noise is None else self._freed_target + noise
        trust, far = np.ones(len(self.target)), np.inf
        for _ in range(TURNS):
            left, right = (self.free(self.design(terms)) * trust[:, None])[rows], (seen * trust)[rows]
            if guess is not None and lean is not None:
                left = np.concatenate([left, np.diag(lean)])
                right = np.concatenate([right, guess * lean])
            terms = solve_positive(left, right)
            error = self.measure(terms)
            if best is None or error < best[0]:
                best = (error, terms)
            far = max(FAR, min(far, 2 * self.spread(terms)))
            trust = 1 / (1 + (self.errors(terms) / far) ** 2)
        return terms if best is None else best[1]


def whiten(
    tables: Sequence[StepTable], spans: Sequence[Span | WindowSpan], edge_ns: FloatArray, is_shared: bool
) -> Iterator[tuple[IntArray, FloatArray]]:
    """Find what frees times of the scatter that they share, in blocks of neighbours: their places, and a matrix.

    Two times share the squares of the steps that lie in both, as independent scatter adds up; each has an edge besides.

    Source: Aitken, Proceedings of the Royal Society of Edinburgh 55 (1936): generalised least squares.
    """
    begin, end, ratio = np.zeros(len(edge_ns)), np.zeros(len(edge_ns)), np.ones(len(edge_ns))
    group = np.zeros(len(edge_ns), np.int64)
    numbers: dict[int, int] = {}
    for table, span in zip(tables, spans, strict=True):
        begin[span.rows], end[span.rows] = span.find_sums((STEP_SCATTER * table.total_ns.astype(float)) ** 2)
        if isinstance(span, WindowSpan):
            # What is counted may be a part of the steps inside, or each of them several times.
            until_begin, until_end = span.find_sums(table.total_ns.astype(float))
            ratio[span.rows] = span.sum(table.total_ns.astype(float)) / np.maximum(until_end - until_begin, 1.0)
        group[span.rows] = numbers.setdefault(id(table), len(numbers))
    order: IntArray = np.lexsort((begin, group)).astype(np.int64)
    for first in range(0, len(order), BLOCK):
        rows = order[first : first + BLOCK]
        ends, begins, groups = end[rows], begin[rows], group[rows]
        shared = np.minimum(ends[:, None], ends) - np.maximum(begins[:, None], begins)
        covariance: FloatArray = np.where(groups[:, None] == groups, np.maximum(shared, 0.0), 0.0)
        covariance *= np.where(is_shared, 1.0, np.eye(len(rows)))
        covariance *= ratio[rows][:, None] * ratio[rows]
        covariance[np.diag_indices(len(rows))] += edge_ns[rows] ** 2
        yield rows, np.linalg.inv(np.linalg.cholesky(covariance))


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Moments among the steps of a group, for some of the times: a step that a moment cuts counts in part.

    Attributes:
        rows: the times, by their place.
        begin, end: the steps that hold the moments; -1 before the first.
        begin_share, end_share: the part of that step before the moment.
    """

    rows: IntArray
    begin: IntArray
    begin_share: FloatArray
    end: IntArray
    end_share: FloatArray

    def sum(self, amounts: FloatArray) -> FloatArray:
        """Sum amounts of steps, `(steps, ...)`, over each time."""
        begin, end = self.find_sums(amounts)
        summed: FloatArray = end - begin
        return summed

    def find_sums(self, amounts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Sum amounts of steps from the first one to where each time begins, and to where it ends."""
        sums = np.concatenate([np.zeros((1, *amounts.shape[1:])), np.cumsum(amounts, axis=0)])

        def until(place: IntArray, share: FloatArray) -> FloatArray:
            inside = np.maximum(place, 0)
            part = share if amounts.ndim == 1 else share[:, None]
            summed: FloatArray = sums[inside] + part * amounts[inside]
            return summed

        return until(self.begin, self.begin_share), until(self.end, self.end_share)


def find_span(table: StepTable, rows: IntArray, begin_ns: IntArray, end_ns: IntArray) -> Span:
    """Find moments among the steps of a group."""
    return Span(rows, *_find(table, begin_ns), *_find(table, end_ns))


def _find(table: StepTable, moment_ns: IntArray) -> tuple[IntArray, FloatArray]:
    place = np.searchsorted(table.start_ns, moment_ns, "right") - 1
    inside = np.maximum(place, 0)
    share = np.clip((moment_ns - table.start_ns[inside]) / np.maximum(table.total_ns[inside], 1), 0.0, 1.0)
    return place, np.where(place < 0, 0.0, share)


def list_times(site: Site, outcome: Outcome, observed: Observed, precision: Precision = BY_COSTS) -> Times:
    """List the observed times and find the steps that lie in them, as served."""
    served = outcome.requests
    number = served["request"]
    first, end = observed.first_ns[number], observed.end_ns[number]
    kept = served["refused"] == 0
    step_ns = float(np.median(outcome.steps["total_ns"])) if len(outcome.steps["total_ns"]) else 1.0
    off_first, off_end = (
        np.where((told >= 0) & precision.in_time, np.abs(served[name] - served["arrival_ns"] - told), 0)
        for name, told in (("first_ns", first), ("end_ns", end))
    )
    edges = (precision.cut_steps, precision.edge_steps, precision.cut_steps)
    missed: tuple[IntArray, ...] = (off_first, np.maximum(off_first, off_end), off_end)
    kinds = (
        (kept & (first >= 0), "arrival_ns", "first_ns", "prefill_", first),
        (
            kept & (end >= 0) & (first >= 0) & (served["end_ns"] > served["first_ns"]),
            "first_ns",
            "end_ns",
            "",
            end - first,
        ),
        (kept & (end >= 0) & (first < 0), "arrival_ns", "end_ns", "", end),
    )
    picked = [np.flatnonzero(mask) for mask, *_ in kinds]
    order = np.argsort(np.concatenate([number[rows] for rows in picked]), kind="stable")
    rank_of = np.empty(len(order), np.int64)
    rank_of[order] = np.arange(len(order))

    def line_up(columns: Sequence[FloatArray | IntArray]) -> FloatArray:
        return np.concatenate([told[rows] for rows, told in zip(picked, columns, strict=True)]).astype(float)[order]

    target = line_up([told for *_, told in kinds])
    edge_ns = line_up([np.full(len(number), ratio * step_ns) for ratio in edges])
    tables: list[StepTable] = []
    spans: list[Span | WindowSpan] = []
    known = table_steps(outcome)
    offset = 0
    for rows, (_, begin, until, role, _) in zip(picked, kinds, strict=True):
        groups = list_groups(site, served[f"{role}worker"][rows], served[f"{role}rank"][rows])
        for key, table in known.items():
            mine = np.flatnonzero(groups == key[0] * GROUPS + key[1])
            if len(mine):
                at = rows[mine]
                tables.append(table)
                spans.append(find_span(table, rank_of[offset + mine], served[begin][at], served[until][at]))
        offset += len(rows)
    spans_of_windows, counted = list_window_spans(known, observed.windows, len(target))
    tables += [table for table, _ in spans_of_windows]
    spans += [span for _, span in spans_of_windows]
    edge_ns = np.concatenate([edge_ns, observed.window_error_ratio * counted])
    missed_ns = np.concatenate([line_up(missed), np.zeros(len(counted))])
    return Times(tables, spans, np.concatenate([target, counted]), edge_ns, missed_ns, precision.is_shared)


GROUPS = 1 << 20


def list_groups(site: Site, workers: IntArray, ranks: IntArray) -> IntArray:
    """Number the group of each request: its worker times `GROUPS` and the group's first rank."""
    numbered: IntArray = workers * GROUPS + (0 if site.lockstep else ranks)
    return numbered
