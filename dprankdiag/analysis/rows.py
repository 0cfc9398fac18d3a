"""Measure what a rank's own rows add to its work before the gather, attention apart.

Projections and norms run over the rows of the rank's own batch; a prompt's rows may outnumber the decoders' a hundred
times. That this is rows and no slow chip shows where the work is longer: before the gather alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.observations import Observations, mark_next
from dprankdiag.analysis.standouts import Standout
from dprankdiag.analysis.statistics import MEDIAN_ERROR, OUTLIER_SCORE, BoolArray, FloatArray, robust_sd
from dprankdiag.analysis.thresholds import SPEED_PRIOR_SD

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class RowWork:
    """Work before the gather that is longer on ranks with more rows.

    Attributes:
        spread, lift: factors that spread the excess evenly, and that take it away; one array a grid, `(n_steps,
            n_positions, n_ranks)`.
    """

    component: str
    spread: tuple[FloatArray, ...]
    lift: tuple[FloatArray, ...]


def measure_row_work(seen: Observations, slowness: FloatArray, standout: Standout, component: str) -> RowWork | None:
    """Hold a component's work before the gather on the ranks and steps meant against that of the rest.

    What a step ends with lies in the first segment of the next one, which may be none of those meant.

    Args:
        slowness: `(n_steps, n_ranks)`.

    Returns:
        None where it is not longer, beyond what steps scatter and chips differ.
    """
    own = [before_gather(grid.side) for grid in seen.grids]
    first = [np.arange(len(places)) == 0 for places in own]
    after = mark_next(seen, standout.marks) & ~standout.marks.any(axis=1, keepdims=True)
    found = [
        _spread_out(seen, component, slowness, marks, places)
        for marks, places in ((standout.marks, own), (after, first))
    ]
    pairs = [pair for pair in found if pair is not None]
    if not pairs:
        return None
    factors = [tuple(np.prod(each, axis=0) for each in zip(*parts, strict=True)) for parts in zip(*pairs, strict=True)]
    return RowWork(component, factors[0], factors[1])


def _spread_out(
    seen: Observations, component: str, slowness: FloatArray, marks: BoolArray, places: Sequence[BoolArray]
) -> tuple[list[FloatArray], list[FloatArray]] | None:
    """Make the factors that spread the excess at some positions, and that take it away; None if there is none."""
    work = _sum_where(seen, component, places) / slowness
    rest = _middle_of_rest(work, marks)
    known: BoolArray = np.asarray(marks.any(axis=1) & (rest > 0))
    if not known.any():
        return None
    excess = np.where(marks, np.maximum(work - rest[:, None], 0.0), 0.0)
    own = np.divide((work * marks).sum(axis=1), np.maximum(marks.sum(axis=1), 1))[known] - rest[known]
    error = MEDIAN_ERROR * float(robust_sd(own)) / np.sqrt(len(own))
    doubt = float(np.hypot(SPEED_PRIOR_SD * np.median(rest[known]), error))
    if float(np.median(own)) <= OUTLIER_SCORE * doubt:
        return None
    pairs = [
        _divide_excess(grid.components[component], slowness[mine], marks[mine], excess[mine], chosen)
        for grid, mine, chosen in zip(seen.grids, list_rows(seen), places, strict=True)
    ]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def list_rows(seen: Observations) -> list[BoolArray]:
    """Tell which steps, `(n_steps,)`, each grid holds."""
    return [np.asarray(seen.grid_of == grid_id) for grid_id in range(len(seen.grids))]


def _divide_excess(
    values: IntArray, slowness: FloatArray, marks: BoolArray, excess: FloatArray, places: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Make the factors of a kind of step, each position having the part of the excess that it usually has.

    The first position also holds the end of the step before, which rows lengthen otherwise than projections.

    Args:
        values: `(n_steps, n_positions, n_ranks)`.
        excess: `(n_steps, n_ranks)` summed over the places.
        places: `(n_positions,)`.
    """
    factors = np.ones(values.shape), np.ones(values.shape)
    if not places.any() or not excess.any():
        return factors
    work = values[:, places] / slowness[:, None, :]
    over = work - _middle_of_rest(work.swapaxes(1, 2), marks[:, :, None])[:, :, None]
    usual = np.maximum(over.swapaxes(1, 2)[marks].mean(axis=0), 0.0)
    more = excess[:, None, :] * (usual / max(float(usual.sum()), 1.0))[None, :, None]
    less = np.maximum(work - more, 0.0)
    known = (work > 0) & np.any(excess > 0, axis=1)[:, None, None]
    for factor, wanted in zip(factors, (less + (work - less).mean(axis=2, keepdims=True), less), strict=True):
        factor[:, places] = np.where(known, wanted / np.maximum(work, 1.0), 1.0)
    return factors


def sum_before_gather(seen: Observations, component: str) -> FloatArray:
    """Sum a component over the segments that lie, at least in part, before the gather, `(n_steps, n_ranks)`."""
    return _sum_where(seen, component, [before_gather(grid.side) for grid in seen.grids])


def sum_after_gather(seen: Observations, component: str) -> FloatArray:
    """Sum a component over the segments that lie wholly after the gather, `(n_steps, n_ranks)`."""
    return _sum_where(seen, component, [~before_gather(grid.side) for grid in seen.grids])


def _sum_where(seen: Observations, component: str, places: Sequence[BoolArray]) -> FloatArray:
    work = np.zeros((seen.n_steps, seen.n_ranks))
    for grid, mine, chosen in zip(seen.grids, list_rows(seen), places, strict=True):
        work[mine] = grid.components[component][:, chosen].sum(axis=1)
    return work


def before_gather(side: tuple[str, ...]) -> BoolArray:
    """Mark the positions whose segments lie, at least in part, before the gather."""
    return np.array([name != "post" for name in side], bool)


def _middle_of_rest(work: FloatArray, marks: BoolArray) -> FloatArray:
    """Return the median over the ranks (axis 1) not meant in each step, `work` without that axis; 0 where all are."""
    rest = np.zeros((len(work), *work.shape[2:]))
    some = ~marks.reshape(len(marks), -1).all(axis=1)
    rest[some] = np.nanmedian(np.where(marks, np.nan, work)[some], axis=1)
    return rest
