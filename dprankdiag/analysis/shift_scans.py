"""Try shifts of a clock, and see which of them explains the meetings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.shared_ends import Ends, find_common_end
from dprankdiag.analysis.statistics import quantile

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]

TRIALS, FINE_TRIALS = 33, 17
PIECES = 40
"""Pieces of the recording whose difference tells how sure a reading is."""

ALIKE = 2.0
"""Readings whose scatter differs by less than so many standard errors explain the meetings alike."""

OUTERMOST = 0.01
"""Share of the meetings that may break a bound: rows go astray."""

MOST = 0.75
"""Share of the members whose common end is that of all."""


@dataclass(frozen=True, slots=True)
class Part:
    """Meetings of a group as one block and the others see them, `(n,)` each.

    Attributes:
        inside_ns, outside_ns: last arrival of the block and of the others.
        end_inside_ns, end_outside_ns: when they leave.
        least_ns, most_ns: shifts of the block that would let nobody leave before the last has come.
    """

    inside_ns: IntArray
    outside_ns: IntArray
    end_inside_ns: IntArray
    end_outside_ns: IntArray
    least_ns: IntArray
    most_ns: IntArray


@dataclass(frozen=True, slots=True)
class Scan:
    """How well shifts of a block explain the meetings.

    Attributes:
        shift_ns: `(n_trials,)` ascending; causality allows each.
        scatter_ns: `(n_trials,)` mean distance of a transfer from the median one.
        error_ns: `(n_trials,)` standard error of its difference to the best.
        cost_ns: `(n_trials,)` how much later the mean meeting's last arrival is.
    """

    shift_ns: IntArray
    scatter_ns: FloatArray
    error_ns: FloatArray
    cost_ns: FloatArray

    @property
    def alike(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Mark the trials that explain the meetings about as well as the best."""
        return np.asarray(self.scatter_ns - self.scatter_ns.min() <= ALIKE * self.error_ns + 1e-3)

    def at(self, shift_ns: int) -> int:
        """Return the trial next to a shift."""
        return int(np.argmin(np.abs(self.shift_ns - shift_ns)))


def scan_shifts(seen: Sequence[Ends], ranks: Sequence[int], recorded_ns: int | None) -> Scan | None:
    """Try all shifts of a block that causality allows; None if it meets nobody else, or none is allowed."""
    parts: list[Part] = []
    for item in seen:
        mine = np.isin(item.ranks, list(ranks))
        if mine.any() and not mine.all():
            inside, outside = item.arrival_ns[:, mine].max(axis=1), item.arrival_ns[:, ~mine].max(axis=1)
            first_in, first_out = item.end_ns[:, mine].min(axis=1), item.end_ns[:, ~mine].min(axis=1)
            ends = [
                item.common_ns if part.mean() > MOST else find_common_end(item.end_ns[:, part])
                for part in (mine, ~mine)
            ]
            parts.append(Part(inside, outside, ends[0], ends[1], outside - first_in, first_out - inside))
    if not parts:
        return None
    low = max(float(np.quantile(part.least_ns, 1 - OUTERMOST)) for part in parts)
    high = min(float(np.quantile(part.most_ns, OUTERMOST)) for part in parts)
    gaps = np.concatenate([part.outside_ns - part.inside_ns for part in parts])
    if low >= high:
        # Others are misplaced: what they bound is not to be believed.
        low, high = (float(bound) for bound in np.quantile(gaps, [OUTERMOST, 1 - OUTERMOST]))
    low, high = min(low, 0.0), max(high, 0.0)
    trials = np.concatenate(
        [np.linspace(low, high, TRIALS), np.quantile(gaps, np.linspace(0, 1, TRIALS)), [0, recorded_ns or 0]]
    )
    trials = np.unique(trials[(trials >= low) & (trials <= high)].astype(np.int64))
    rough = _measure(parts, trials)
    best = int(np.argmin(rough.scatter_ns))
    around = np.linspace(trials[max(best - 1, 0)], trials[min(best + 1, len(trials) - 1)], FINE_TRIALS)
    return _measure(parts, np.unique(np.concatenate([trials, around.astype(np.int64)])))


def _measure(parts: Sequence[Part], shift_ns: IntArray) -> Scan:
    """Measure the scatter of transfers under each shift, by the ends of whichever side they scatter less."""
    inside = [_distances(part, part.end_inside_ns, shift_ns) for part in parts]
    outside = [_distances(part, part.end_outside_ns, shift_ns) for part in parts]
    both = np.concatenate(inside), np.concatenate(outside)
    distance = np.where(both[0].mean(axis=0) < both[1].mean(axis=0), *both)
    scatter = distance.mean(axis=0)
    beyond = distance - distance[:, [int(np.argmin(scatter))]]
    by_part = np.stack([piece.mean(axis=0) for piece in np.array_split(beyond, min(PIECES, len(beyond)))])
    error = by_part.std(axis=0, ddof=1) / np.sqrt(len(by_part))
    come, gone = np.maximum(shift_ns, 0), np.maximum(-shift_ns, 0)
    costs = [
        np.maximum(part.outside_ns[:, None] + gone, part.inside_ns[:, None] + come)
        - np.maximum(part.outside_ns, part.inside_ns)[:, None]
        for part in parts
    ]
    return Scan(shift_ns, scatter, error, np.concatenate(costs).mean(axis=0))


def _distances(part: Part, end_ns: IntArray, shift_ns: IntArray) -> FloatArray:
    """Measure how far each transfer lies from the median one, `(n, n_trials)`, the farthest cut off."""
    last = np.maximum(part.outside_ns[:, None], part.inside_ns[:, None] + shift_ns)
    transfer = (end_ns[:, None] - last).astype(np.float64)
    distance = np.abs(transfer - np.median(transfer, axis=0))
    limit = quantile(distance[:, int(np.argmin(np.abs(shift_ns)))], 1 - OUTERMOST / 2)
    return np.asarray(np.minimum(distance, max(limit, 1.0)))
