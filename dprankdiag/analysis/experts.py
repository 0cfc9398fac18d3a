"""Find expert work that is uneven in the same way over steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dprankdiag.analysis.observations import Observations, order_steps
from dprankdiag.analysis.statistics import BoolArray, FloatArray, find_changes, find_events
from dprankdiag.analysis.thresholds import BURST_LEAST, LEAST_WORK_SHARE

EXPERT_LEAST = 0.05

EXPERT_SCORE = 5.5

FEWEST_EXPERT_STEPS = 8


@dataclass(frozen=True, slots=True)
class ExpertSkew:
    """Systematic expert work over a set of steps.

    Attributes:
        steps: `(n_steps,)` the steps.
        is_burst: single steps, not a run.
        levels: one a grid, `(n_positions, n_ranks)` expert time over the median rank's, speed taken out; NaN where
            there is none.
        hot: one a grid, `(n_positions, n_ranks)` ranks beyond chance.
    """

    steps: BoolArray
    is_burst: bool
    levels: tuple[FloatArray, ...]
    hot: tuple[BoolArray, ...]


def measure_experts(seen: Observations, slowness: FloatArray, step_ns: float) -> Iterator[ExpertSkew]:
    """Find the steps in which expert work is uneven, and who is hot in them.

    The imbalance of a step is what its slowest rank spends beyond the mean, over its layers; where that shifts, the
    steps are judged apart. Runs of steps that follow each other with the same ranks hot are one.
    """
    work = [
        grid.components["expert"] / slowness[seen.grid_of == grid_id][:, None, :]
        for grid_id, grid in enumerate(seen.grids)
    ]
    excess = order_steps(seen, [(part.max(axis=2) - part.mean(axis=2)).sum(axis=1) for part in work])
    if seen.n_steps < FEWEST_EXPERT_STEPS or not excess.any():
        return
    least = LEAST_WORK_SHARE * step_ns
    events = find_events(excess, BURST_LEAST * least)
    if events.mean() > 0.25:
        events[:] = False
    calm = np.where(events, np.median(excess), excess)
    last: ExpertSkew | None = None
    for first, stop in pairwise([0, *find_changes(calm, least=least), seen.n_steps]):
        steps = np.zeros(seen.n_steps, bool)
        steps[first:stop] = True
        skew = _expert_skew(seen, work, steps & ~events, is_burst=False)
        if last is not None and np.array_equal(_hot_ranks(last), _hot_ranks(skew)):
            last = _expert_skew(seen, work, last.steps | skew.steps, is_burst=False)
            continue
        if last is not None and _hot_ranks(last).any():
            yield last
        last = skew
    if last is not None and _hot_ranks(last).any():
        yield last
    if events.sum() >= 2:
        skew = _expert_skew(seen, work, events, is_burst=True)
        if _hot_ranks(skew).any():
            yield skew


def _hot_ranks(skew: ExpertSkew) -> BoolArray:
    """Mark the ranks that are hot in some layer, `(n_ranks,)`."""
    return np.asarray(np.any([hot.any(axis=0) for hot in skew.hot], axis=0))


def _expert_skew(seen: Observations, work: Sequence[FloatArray], steps: BoolArray, *, is_burst: bool) -> ExpertSkew:
    levels, hot = [], []
    for grid_id, part in enumerate(work):
        chosen = part[seen.select(grid_id, steps)]
        if len(chosen) < 2:
            levels.append(np.full(part.shape[1:], np.nan))
            hot.append(np.zeros(part.shape[1:], bool))
            continue
        middle = np.median(chosen, axis=2, keepdims=True)
        has_work = np.median(middle[:, :, 0], axis=0) > 0
        ratio = chosen / np.maximum(middle, 1.0)
        level = ratio.mean(axis=0)
        error = 1.5 * ratio.std(axis=0, ddof=1) / np.sqrt(len(chosen))
        hot.append((level - 1.0 > np.maximum(EXPERT_SCORE * error, EXPERT_LEAST)) & has_work[:, None])
        levels.append(np.where(has_work[:, None], level, np.nan))
    return ExpertSkew(steps, is_burst, tuple(levels), tuple(hot))
