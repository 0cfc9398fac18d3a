"""Find steps in which equal work takes longer on every rank than in the rest of the recording."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dprankdiag.analysis.batches import tabulate_rows
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.statistics import BoolArray, FloatArray, find_changes

FEWEST_STEPS = 40
SHORTEST_RUN = 20
FEWEST_ALIKE = 5
"""Steps of a slow run that hold as many rows as some of the others."""

LEAST_GROWTH = 1.03
"""A difference worth naming (DESIGN 2.1, rule 16: three per cent)."""

ALIKE_SHARE = 0.7
"""Ranks, and where nobody tells the rows kinds of work, must grow by at least this share of what the most does."""


def find_common_slowdown(seen: Observations) -> tuple[BoolArray, float] | None:
    """Find runs of steps in which equal work takes longer on every rank, though there is no more of it.

    Launches of one shape may hold more rows: a graph captured for a larger batch, or kernels that fill the chip
    whatever there is to do. Where annotations tell the rows, only steps that hold as many are compared; where they do
    not, attention and experts must be longer by about as much.

    Returns:
        The steps and the ratio; None if there are none or it cannot be told.
    """
    probe = seen.sums["probe"]
    if np.median(probe) <= 0 or seen.n_steps < FEWEST_STEPS:
        return None
    ratio = _relative_to_kind(seen, probe)
    edges = [0, *find_changes(np.median(ratio, axis=1), shortest=SHORTEST_RUN, least=LEAST_GROWTH - 1), seen.n_steps]
    runs = [(a, b, np.median(ratio[a:b], axis=0)) for a, b in pairwise(edges)]
    if len(runs) < 2:
        return None
    first, stop, _ = min(runs, key=lambda run: float(np.median(run[2])))
    calm = np.zeros(seen.n_steps, bool)
    calm[first:stop] = True
    steps = np.zeros(seen.n_steps, bool)
    worst = 1.0
    for first, stop, _ in runs:
        run = np.zeros(seen.n_steps, bool)
        run[first:stop] = True
        growth = _measure_growth(seen, ratio, calm, run & ~calm)
        if growth is not None:
            steps |= run
            worst = max(worst, growth)
    return (steps, worst) if steps.any() else None


def _measure_growth(seen: Observations, ratio: FloatArray, calm: BoolArray, run: BoolArray) -> float | None:
    """Measure how much longer equal work takes in a run; None unless all ranks, at like rows, show it alike."""
    if not run.any():
        return None
    growth = np.median(ratio[run], axis=0) / np.median(ratio[calm], axis=0)
    rows = tabulate_rows(seen)
    if np.isnan(rows).all(axis=1).any():
        others = [_grow(seen, name, calm, run) for name in ("attention", "expert")]
        least = 1 + ALIKE_SHARE * (float(np.median(growth)) - 1)
        if min((other for other in others if other is not None), default=0.0) < least:
            return None
    else:
        # A graph is captured for the rows of the busiest rank; without graphs each rank's own rows count.
        most = np.nanmax(rows, axis=1)
        at_like = [
            min(_compare_alike(values, ratio[:, rank], calm, run) for values in (most, np.nan_to_num(rows[:, rank])))
            for rank in range(seen.n_ranks)
        ]
        growth = np.minimum(growth, at_like)
    alike = growth.min() - 1 >= ALIKE_SHARE * (growth.max() - 1)
    return float(np.median(growth)) if growth.min() >= LEAST_GROWTH and alike else None


def _compare_alike(rows: FloatArray, ratio: FloatArray, calm: BoolArray, run: BoolArray) -> float:
    """Compare the steps of a run with calm ones that hold as many rows; 0 with too few of them.

    Args:
        rows, ratio: `(n_steps,)` of one rank.
    """
    shared = np.intersect1d(rows[calm], rows[run])
    if np.isin(rows[run], shared).sum() < FEWEST_ALIKE:
        return 0.0
    pairs = [(ratio[run & (rows == value)], ratio[calm & (rows == value)]) for value in shared]
    weights = [min(len(after), len(before)) for after, before in pairs]
    return float(np.average([np.median(after) / np.median(before) for after, before in pairs], weights=weights))


def _grow(seen: Observations, component: str, calm: BoolArray, run: BoolArray) -> float | None:
    """Tell how much longer a kind of work is in the median rank; None without such work."""
    work = np.median(_relative_to_kind(seen, seen.sums[component]), axis=1)
    usual = float(np.median(work[calm]))
    return float(np.median(work[run])) / usual if usual > 0 else None


def _relative_to_kind(seen: Observations, work: FloatArray) -> FloatArray:
    """Divide by the median of all steps of the kind."""
    usual = np.ones(seen.n_steps)
    for grid_id in range(len(seen.grids)):
        mine = seen.grid_of == grid_id
        usual[mine] = np.median(work[mine])
    return np.asarray(work / np.maximum(usual, 1.0)[:, None])
