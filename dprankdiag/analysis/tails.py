"""Find what the end of a padded step adds to the step that follows.

What a step ends with (the output head, sampling) lies in the first segment of the next step, which may be replayed for
fewer rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.observations import Observations, mark_next
from dprankdiag.analysis.padding import GROWTH_SCORE, LEAST_GROWTH, REPLAYED
from dprankdiag.analysis.rows import list_rows
from dprankdiag.analysis.statistics import MEDIAN_ERROR, BoolArray, FloatArray, robust_sd

FEWEST_OTHERS = 3
COMPONENTS = ("probe", "other")


def shrink_tails(
    seen: Observations, steps: BoolArray, rows: FloatArray, target: FloatArray
) -> Iterator[tuple[str, list[FloatArray]]]:
    """Give the factors that bring the ends of padded steps to `target` rows where they lie in other, replayed steps.

    Args:
        steps: `(n_steps,)` the padded ones.
        rows, target: `(n_steps,)` rows of the busiest rank, as they were and as they would be.
    """
    after = mark_next(seen, steps) & ~steps
    before = np.maximum(np.arange(len(steps)) - 1, 0)
    span = np.maximum(rows[before] - rows, 1.0)
    gone = np.clip((rows[before] - target[before]) / span, 0.0, 1.0)
    for component in COMPONENTS:
        factors = [np.ones((len(grid.number), grid.segment.shape[1], grid.segment.shape[2])) for grid in seen.grids]
        for grid, mine, factor in zip(seen.grids, list_rows(seen), factors, strict=True):
            late, usual = after[mine], ~(after | steps)[mine]
            if grid.kind != REPLAYED or not late.any() or usual.sum() < FEWEST_OTHERS:
                continue
            first = grid.components[component][:, 0]
            middle = np.median(first, axis=1)
            more = float(np.median(middle[late]) - np.median(middle[usual]))
            error = MEDIAN_ERROR * float(robust_sd(middle[usual])) * float(np.sqrt(1 / late.sum() + 1 / usual.sum()))
            if more > max(GROWTH_SCORE * error, LEAST_GROWTH * float(np.median(middle[usual]))):
                left = 1.0 - more * gone[mine][late][:, None] / np.maximum(first[late], 1)
                factor[late, 0] = np.where(first[late] > 0, np.maximum(left, 0.0), 1.0)
        if any((factor != 1.0).any() for factor in factors):
            yield component, factors
