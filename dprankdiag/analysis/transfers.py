"""Find steps in which transfers take longer than in the rest of the recording."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dprankdiag.analysis.differences import t_chance
from dprankdiag.analysis.observations import Observations, order_steps
from dprankdiag.analysis.statistics import BoolArray, FloatArray, find_changes, find_events, robust_sd

FEWEST_STEPS = 8
"""With fewer steps no run of them stands out from the rest."""

FEW_STEPS = 16
"""In fewer steps noise cannot be told from change by differences of neighbours: every run is tried."""

SHORTEST_RUN = 4
"""Least steps of a run, and of the rest, in so few steps."""

CHANCE = 1e-4
"""Chance at which even transfers of few steps may show a run, all runs together: that of `OUTLIER_SCORE`."""

LEAST_RATIO = 1.05
LEAST_SHARE = 0.015
"""Transfers are called long if they are so by a twentieth, and by this share of the step."""


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
    if seen.n_steps < FEW_STEPS:
        shift = _find_run(seen, total, step_ns)
        return [] if shift is None else [shift]
    usual = np.empty_like(total)
    for grid_id in range(len(seen.grids)):
        mine = seen.grid_of == grid_id
        usual[mine] = _find_usual(total[mine], LEAST_SHARE * step_ns)
    # Where transfers take next to nothing, or less by the clocks, small changes are no multiples.
    base = np.maximum(usual, LEAST_SHARE * step_ns)
    ratio = 1.0 + (total - usual) / base
    least = LEAST_SHARE * step_ns / max(float(np.median(base)), 1.0)
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
            if level - reference[2] > max(least, 3 * noise) and level / reference[2] >= LEAST_RATIO:
                long[first:stop] = True
        for steps in _split_runs(long):
            ratio_here = float(np.median(calm[steps])) / reference[2]
            shifts.append(TransferShift(steps, ratio_here, False, reference[1] - reference[0]))
    if events.sum() >= 2:
        shifts.append(TransferShift(events, float(np.median(ratio[events])), True, int((~events).sum())))
    return shifts


def _find_usual(total_ns: FloatArray, least_ns: float) -> float:
    """Find what transfers usually take in the steps of one kind: their lowest lasting level.

    Not their median: a kind of which most steps fall into the trouble would hide it, and with it the same trouble of
    other kinds in between.
    """
    edges = [0, *find_changes(total_ns, least=least_ns), len(total_ns)]
    return min((float(np.median(total_ns[first:stop])) for first, stop in pairwise(edges) if stop > first), default=0.0)


def _find_run(seen: Observations, total_ns: FloatArray, step_ns: float) -> TransferShift | None:
    """Find the run of neighbouring steps of a short recording in which transfers are longer than in all others.

    What a step's meetings have in common counts, not their sum, so that a single slow one is no change.

    Args:
        total_ns: `(n_steps,)` transfer time a step.
    """
    level, n = _typical_transfer(seen), seen.n_steps
    runs = [(a, b) for a in range(n) for b in range(a + SHORTEST_RUN, n + 1) if n - (b - a) >= SHORTEST_RUN]
    best, best_t = None, 0.0
    for first, stop in runs:
        long = np.zeros(n, bool)
        long[first:stop] = True
        inside, outside = level[long], level[~long]
        apart = float(inside.mean() - outside.mean())
        squares = float(((inside - inside.mean()) ** 2).sum() + ((outside - outside.mean()) ** 2).sum())
        error = np.sqrt(squares / (n - 2) * (1 / len(inside) + 1 / len(outside)))
        t = apart / max(error, 1e-9)
        if inside.min() > outside.max() and t > best_t:
            best, best_t = long, t
    if best is None or t_chance(best_t, n - 2) * len(runs) > CHANCE:
        return None
    ratio = float(np.median(level[best]) / np.median(level[~best]))
    longer_ns = float(np.median(total_ns[best]) - np.median(total_ns[~best]))
    if longer_ns < LEAST_SHARE * step_ns or ratio < LEAST_RATIO:
        return None
    return TransferShift(best, ratio, False, int((~best).sum()))


def _typical_transfer(seen: Observations) -> FloatArray:
    """Return the transfer of the median meeting of each step over what it usually is, `(n_steps,)`."""
    parts = []
    for grid in seen.grids:
        mine = grid.transfer.mean(axis=2)
        usual = np.median(mine, axis=0)
        parts.append(np.median(mine[:, usual > 0] / usual[usual > 0], axis=1) if usual.any() else np.ones(len(mine)))
    return order_steps(seen, parts)


def _split_runs(marked: BoolArray) -> Iterator[BoolArray]:
    """Split marks into runs of neighbours: transfers that change while they are long are one trouble."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marked, [False]])))
    for first, stop in zip(edges[::2], edges[1::2], strict=True):
        run = np.zeros(len(marked), bool)
        run[first:stop] = True
        yield run
