"""Tell whether work after the gather follows the busiest rank's rows.

Where rows are padded to the longest batch (or to a graph captured for it), one rank's requests lengthen the kernels
after the gather on every rank alike, and no wait shows it (DESIGN 2.1, rule 9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.statistics import BoolArray, FloatArray, robust_sd

PADDED = ("expert", "probe", "other")
"""Components of the work after the gather."""

FEWEST_STEPS = 5
ROWS_APART = 1.1
"""The busiest rank's rows must differ this much between steps for work to be held against them."""

LEAST_GROWTH = 0.02
GROWTH_SCORE = 5.0
MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal samples."""


@dataclass(frozen=True, slots=True)
class Line:
    """Time a step as a line in rows: `base_ns + per_row_ns * rows`."""

    base_ns: float
    per_row_ns: float

    def at(self, rows: FloatArray) -> FloatArray:
        """Give the time at so many rows, `(n,)`."""
        return self.base_ns + self.per_row_ns * rows


@dataclass(frozen=True, slots=True)
class Padding:
    """Work after the gather that follows the busiest rank's rows.

    Attributes:
        rows: `(n_steps, n_ranks)` rows of every rank's batch.
        lines: by component, the median rank's time a step.
    """

    rows: FloatArray
    lines: Mapping[str, Line]

    def excess_ns(self, target: FloatArray) -> FloatArray:
        """Give how much longer each step's work is than with `target` rows, `(n_steps,)`."""
        top = self.rows.max(axis=1)
        return np.asarray(sum(line.at(top) - line.at(np.minimum(target, top)) for line in self.lines.values()))

    def shrink(self, component: str, target: FloatArray) -> FloatArray:
        """Give the factor that brings a component from the busiest rank's rows to `target`, `(n_steps,)`."""
        top, line = self.rows.max(axis=1), self.lines[component]
        return np.asarray(line.at(np.minimum(target, top)) / np.maximum(line.at(top), 1.0))


def even_rows(padding: Padding) -> FloatArray:
    """Give the rows of the busiest rank were all rows spread evenly: whole requests, `(n_steps,)`."""
    return np.asarray(np.ceil(padding.rows.mean(axis=1)))


def judge_padding(seen: Observations) -> Padding | str | None:
    """Hold the work after the gather against the busiest rank's rows, between steps with few and with many.

    Work that is not padded follows the rows of all ranks together, and grows by no more than they do; what grows by
    more follows the busiest rank.

    Returns:
        The padding; None if there is none; or why it cannot be judged.
    """
    rows = _tabulate_rows(seen)
    if rows is None:
        return "the rows of the ranks' batches are not annotated in every step"
    of_kind = seen.grid_of == 0
    top, mean = rows.max(axis=1), rows.mean(axis=1)
    middle = (float(top[of_kind].min()) + float(top[of_kind].max())) / 2
    low, high = of_kind & (top <= middle), of_kind & (top > middle)
    if min(low.sum(), high.sum()) < FEWEST_STEPS or top[high].mean() < ROWS_APART * top[low].mean():
        return "the busiest rank holds about as many rows in all steps"
    work = {name: _sum_after_gather(seen, name) for name in PADDED}
    total = np.asarray(sum(work.values()))
    usual = float(np.median(total[low]))
    if usual <= 0:
        return "no work after the gather was seen"
    growth = float(np.median(total[high])) / usual - 1.0
    common = max(float(mean[high].mean() / mean[low].mean()) - 1.0, 0.0)
    if growth - common < max(LEAST_GROWTH, GROWTH_SCORE * _growth_error(total, low, high)):
        return None
    return Padding(rows, {name: _fit_line(values, top, low, high) for name, values in work.items()})


def _tabulate_rows(seen: Observations) -> FloatArray | None:
    """Lay out what annotations say of rows, `(n_steps, n_ranks)`: requests, and prompt tokens where there are some.

    Returns:
        None if a rank's batch is not known in some step.
    """
    columns = []
    for series in seen.batches:
        rows = series.requests + series.prefill_tokens
        step = seen.find_step(series.start_ns)
        inside = step < seen.n_steps
        count = np.bincount(step[inside], minlength=seen.n_steps)
        columns.append(np.bincount(step[inside], rows[inside], minlength=seen.n_steps) / np.where(count, count, np.nan))
    table = np.stack(columns, axis=1) if columns else np.full((1, 1), np.nan)
    return None if np.isnan(table).any() else np.asarray(table)


def _sum_after_gather(seen: Observations, component: str) -> FloatArray:
    """Sum a component over the segments after the gather, `(n_steps,)`; the median rank's."""
    found = np.zeros(seen.n_steps)
    for grid_id, grid in enumerate(seen.grids):
        after = is_after_gather(grid.side)
        found[seen.grid_of == grid_id] = np.median(grid.components[component][:, after].sum(axis=1), axis=1)
    return found


def is_after_gather(side: tuple[str, ...]) -> BoolArray:
    """Mark the positions whose segments lie wholly after the gather."""
    return np.array([name == "post" for name in side], bool)


def _growth_error(total: FloatArray, low: BoolArray, high: BoolArray) -> float:
    errors = [float(robust_sd(total[part])) / np.sqrt(part.sum()) for part in (low, high)]
    return MEDIAN_ERROR * float(np.hypot(*errors)) / float(np.median(total[low]))


def _fit_line(values: FloatArray, rows: FloatArray, low: BoolArray, high: BoolArray) -> Line:
    """Draw the line through the medians of both parts; time that falls with the rows does not follow them."""
    before, after = float(np.median(values[low])), float(np.median(values[high]))
    few, many = float(rows[low].mean()), float(rows[high].mean())
    per_row = max(after - before, 0.0) / (many - few)
    return Line(before - per_row * few, per_row)
