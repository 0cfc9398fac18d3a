"""Find steps in which transfers, or all work alike, take longer than in the rest of the recording."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.statistics import BoolArray, find_changes, find_events, robust_sd

FEWEST_STEPS = 16
"""With fewer steps no run of them stands out from the rest."""


@dataclass(frozen=True, slots=True)
class TransferShift:
    """Steps in which transfers take longer for everyone than in the reference steps."""

    steps: BoolArray
    ratio: float
    is_burst: bool
    reference_steps: int


def find_transfer_shifts(seen: Observations, step_ns: float) -> list[TransferShift]:
    """Find runs of steps, and single steps, with longer transfers than the rest of the same recording."""
    total = seen.sums["transfer"].mean(axis=1)
    if seen.n_steps < FEWEST_STEPS:
        return []
    usual = np.empty_like(total)
    for grid_id in range(len(seen.grids)):
        mine = seen.grid_of == grid_id
        usual[mine] = np.median(total[mine])
    ratio = total / np.maximum(usual, 1.0)
    least = 0.015 * step_ns / max(float(np.median(usual)), 1.0)
    shifts = []
    events = find_events(ratio, max(least * 2, 0.5))
    if events.mean() > 0.1:
        events[:] = False
    calm = np.where(events, 1.0, ratio)
    edges = [0, *find_changes(calm, least=least), len(ratio)]
    runs = [(a, b, float(np.median(calm[a:b]))) for a, b in pairwise(edges)]
    longest = [run for run in runs if run[1] - run[0] >= min(20, seen.n_steps // 3)]
    if len(runs) > 1 and longest:
        reference = min(longest, key=lambda run: run[2])
        noise = float(robust_sd(calm[reference[0] : reference[1]]))
        long = np.zeros(seen.n_steps, bool)
        for first, stop, level in runs:
            if level - reference[2] > max(least, 3 * noise) and level / reference[2] >= 1.05:
                long[first:stop] = True
        for steps in _split_runs(long):
            ratio_here = float(np.median(calm[steps])) / reference[2]
            shifts.append(TransferShift(steps, ratio_here, False, reference[1] - reference[0]))
    if events.sum() >= 2:
        shifts.append(TransferShift(events, float(np.median(ratio[events])), True, int((~events).sum())))
    return shifts


def _split_runs(marked: BoolArray) -> Iterator[BoolArray]:
    """Split marks into runs of neighbours: transfers that change while they are long are one trouble."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]])))
    for first, stop in zip(edges[::2], edges[1::2], strict=True):
        run = np.zeros(len(marked), bool)
        run[first:stop] = True
        yield run


def find_common_slowdown(seen: Observations) -> tuple[BoolArray, float] | None:
    """Find a run of steps in which equal work takes longer on every rank, against the rest of the recording."""
    probe = seen.sums["probe"]
    if np.median(probe) <= 0 or seen.n_steps < 40:
        return None
    usual = np.empty(seen.n_steps)
    for grid_id in range(len(seen.grids)):
        mine = seen.grid_of == grid_id
        usual[mine] = np.median(probe[mine])
    ratio = probe / np.maximum(usual, 1.0)[:, None]
    middle = np.median(ratio, axis=1)
    edges = [0, *find_changes(middle, shortest=20, least=0.03), seen.n_steps]
    runs = [(a, b, np.median(ratio[a:b], axis=0)) for a, b in pairwise(edges)]
    if len(runs) < 2:
        return None
    calm = min(runs, key=lambda run: float(np.median(run[2])))
    steps = np.zeros(seen.n_steps, bool)
    worst = 1.0
    for first, stop, level in runs:
        growth = level / calm[2]
        if growth.min() >= 1.03 and growth.min() - 1 >= 0.7 * (growth.max() - 1):
            steps[first:stop] = True
            worst = max(worst, float(np.median(growth)))
    return (steps, worst) if steps.any() else None
