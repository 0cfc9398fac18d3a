"""Measure what a rank's own rows add to its work before the gather, attention apart.

Projections and norms run over the rows of the rank's own batch; a prompt's rows may outnumber the decoders' a hundred
times. That this is rows and no slow chip shows where the work is longer: before the gather alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.standouts import Standout
from dprankdiag.analysis.statistics import OUTLIER_SCORE, BoolArray, FloatArray, robust_sd
from dprankdiag.analysis.thresholds import SPEED_PRIOR_SD

MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal samples."""


@dataclass(frozen=True, slots=True)
class RowWork:
    """Work before the gather that is longer on ranks with more rows.

    Attributes:
        spread, lift: `(n_steps, n_ranks)` factors that spread the excess evenly, and that take it away.
    """

    component: str
    spread: FloatArray
    lift: FloatArray


def measure_row_work(seen: Observations, slowness: FloatArray, standout: Standout, component: str) -> RowWork | None:
    """Hold a component's work before the gather on the ranks and steps meant against that of the rest.

    Args:
        slowness: `(n_steps, n_ranks)`.

    Returns:
        None where it is not longer, beyond what steps scatter and chips differ.
    """
    work = sum_before_gather(seen, component) / slowness
    marks, steps = standout.marks, standout.steps
    rest = _middle_of_rest(work, marks)
    excess = np.where(marks, np.maximum(work - rest[:, None], 0.0), 0.0)
    known = steps & (rest > 0)
    if not known.any():
        return None
    own = np.divide((work * marks).sum(axis=1), np.maximum(marks.sum(axis=1), 1))[known] - rest[known]
    error = MEDIAN_ERROR * float(robust_sd(own)) / np.sqrt(len(own))
    doubt = float(np.hypot(SPEED_PRIOR_SD * np.median(rest[known]), error))
    if float(np.median(own)) <= OUTLIER_SCORE * doubt:
        return None
    share = excess.mean(axis=1, keepdims=True)
    even = np.where(excess > 0, work - excess, work) + share
    busy = known[:, None] & (work > 0)
    safe = np.maximum(work, 1.0)
    return RowWork(
        component,
        np.where(busy, even / safe, 1.0),
        np.where(busy, (work - excess) / safe, 1.0),
    )


def sum_before_gather(seen: Observations, component: str) -> FloatArray:
    """Sum a component over the segments that lie, at least in part, before the gather, `(n_steps, n_ranks)`."""
    return _sum_where(seen, component, [before_gather(grid.side) for grid in seen.grids])


def sum_after_gather(seen: Observations, component: str) -> FloatArray:
    """Sum a component over the segments that lie wholly after the gather, `(n_steps, n_ranks)`."""
    return _sum_where(seen, component, [~before_gather(grid.side) for grid in seen.grids])


def _sum_where(seen: Observations, component: str, places: Sequence[BoolArray]) -> FloatArray:
    work = np.zeros((seen.n_steps, seen.n_ranks))
    for grid_id, (grid, chosen) in enumerate(zip(seen.grids, places, strict=True)):
        work[seen.grid_of == grid_id] = grid.components[component][:, chosen].sum(axis=1)
    return work


def before_gather(side: tuple[str, ...]) -> BoolArray:
    """Mark the positions whose segments lie, at least in part, before the gather."""
    return np.array([name != "post" for name in side], bool)


def _middle_of_rest(work: FloatArray, marks: BoolArray) -> FloatArray:
    """Return the median of the ranks not meant in each step, `(n_steps,)`; 0 where all are meant."""
    rest = np.zeros(len(work))
    some = ~marks.all(axis=1)
    rest[some] = np.nanmedian(np.where(marks, np.nan, work)[some], axis=1)
    return rest
