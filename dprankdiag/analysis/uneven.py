"""Tell ranks that stand out in a number told once a rank from those that only chance makes larger."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, log

import numpy as np

from dprankdiag.analysis.statistics import OUTLIER_SCORE, PRIOR_WEIGHT, BoolArray, FloatArray

LEAST_RATIO = 1.25
"""A rank with less than this over its peers is not named: balancers of requests do no better than a few requests."""

LEAST_OVER_MEAN = 1.1
"""A rank below this over the mean of all would gain next to nothing from even loads."""

COUNT_SCORE = 3.5
"""Standard deviations from which no even draw of so many things explains a rank, all choices of ranks weighed in."""

USUAL_SPREAD = 0.05
"""Ranks that are treated alike still differ by some per cent; two peers alone would show less by luck."""


@dataclass(frozen=True, slots=True)
class Uneven:
    """Ranks that stand out.

    Attributes:
        mask: `(n_ranks,)` the ranks.
        ratio: their mean over the mean of the others, infinite if these have none; of low ranks the other way round.
        work_ratio: the largest over the mean of all ranks.
        score: distance of the least of them from the others, in standard deviations that chance and the others' own
            spread explain.
    """

    mask: BoolArray
    ratio: float
    work_ratio: float
    score: float


def find_high(
    values: FloatArray,
    samples: FloatArray | float,
    spread: float = 1.0,
    *,
    least_ratio: float = LEAST_RATIO,
    usual_spread: float = USUAL_SPREAD,
    chance_sd: float | None = None,
    counted: bool = True,
    narrowest: float = 1.0,
) -> Uneven | None:
    """Find ranks that have more than the others, up to half of them.

    A sum over n independent things of relative spread s varies by s / sqrt(n) even if all ranks are treated alike: that
    is the least; where the other ranks spread more than that, theirs is joined to it, weighed by their number.

    Args:
        values: `(n_ranks,)` at least 0; NaN where not told.
        samples: independent things (requests) each sum consists of.
        spread: standard deviation of one thing over its mean; a count has 0 of its own and 1 in all.
        usual_spread: by which ranks that are treated alike differ anyway, relative.
        chance_sd: what a sum varies by, where that is known better than from samples and spread.
        narrowest: share of the spread that the other ranks can prove to be enough, by how little they scatter.
        counted: samples are known, so that what an even draw of them gives can be told.
        least_ratio: no rank with less than this over the others is named.
    """
    told = ~np.isnan(values)
    if int(told.sum()) < 2 or not values[told].sum() > 0:
        return None
    n_told = int(told.sum())
    order = [int(rank) for rank in np.argsort(np.where(told, -values, np.inf), kind="stable")[:n_told]]
    counts = np.broadcast_to(np.asarray(samples, np.float64), values.shape)
    for size in range(n_told // 2, 0, -1):
        high, rest = order[:size], order[size:]
        least, mean = float(values[high].min()), float(values[told].mean())
        if least < min(LEAST_OVER_MEAN, least_ratio) * mean or least < least_ratio * float(values[rest].max()):
            continue
        chance = _chance_sd(values, counts, order, rest, spread) if chance_sd is None else chance_sd
        unit = _unit(values, counts, order, spread, chance_sd)
        if counted and _draw_score(values, size, order, unit * narrowest**2) < COUNT_SCORE:
            continue
        score = _score(values, high, rest, chance, usual_spread, narrowest)
        if score >= OUTLIER_SCORE:
            mask = np.zeros(len(values), bool)
            mask[high] = True
            return Uneven(mask, _divide(values[high], values[rest]), float(values[told].max()) / mean, score)
    return None


def _unit(
    values: FloatArray, samples: FloatArray, everyone: list[int], spread: float, chance_sd: float | None
) -> float:
    """Return the size of a thing such that sums of so many of them vary as counts do."""
    if chance_sd is not None:
        return chance_sd**2 / float(values[everyone].mean())
    return spread**2 * float(values[everyone].sum()) / max(float(np.nansum(samples[everyone])), 1.0)


def _draw_score(values: FloatArray, size: int, order: list[int], unit: float) -> float:
    """Tell how far the least of the first ranks lies above an even draw of all things over it and the rest.

    In standard deviations, after the angular transform that makes shares of small numbers normal, and less what picking
    any so many of the ranks gives.

    Source: F. J. Anscombe, The transformation of Poisson, binomial and negative-binomial data, Biometrika 35 (1948).
    """
    if unit <= 0:
        return float("inf")
    rest = order[size:]
    own = max(float(values[order[size - 1]]) / unit - 0.5, 0.0)
    total = own + 0.5 + float(values[rest].sum()) / unit
    share = min((own + 0.375) / (total + 0.75), 1.0)
    z = 2.0 * np.sqrt(total + 0.5) * (np.arcsin(np.sqrt(share)) - np.arcsin(np.sqrt(1.0 / (len(rest) + 1))))
    picks = size * z**2 - 2.0 * log(comb(len(order), size))
    return 0.0 if z <= 0 or picks <= 0 else float(min(z, np.sqrt(picks)))


def _chance_sd(values: FloatArray, samples: FloatArray, everyone: list[int], rest: list[int], spread: float) -> float:
    """Return what chance gives a sum over as many things as the other ranks have, of the size of all ranks' things."""
    thing = float(values[everyone].sum()) / max(float(np.nansum(samples[everyone])), 1.0)
    return spread * thing * float(np.sqrt(max(float(np.nanmean(samples[rest])), 1.0)))


def _divide(values: FloatArray, by: FloatArray) -> float:
    below = float(by.mean())
    return float(values.mean()) / below if below > 0 else float("inf")


def _score(
    values: FloatArray, high: list[int], rest: list[int], chance_sd: float, usual_spread: float, narrowest: float
) -> float:
    usual = float(values[rest].mean())
    least = float(np.hypot(narrowest * chance_sd, usual_spread * usual))
    prior = float(np.hypot(chance_sd, usual_spread * usual))
    own = float(values[rest].var(ddof=1)) if len(rest) > 1 else 0.0
    freedom = len(rest) - 1
    variance = max(least**2, (PRIOR_WEIGHT * prior**2 + freedom * own) / (PRIOR_WEIGHT + freedom))
    return float((values[high].min() - usual) / np.sqrt(variance)) if variance > 0 else float("inf")


def find_low(values: FloatArray, chance_sd: float = 0.0) -> Uneven | None:
    """Find ranks that have less than the others, up to half of them, by the others' own spread.

    Args:
        values: `(n_ranks,)` NaN where not told.
        chance_sd: what a value may differ by without any cause.
    """
    told = np.flatnonzero(~np.isnan(values))
    if len(told) < 2:
        return None
    order = [int(rank) for rank in told[np.argsort(values[told], kind="stable")]]
    for size in range(len(order) // 2, 0, -1):
        low, rest = order[:size], order[size:]
        usual = float(values[rest].mean())
        prior = float(np.hypot(chance_sd, USUAL_SPREAD * usual))
        own = float(values[rest].var(ddof=1)) if len(rest) > 1 else 0.0
        freedom = len(rest) - 1
        variance = (PRIOR_WEIGHT * prior**2 + freedom * own) / (PRIOR_WEIGHT + freedom)
        if usual <= 0 or variance <= 0:
            continue
        score = float((usual - values[low].max()) / np.sqrt(variance))
        if score >= OUTLIER_SCORE and values[rest].min() > values[low].max():
            mask = np.zeros(len(values), bool)
            mask[low] = True
            ratio = _divide(values[rest], values[low])
            return Uneven(mask, ratio, ratio, score)
    return None
