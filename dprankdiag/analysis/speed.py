"""Read the speed of every rank from work that is equal on all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.rows import sum_after_gather
from dprankdiag.analysis.standouts import FEWEST_STEPS, Standout, find_all, find_standouts, relative_to_step
from dprankdiag.analysis.statistics import BoolArray, FloatArray, robust_sd
from dprankdiag.analysis.thresholds import LEAST_WORK_SHARE, SPEED_PRIOR_SD, WORK_PRIOR_SD

LEAST_SPEED_SHARE = 0.02

RARE = 0.3
"""Kinds of step that hold a smaller share of a standout's steps are too few to tell its sides."""

THROUGHOUT = 0.3
"""Share of the mean slowness that every part of the step must show at least."""

LEAST_SIDE = 0.02
"""Share of the work in whose times a slow chip can be seen."""

DOUBT = 3.0
"""Standard errors by which experts may be off before they contradict what looks like equal work."""


def measure_speed(seen: Observations, step_ns: float) -> tuple[FloatArray, list[Standout], str]:
    """Find the ranks that are slow at equal work, and how slow every rank is in every step.

    Returns:
        slowness `(n_steps, n_ranks)`, the standouts, and what they rest on (see `Skews.speed_basis`).
    """
    probe = seen.sums["probe"]
    even = np.ones_like(probe)
    if np.median(probe) > 0:
        slow, ratio, all_slow = _find_slow(seen, probe, step_ns)
        if all_slow:
            return _level_matrix(ratio, slow), slow, "probes"
        # Before the gather launches of one shape may hold more of a rank's own rows; after it they hold everybody's.
        after = sum_after_gather(seen, "probe")
        if np.median(after) > 0:
            surer, surer_ratio, _ = _find_slow(seen, after, step_ns, rows_differ=True)
            if surer:
                return _level_matrix(surer_ratio, surer), surer, "after the gather"
        return (_level_matrix(ratio, slow), slow, "probes") if slow else (even, [], "one side")
    expert, attention = seen.sums["expert"], seen.sums["attention"]
    if np.median(expert) > 0 and np.median(attention) > 0:
        ratio = relative_to_step(expert)
        also = find_standouts(relative_to_step(attention), WORK_PRIOR_SD, LEAST_WORK_SHARE)
        found = [
            standout
            for standout in find_standouts(ratio, WORK_PRIOR_SD, LEAST_WORK_SHARE)
            if any(np.array_equal(standout.mask, other.mask) for other in also)
        ]
        if found:
            return _level_matrix(ratio, found), found, "expert"
    return even, [], "none"


def _find_slow(
    seen: Observations, probe: FloatArray, step_ns: float, *, rows_differ: bool = False
) -> tuple[list[Standout], FloatArray, bool]:
    """Find the ranks slow in the given equal work and throughout the step.

    Args:
        probe: `(n_steps, n_ranks)` ns.
        rows_differ: see `is_slow_throughout`.

    Returns:
        The standouts, the work relative to the step, and whether all that stands out is slow throughout.
    """
    ratio = relative_to_step(probe)
    # What a slow chip costs is all its work, not only the probes.
    work = float(np.median(sum(seen.sums[name] for name in ("attention", "expert", "probe", "other"))))
    least = LEAST_SPEED_SHARE * step_ns / max(work, 1.0)
    halves = list(seen.homes.values())
    found = find_all(ratio, SPEED_PRIOR_SD, least, max(2 * least, 0.05), own_past=True, halves=halves)
    slow = [item for item in found if is_slow_throughout(seen, item, rows_differ=rows_differ)]
    return slow, ratio, len(slow) == len(found)


def measure_worst_family(seen: Observations) -> FloatArray:
    """Return, for each rank, the slowness of the worst probe family, of those that hold a twentieth of the time."""
    probes = seen.probes
    worst = np.ones(seen.n_ranks)
    total = float(probes.weight_ns.sum())
    for family in set(probes.family):
        rows = [row for row, name in enumerate(probes.family) if name == family]
        weight = probes.weight_ns[rows]
        if weight.sum() < 0.05 * total:
            continue
        ratio = probes.mean_ns[rows] / np.maximum(np.median(probes.mean_ns[rows], axis=1, keepdims=True), 1.0)
        worst = np.maximum(worst, np.average(ratio, axis=0, weights=np.maximum(weight, 1.0)))
    return worst


def is_slow_throughout(seen: Observations, standout: Standout, *, rows_differ: bool = False) -> bool:
    """Tell whether equal work is slower before and after the gather (DESIGN 2.1, rule 8).

    A chip slows everything; work that only looks equal, because its launch shape is padded, follows the requests and
    is longer on one side alone. Where probes lie on one side only, the experts stand for the other.

    Args:
        rows_differ: launches of one shape before the gather hold more rows on some ranks: there the least of the rest
            is what equal work takes, and work of other shapes must be slower as well.
    """
    if standout.centre <= 0:
        return False  # most ranks have no such work: nothing to be slower than
    excess = float(np.mean(standout.levels[standout.mask])) / standout.centre - 1.0
    ratios: list[float] = []
    for grid_id, grid in enumerate(seen.grids):
        rows = seen.select(grid_id, standout.steps)
        if rows.sum() < RARE * standout.steps.sum():
            continue
        # The collective that closes a segment, by its place in the step, tells the side even where no name is known.
        closing = list(zip(grid.group[:, 0].tolist(), grid.side, strict=True))
        for side in dict.fromkeys(closing):
            positions = [k for k, other in enumerate(closing) if other == side]
            if rows_differ and side[1] != "post":
                ratios += _ratios_among_rows(grid, rows, positions, standout.mask)
            else:
                ratios += _side_ratio(grid, rows, positions, standout.mask)
    if not ratios or min(ratios) < 1.0 + THROUGHOUT * excess:
        return False
    return any("post" in grid.side for grid in seen.grids) or _experts_agree(seen, standout, excess)


def _experts_agree(seen: Observations, standout: Standout, excess: float) -> bool:
    """Tell whether the experts may be as slow as equal work is, where no segment lies wholly after the gather.

    Kernels whose launch shape fills the chip whatever their rows (persistent ones) look like equal work and grow with
    the rank's own rows before the gather; experts after it do not. A rank has its own share of the routed tokens, so
    that it is held against its own other steps, where there are some.
    """
    expert = seen.sums["expert"]
    if np.median(expert) <= 0:
        return True
    ratio = relative_to_step(expert)
    inside, others = standout.steps, ~standout.mask
    own = ratio[:, standout.mask].mean(axis=1)
    level = float(np.median(own[inside]))
    if (~inside).sum() >= FEWEST_STEPS:
        usual, scatter = float(np.median(own[~inside])), float(robust_sd(own[~inside])) / np.sqrt(inside.sum())
    else:
        shares = np.median(ratio[:, others], axis=0)
        usual, scatter = (1.0, float(np.std(shares))) if len(shares) > 1 else (1.0, np.inf)
    return bool(level / usual + DOUBT * scatter >= 1.0 + THROUGHOUT * excess)


def _side_ratio(grid: StepGrid, rows: BoolArray, positions: Sequence[int], mask: BoolArray) -> list[float]:
    """Return how much longer the work of one side takes: its probes, or its experts where they suffer more.

    Other work stands in for a side that has neither. A chip is slow in every layer: the middle one tells, so that
    experts that are hot in a few do not pass for it.
    """
    total = float(sum(grid.components[name][rows].sum() for name in ("probe", "expert", "other")))
    ratios: list[float] = []
    for name in ("probe", "expert", "other"):
        times = grid.components[name][rows][:, positions].sum(axis=0).astype(np.float64)
        rest = np.median(times[:, ~mask], axis=1) if (~mask).any() else np.zeros(len(times))
        if rest.any() and times.sum() >= LEAST_SIDE * total and not (ratios and name == "other"):
            ratios.append(float(np.median(times[rest > 0][:, mask].mean(axis=1) / rest[rest > 0])))
    return [max(ratios)] if ratios else []


def _ratios_among_rows(grid: StepGrid, rows: BoolArray, positions: Sequence[int], mask: BoolArray) -> list[float]:
    total = float(sum(grid.components[name][rows].sum() for name in ("probe", "expert", "other")))
    ratios: list[float] = []
    for name, usual in (("probe", np.min), ("other", np.median)):
        times = grid.components[name][rows][:, positions].sum(axis=(0, 1)).astype(np.float64)
        if times.sum() >= LEAST_SIDE * total and not mask.all():
            ratios.append(float(np.mean(times[mask])) / max(float(usual(times[~mask])), 1.0))
    return ratios


def _level_matrix(ratio: FloatArray, found: Sequence[Standout]) -> FloatArray:
    """Give every step the level of its run of steps, and events their own: other noise is no difference in speed."""
    runs = [item for item in found if not item.is_burst]
    edges = sorted({0, len(ratio), *(edge for item in runs for edge in (item.first, item.stop))})
    levels = np.empty_like(ratio)
    for first, stop in pairwise(edges):
        levels[first:stop] = np.median(ratio[first:stop], axis=0)
    for item in found:
        if item.is_burst:
            levels[item.marks] = ratio[item.marks]
    return np.maximum(levels, 1e-3)
