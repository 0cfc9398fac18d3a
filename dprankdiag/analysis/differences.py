"""Is a level another one than before? Means over steps, their errors, and tests that allow for many at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dprankdiag.analysis.statistics import FloatArray, block_length, draw_blocks, robust_sd

DRAWS = 400
FINE = 400
"""Intervals over which the density of Student's t is summed; errors of p stay below 1e-6."""

_SIMPSON = np.array([1.0, *([4.0, 2.0] * (FINE // 2 - 1)), 4.0, 1.0]) / 3.0


@dataclass(frozen=True, slots=True)
class Level:
    """A mean with its variance, and the degrees of freedom that the variance was estimated with.

    Attributes:
        freedom: infinite for a value that is known.
    """

    value: float
    variance: float
    freedom: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Second level minus first.

    Attributes:
        interval: at the level asked for.
        p: two-sided chance of such a difference between equals; 1 where neither side has any scatter and both agree.
    """

    value: float
    interval: tuple[float, float]
    p: float


KNOWN_ZERO = Level(0.0, 0.0, float("inf"))


def measure_level(samples: FloatArray) -> Level:
    """Take the mean of a series of steps, its variance from resampled blocks of neighbouring steps.

    Few blocks show too little of the variance and give few degrees of freedom.

    Args:
        samples: `(n_steps,)` in order of time, at least one.

    Source: Künsch, Annals of Statistics 17 (1989), moving blocks; Efron and Tibshirani, An Introduction to the
    Bootstrap (1993), chapter 5 for the factor n / (n - 1).
    """
    n = len(samples)
    value = float(samples.mean())
    if n < 2:
        return Level(value, float("inf"), 1.0)
    index = draw_blocks(n, DRAWS)
    blocks = n_blocks(n)
    variance = float(samples[index].mean(axis=1).var()) * blocks / max(blocks - 1, 1)
    return Level(value, variance, float(max(blocks - 1, 1)))


def n_blocks(n: int) -> int:
    """Count the blocks that `draw_blocks` puts a resample of n steps together from."""
    return -(-n // block_length(n))


def add_levels(levels: Sequence[Level], weights: Sequence[float]) -> Level:
    """Weigh independent levels; degrees of freedom by Welch and Satterthwaite."""
    value = sum(weight * level.value for level, weight in zip(levels, weights, strict=True))
    parts = [weight**2 * level.variance for level, weight in zip(levels, weights, strict=True)]
    return Level(float(value), float(sum(parts)), _join_freedom(parts, [level.freedom for level in levels]))


def widen_level(level: Level, variance: float, freedom: float) -> Level:
    """Add an independent error to a level."""
    parts = [level.variance, variance]
    return Level(level.value, sum(parts), _join_freedom(parts, [level.freedom, freedom]))


def _join_freedom(variances: Sequence[float], freedoms: Sequence[float]) -> float:
    """Join degrees of freedom.

    Source: Satterthwaite, Biometrics Bulletin 2 (1946).
    """
    total = sum(variances)
    if not np.isfinite(total):
        return 1.0
    below = sum(variance**2 / freedom for variance, freedom in zip(variances, freedoms, strict=True) if variance > 0)
    return total**2 / below if below > 0 else float("inf")


def compare_levels(before: Level, after: Level, confidence: float) -> Difference:
    """Compare two independent levels by Welch's test."""
    value = after.value - before.value
    joined = add_levels([before, after], [-1.0, 1.0])
    error = float(np.sqrt(joined.variance))
    if error == 0.0:
        return Difference(value, (value, value), 1.0 if value == 0.0 else 0.0)
    if not np.isfinite(error):
        return Difference(value, (-np.inf, np.inf), 1.0)
    reach = t_quantile(confidence, joined.freedom) * error
    return Difference(value, (value - reach, value + reach), t_chance(abs(value) / error, joined.freedom))


def t_chance(t: float, freedom: float) -> float:
    """Return the chance that Student's t with these degrees of freedom lies beyond ±t.

    With t = √ν tan θ the density becomes cos^(ν-1) θ.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.
    """
    # Beyond this many degrees of freedom t is normal to six digits, and the density too narrow for the grid.
    nu = min(freedom, 1e4)
    if not np.isfinite(t):
        return 0.0
    edge = float(np.arctan(t / np.sqrt(nu)))
    # The density is spent within some 40 standard deviations of its lower end.
    angle = np.linspace(edge, min(np.pi / 2, edge + 40.0 / np.sqrt(nu)), FINE + 1)
    tail = float(np.maximum(np.cos(angle), 0.0) ** (nu - 1.0) @ _SIMPSON) * float(angle[1] - angle[0])
    whole = math.sqrt(math.pi) / 2 * math.exp(math.lgamma(nu / 2) - math.lgamma((nu + 1) / 2))
    return min(tail / whole, 1.0)


def t_quantile(confidence: float, freedom: float) -> float:
    """Return the t beyond which, on both sides together, lies the share 1 - confidence."""
    low, high = 0.0, 1e3
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if t_chance(middle, freedom) > 1 - confidence else (low, middle)
    return high


def adjust_chances(chances: Sequence[float]) -> list[float]:
    """Adjust p-values for being many: the chance of any false alarm stays what one test would have.

    Source: Holm, Scandinavian Journal of Statistics 6 (1979).
    """
    order = np.argsort(np.asarray(chances, float), kind="stable")
    adjusted = [0.0] * len(chances)
    worst = 0.0
    for place, index in enumerate(order.tolist()):
        worst = max(worst, min((len(chances) - place) * chances[index], 1.0))
        adjusted[index] = worst
    return adjusted


def spread_of_ranks(levels: FloatArray) -> tuple[float, float]:
    """Estimate how far a step would move if the ranks' own levels were drawn anew: variance, degrees of freedom.

    A step follows the slowest of its ranks. The maximum of n normal values scatters less than one of them, whatever n,
    so that the variance of one rank is a bound; ranks far outside are left to the findings.

    Args:
        levels: `(n_ranks,)` busy time a step.
    """
    if len(levels) < 2:
        return 0.0, 1.0
    return float(robust_sd(levels)) ** 2, float(len(levels) - 1)
