"""Find prompts that some ranks compute while the others wait for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dprankdiag.analysis.batches import tabulate_prompts
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.rows import sum_before_gather
from dprankdiag.analysis.standouts import (
    FEWEST_EVENTS,
    Standout,
    choose_by_loss,
    describe_burst,
    group_by_steps,
    relative_to_step,
)
from dprankdiag.analysis.statistics import OUTLIER_SCORE, BoolArray, FloatArray, robust_sd
from dprankdiag.analysis.thresholds import LEAST_WORK_SHARE

MORE_TOKENS = 1.5
"""Prompt tokens over the mean of all ranks in a step from which they are uneven: a tail of a chunk here and there is
not."""

MOSTLY = 0.5
"""Prompts in more of the steps are no events but the rank's usual load."""


def find_prompts(seen: Observations, slowness: FloatArray) -> Standout | None:
    """Find the steps in which ranks hold far more prompt tokens than the mean rank and work longer for it.

    Which steps those are is known, from batch annotations or from the names of kernels, so that short prompts count
    with the long ones; that the others wait for them must show in the work before the gather.

    Args:
        slowness: `(n_steps, n_ranks)`.

    Returns:
        The ranks that hold four fifths of the excess; None if there are no such steps.
    """
    tokens = tabulate_prompts(seen)
    marks = tokens > MORE_TOKENS * tokens.mean(axis=1, keepdims=True)
    if marks.any(axis=1).sum() < FEWEST_EVENTS:
        return None
    attention = seen.sums["attention"] / slowness
    work = attention + sum_before_gather(seen, "probe") / slowness + sum_before_gather(seen, "other") / slowness
    excess, scatter = _measure_excess(work, marks)
    chosen = choose_by_loss(np.maximum(excess, 0.0).sum(axis=0)) & (excess.sum(axis=0) > 0)
    marks &= chosen
    steps = marks.any(axis=1)
    if steps.sum() < FEWEST_EVENTS:
        return None
    heights = excess[marks]
    sure = float(np.median(heights)) > OUTLIER_SCORE * scatter / np.sqrt(len(heights))
    total = float(np.where(marks, excess, 0.0).max(axis=1).sum())
    if not sure or total < LEAST_WORK_SHARE * float(seen.duration_ns.sum()):
        return None
    ranks = [int(rank) for rank in np.flatnonzero(chosen)]
    in_turn = len(group_by_steps(marks, ranks)) > 1
    found = describe_burst(relative_to_step(attention), marks, ranks, in_turn=in_turn)
    return replace(found, mask=chosen, is_burst=in_turn or bool(steps.mean() <= MOSTLY))


def _measure_excess(work: FloatArray, marks: BoolArray) -> tuple[FloatArray, float]:
    """Hold work against the median of the ranks without more prompts than others.

    Returns:
        `(n_steps, n_ranks)`, 0 where nothing is marked, and what the others scatter about their median.
    """
    rest = np.nanmedian(np.where(marks, np.nan, work), axis=1, keepdims=True)
    held_up = marks.any(axis=1)
    scatter = float(robust_sd((work - rest)[held_up][~marks[held_up]]))
    return np.where(marks, work - rest, 0.0), scatter
