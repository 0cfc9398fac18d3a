"""Tell how slow each kind of a rank's work is on a slow chip, whose kernels do not all suffer alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dprankdiag.analysis.observations import Observations, order_steps
from dprankdiag.analysis.standouts import Standout
from dprankdiag.analysis.statistics import BoolArray, FloatArray

SLOW_CHIP_MARGIN = 1.15
"""Work limited by memory may suffer this much more on a slow chip than the probe family that suffers most."""


def measure_slowness(
    seen: Observations, component: str, slowness: FloatArray, speed: Sequence[Standout], worst_family: FloatArray
) -> FloatArray:
    """Measure by how much a component is longer because of the chip, `(n_steps, n_ranks)`.

    In single steps in which a chip is slow, all by which the component exceeds the rank's own habit is the chip's: that
    other work should grow in just these steps would be chance. Over a run of steps it is what all positions of a step
    have in common, up to a little more than what the worst family of equal work suffers.

    Args:
        slowness: `(n_steps, n_ranks)` of equal work; holds wherever no chip is slow.
        worst_family: `(n_ranks,)` as `Skews`.
    """
    if not speed:
        return slowness
    ratio = _compare_positions(seen, component, speed)
    found = slowness.copy()
    for item in speed:
        if item.is_burst:
            calm = ~item.steps
            habit = np.median(ratio[calm], axis=0) if calm.any() else np.ones(seen.n_ranks)
            found[item.marks] = np.maximum(ratio / np.maximum(habit, 1e-3), 1.0)[item.marks]
            continue
        level = np.median(ratio[item.steps], axis=0)
        most = SLOW_CHIP_MARGIN * np.maximum(worst_family, np.median(slowness[item.steps], axis=0))
        found = np.where(item.marks, np.clip(level, 1.0, most), found)
    return found


def _compare_positions(seen: Observations, component: str, speed: Sequence[Standout]) -> FloatArray:
    """Hold a component against the median rank that is not slow, at the median position of each step.

    Returns:
        `(n_steps, n_ranks)`, 1 where a step holds nothing of it.
    """
    ill: BoolArray = np.any([item.mask for item in speed], axis=0)
    parts = []
    for grid in seen.grids:
        work = grid.components[component].astype(np.float64)
        usual = np.median(work[:, :, ~ill] if not ill.all() else work, axis=2, keepdims=True)
        has_work = usual[:, :, 0] > 0
        ratio = np.where(has_work[:, :, None], work / np.maximum(usual, 1.0), np.nan)
        ratio[~has_work.any(axis=1)] = 1.0
        parts.append(np.nanmedian(ratio, axis=1))
    return order_steps(seen, parts)
