"""Find the ranks that stand out in a per-step series, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dprankdiag.analysis.statistics import (
    BoolArray,
    FloatArray,
    draw_blocks,
    find_changes,
    find_events,
    find_high,
    peer_median,
    robust_sd,
)

FEWEST_STEPS = 8
RESAMPLES = 200


@dataclass(frozen=True, slots=True)
class Standout:
    """Ranks that stand out over a run of steps.

    Attributes:
        first, stop: half-open range of steps.
        mask: `(n_ranks,)` the ranks.
        levels: `(n_ranks,)` level of every rank in these steps.
        centre: level of the rest.
        score: robust z of the weakest member.
        support: share of block-bootstrap resamples that give the same ranks.
    """

    first: int
    stop: int
    mask: BoolArray
    levels: FloatArray
    centre: float
    score: float
    support: float


def relative_to_step(values: FloatArray) -> FloatArray:
    """Divide by what the step asks of everybody: the median rank (of two ranks, the lesser)."""
    base = values.min(axis=1) if values.shape[1] == 2 else np.median(values, axis=1)
    return np.asarray(values / np.maximum(base, 1.0)[:, None])


def find_standouts(series: FloatArray, prior_sd: float, least: float) -> list[Standout]:
    """Cut the steps where any rank's level shifts, and name who stands out in each part.

    Args:
        series: `(n_steps, n_ranks)`, already relative to what is common to the step.
        prior_sd: spread of levels expected among healthy ranks.
        least: smallest excess worth a claim.
    """
    n_steps, n_ranks = series.shape
    if n_steps < FEWEST_STEPS or n_ranks < 2:
        return []
    excess = series - peer_median(series)
    borders = {0, n_steps}
    for rank in range(n_ranks):
        borders.update(find_changes(excess[:, rank], least=least / 2))
    edges = _merge_close(sorted(borders), n_steps)
    parts: list[tuple[int, int, BoolArray]] = []
    for first, stop in pairwise(edges):
        mask = _judge(series[first:stop], prior_sd, least)
        if parts and np.array_equal(parts[-1][2], mask):
            parts[-1] = (parts[-1][0], stop, mask)
        else:
            parts.append((first, stop, mask))
    found = []
    for first, stop, mask in parts:
        if mask.any():
            found.append(_describe(series, first, stop, mask, prior_sd, least))
    return found


def _merge_close(edges: list[int], n_steps: int) -> list[int]:
    kept = [0]
    for edge in edges[1:-1]:
        if edge - kept[-1] >= FEWEST_STEPS // 2 and n_steps - edge >= FEWEST_STEPS // 2:
            kept.append(edge)
    return [*kept, n_steps]


def _levels(series: FloatArray) -> tuple[FloatArray, FloatArray]:
    levels = np.median(series, axis=0)
    spread = np.asarray(robust_sd(series, axis=0))
    return levels, 1.2533 * spread / np.sqrt(len(series))


def _judge(series: FloatArray, prior_sd: float, least: float) -> BoolArray:
    if len(series) < FEWEST_STEPS // 2:
        return np.zeros(series.shape[1], bool)
    levels, errors = _levels(series)
    return find_high(levels, errors, prior_sd, least).mask


def _describe(series: FloatArray, first: int, stop: int, mask: BoolArray, prior_sd: float, least: float) -> Standout:
    part = series[first:stop]
    levels, errors = _levels(part)
    outliers = find_high(levels, errors, prior_sd, least)
    same = 0
    for index in draw_blocks(len(part), RESAMPLES):
        drawn, drawn_errors = _levels(part[index])
        same += bool(np.array_equal(find_high(drawn, drawn_errors, prior_sd, least).mask, mask))
    centre = float(np.median(levels[~mask])) if (~mask).any() else float(np.median(levels))
    return Standout(first, stop, mask, levels, centre, outliers.score, same / RESAMPLES)


def find_stalls(series: FloatArray, least: float, *, pooled: bool = False) -> BoolArray:
    """Mark single steps in which one rank lies far above both its own habit and its peers.

    Args:
        series: `(n_steps, n_ranks)`.
        least: smallest height worth an event.
        pooled: take the noise of the median rank for all: a rank that surges in a third of the steps must not hide
            behind its own scatter.

    Returns:
        `(n_steps, n_ranks)`.
    """
    excess = series - peer_median(series)
    scale = float(np.median(robust_sd(excess, axis=0))) if pooled else None
    return np.stack([find_events(excess[:, rank], least, scale) for rank in range(series.shape[1])], axis=1)


def find_period(index: np.ndarray[Any, Any], times_ns: np.ndarray[Any, Any]) -> int | None:
    """Return the period of events that come back regularly (at least five, spacing within a quarter), in ns."""
    if len(index) < 5:
        return None
    spacing = np.diff(index)
    middle = float(np.median(spacing))
    if middle < 2 or np.mean(np.abs(spacing - middle) <= max(1.0, middle / 4)) < 0.8:
        return None
    return int(np.median(np.diff(times_ns)))
