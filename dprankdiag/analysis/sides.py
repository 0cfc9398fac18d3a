"""Hold equal work on one side of the gather against that of the other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.loads import ROWS_ALIKE
from dprankdiag.analysis.observations import Observations, order_steps
from dprankdiag.analysis.skews import Skews
from dprankdiag.analysis.speed import LEAST_SPEED_SHARE
from dprankdiag.analysis.statistics import MEDIAN_ERROR, BoolArray, FloatArray, find_high, robust_sd
from dprankdiag.analysis.thresholds import SPEED_PRIOR_SD

Side = Literal["pre", "post"]


def projects_more(
    seen: Observations, skews: Skews, mask: BoolArray, levels: Sequence[BoolArray], requests: float | None
) -> bool:
    """Tell whether work of equal launch shape before the gather is longer on the same ranks at both loads.

    Contexts lengthen attention alone. Rows that differ show in annotations, else in launch shapes.

    Args:
        levels: `(n_steps,)` the steps at each load.
        requests: those of the ranks over the others'; None where annotations do not tell.
    """
    if requests is None and seen.row_ratio is not None:
        requests = float(seen.row_ratio[mask].max())
    elif requests is None and all("graph" in grid.kind for grid in seen.grids):
        # A graph runs the same rows on every rank, whatever it holds.
        requests = 1.0
    if requests is None or abs(requests - 1.0) > ROWS_ALIKE:
        return False
    return all(_find_slow(seen, skews, mask, part, "pre")[mask].all() for part in levels)


def is_slow_beyond(seen: Observations, skews: Skews, mask: BoolArray, steps: BoolArray, side: Side) -> bool:
    """Tell whether equal work is longer on the other side of the gather, too; a slow memory shows little there."""
    return bool(_find_slow(seen, skews, mask, steps, "post" if side == "pre" else "pre")[mask].any())


def _find_slow(seen: Observations, skews: Skews, mask: BoolArray, steps: BoolArray, side: Side) -> BoolArray:
    """Mark the ranks, `(n_ranks,)`, whose equal work on a side of the gather is longer than the others'."""
    ratio = order_steps(seen, [_compare_probes(grid, mask, side) for grid in seen.grids]) / skews.slowness
    level = np.median(ratio[steps], axis=0)
    error = MEDIAN_ERROR * np.asarray(robust_sd(ratio[steps], axis=0)) / np.sqrt(steps.sum())
    return find_high(level, error, SPEED_PRIOR_SD, LEAST_SPEED_SHARE).mask


def _compare_probes(grid: StepGrid, mask: BoolArray, side: Side) -> FloatArray:
    """Return the equal work on a side of the gather over the median of the ranks left, in the median layer.

    Returns:
        `(n_steps, n_ranks)`; 1 where there is none.
    """
    of_side = np.array(grid.side) == side
    if not of_side.any() or mask.all():
        return np.ones((len(grid.number), len(mask)))
    probe = grid.components["probe"][:, of_side].astype(np.float64)
    rest = np.median(probe[:, :, ~mask], axis=2, keepdims=True)
    has_work = np.median(rest, axis=(0, 2)) > 0
    if not has_work.any():
        return np.ones((len(probe), len(mask)))
    return np.asarray(np.median(probe[:, has_work] / np.maximum(rest[:, has_work], 1.0), axis=1))
