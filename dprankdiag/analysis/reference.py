"""Hold a recording against another one of the same work: are transfers, or all ranks alike, slower?

What differs is judged by the scatter of the steps on both sides; beyond that it must be worth a word.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.analysis.differences import (
    KNOWN_ZERO,
    Level,
    adjust_chances,
    compare_levels,
    measure_level,
    widen_level,
)
from dprankdiag.analysis.observations import IntArray, Observations
from dprankdiag.analysis.statistics import FloatArray
from dprankdiag.analysis.work import count_members
from dprankdiag.model.reference import Reference, TransferSamples

CHANCE = 0.01
"""Chance at which equal recordings may be told apart, all tests together."""

LEAST_TRANSFER_RATIO = 1.05
LEAST_TRANSFER_SHARE = 0.015
"""Transfers are called long as inside a recording: by a twentieth, and by this share of the step."""

LEAST_SLOWNESS = 1.03
"""A difference worth naming (DESIGN 2.1, rule 16: three per cent)."""

ALIKE_SHARE = 0.5
"""Every rank must show at least this share of the usual slowdown for it to be one of all ranks."""


@dataclass(frozen=True, slots=True)
class LongTransfers:
    """Transfers that take longer than in the reference.

    Attributes:
        factors: one a grid, `(n_positions,)` time in the reference over the time here; 1 where not longer.
        operations: those that take longer.
        now_ns, then_ns: transfer time a step, of the operations compared.
        error_ns: how well the reference knows that time (a standard deviation).
        steps: steps of the reference.
    """

    factors: tuple[FloatArray, ...]
    operations: tuple[str, ...]
    now_ns: float
    then_ns: float
    error_ns: float
    steps: int

    @property
    def ratio(self) -> float:
        """Time here over the time there."""
        return self.now_ns / self.then_ns


def compare_transfers(seen: Observations, reference: Reference) -> LongTransfers | None:
    """Compare transfers by kind of step, operation and number of members; None if they are not longer.

    Args:
        reference: one that fits, with transfers of like sizes.
    """
    factors = [np.ones(len(grid.operation)) for grid in seen.grids]
    rows = [_compare_operation(seen, item) for item in reference.transfers]
    chances = adjust_chances([row.chance for row in rows])
    total = float(seen.n_steps)
    now = then = variance = 0.0
    long: list[str] = []
    for item, row, chance in zip(reference.transfers, rows, chances, strict=True):
        share = len(seen.grids[item.grid].number) / total
        now, then = now + share * row.now.value, then + share * row.then.value
        variance += share**2 * row.then.variance
        if chance <= CHANCE and row.ratio >= LEAST_TRANSFER_RATIO + reference.size_margin:
            factors[item.grid][row.places] = 1 / row.ratio
            long.append(item.operation)
    if not long or now - then < LEAST_TRANSFER_SHARE * seen.median_step_ns:
        return None
    steps = sum(len(item.transfer_ns) for item in reference.transfers if item.operation == long[0])
    return LongTransfers(tuple(factors), tuple(sorted(set(long))), now, then, float(np.sqrt(variance)), steps)


@dataclass(frozen=True, slots=True)
class _Row:
    places: IntArray
    now: Level
    then: Level
    chance: float

    @property
    def ratio(self) -> float:
        return self.now.value / max(self.then.value, 1.0)


def measure_transfers(seen: Observations, item: TransferSamples) -> tuple[IntArray, Level]:
    """Measure, in the recording at hand, the transfers that samples of another one are about.

    Returns:
        The positions in a step, and ns a step.
    """
    grid = seen.grids[item.grid]
    here = np.array([name == item.operation for name in grid.operation]) & (count_members(grid) == item.members)
    samples = grid.transfer[:, here].mean(axis=2).sum(axis=1).astype(np.float64)
    return np.flatnonzero(here), measure_level(samples)


def _compare_operation(seen: Observations, item: TransferSamples) -> _Row:
    """Compare one operation; a fabric is slow for everyone, so that what groups differ among themselves is an error."""
    places, now = measure_transfers(seen, item)
    then = measure_level(item.transfer_ns)
    allowed = widen_level(then, (item.spread * then.value) ** 2, max(item.groups - 1.0, 1.0))
    return _Row(places, now, then, compare_levels(allowed, now, 1 - CHANCE).p)


@dataclass(frozen=True, slots=True)
class CommonSlowdown:
    """Equal work that takes longer on every rank than in the reference; `ratio` is that of the median rank."""

    ratio: float
    lowest: float
    kernels: int


def compare_speed(seen: Observations, reference: Reference) -> CommonSlowdown | None:
    """Compare the time of equal work; None unless every rank takes longer by about as much.

    Args:
        reference: one that fits, with equal work.
    """
    if reference.slowness is None or reference.work_ns is None:
        return None
    growth = measure_growth(reference.slowness, reference.work_ns, seen.sums["probe"])
    usual, lowest = float(np.median(reference.slowness)), float(reference.slowness.min())
    alike = lowest - 1 >= ALIKE_SHARE * (usual - 1)
    chance = compare_levels(KNOWN_ZERO, growth, 1 - CHANCE).p
    if chance > CHANCE or usual < LEAST_SLOWNESS or not alike:
        return None
    return CommonSlowdown(usual, lowest, reference.equal_kernels)


def measure_growth(slowness: FloatArray, then_ns: FloatArray, now_ns: FloatArray) -> Level:
    """Measure the logarithm of how much longer equal work takes, all ranks together.

    Its error has two parts: what ranks scatter around it, and what the steps scatter on both sides.

    Args:
        slowness: `(n_ranks,)` time of equal work over the time it took then.
        then_ns, now_ns: `(n_steps, n_ranks)` time in equal work, of which only the scatter counts.
    """
    growth = np.log(slowness)
    n = len(growth)
    level = Level(float(growth.mean()), float(growth.var(ddof=1)) / n if n > 1 else 0.0, float(max(n - 1, 1)))
    for work in (then_ns, now_ns):
        step = measure_level(work.mean(axis=1))
        if step.value > 0:
            level = widen_level(level, step.variance / step.value**2, step.freedom)
    return level
