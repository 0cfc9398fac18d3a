"""Fit one clock to another from the ends of the collectives both took part in.

A blocking collective ends together everywhere, so the ends of one channel, seen by two clocks, are the same series up
to offset and drift. Which end belongs to which is found from the intervals between ends, which neither offset nor drift
changes; a shift by a layer or a step fits worse, and if it does not fit clearly worse, nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.statistics import median, quantile

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]

PROBE = 96
"""Consecutive ends compared when looking for the shift."""

CANDIDATES = 6
ROUGH_POINTS, ROUGH_CANDIDATES = 25, 12
"""Intervals by which windows are first compared, and how many times as many windows are then compared in full."""

GROW_POINTS = 512
FIT_POINTS = 4096
"""Ends a line is fitted through at most, taken evenly: more would not place it better."""

MOST_DRIFT = 1e-4
"""Crystals of computers are within some tens of parts per million of each other.

Source: RFC 5905: a frequency tolerance of 15 ppm (PHI), and at the very most 500 ppm (MAXFREQ).
"""

AGREE = 0.4
"""Share of the ends that tell how well a fit fits: fewer than half may be late."""

DISTINCT = 3.0
"""A runner-up must fit at least this many times worse (DESIGN 2.1, rule 12)."""


HOPELESS = 10.0
"""A part of the recording that fits so many times worse than a runner-up may is not looked at further."""


@dataclass(frozen=True, slots=True)
class ClockFit:
    """How to carry times of one clock onto the reference: `t - offset_ns - drift_ppb * (t - origin_ns) / 1e9`.

    Attributes:
        residual_ns: distance within which two fifths of the matched ends lie after the fit.
        runner_up_ns: the same for the second-best alignment.
        matched: how many ends it rests on.
    """

    offset_ns: int
    drift_ppb: int
    origin_ns: int
    residual_ns: int
    runner_up_ns: int | None
    matched: int

    def apply(self, times_ns: IntArray) -> IntArray:
        """Carry times onto the reference clock, in integers throughout."""
        return np.asarray(self._carry(times_ns))

    def apply_once(self, time_ns: int) -> int:
        """Carry one moment onto the reference clock."""
        return int(self._carry(time_ns))

    def _carry(self, times_ns: Any) -> Any:
        # Split so that elapsed * ppb cannot overflow: whole seconds and the rest.
        seconds, rest = divmod(times_ns - self.origin_ns, 1_000_000_000)
        drift = seconds * self.drift_ppb + rest * self.drift_ppb // 1_000_000_000
        return times_ns - self.offset_ns - drift


def fit_clock(reference_ends: IntArray, ends: IntArray) -> ClockFit | None:
    """Fit a clock to the reference from the ends of one channel of collectives.

    Args:
        reference_ends: `(n,)` sorted ends on the reference clock.
        ends: `(m,)` sorted ends on the clock to be fitted; rows may be missing on either side.

    Returns:
        The fit, or None if no alignment is clearly better than the next.
    """
    if min(len(reference_ends), len(ends)) < 8:
        return None
    fits: list[ClockFit] = []
    typical_ns = float(np.median(np.diff(reference_ends)))
    for anchor, partner in _candidate_pairs(reference_ends, ends):
        if any(_leads_to(fit, int(reference_ends[anchor]), int(ends[partner])) for fit in fits):
            continue
        most_ns = HOPELESS * DISTINCT * (min((it.residual_ns for it in fits), default=np.inf) + 1)
        fit = _grow(reference_ends, ends, (anchor, partner), typical_ns, most_ns)
        if fit is not None and not any(_same_alignment(fit, other) for other in fits):
            fits.append(fit)
    if not fits:
        return None
    fits.sort(key=lambda fit: (fit.residual_ns + 1) * (len(ends) / fit.matched))
    best = fits[0]
    rival = fits[1].residual_ns if len(fits) > 1 else None
    if rival is not None and (best.residual_ns + 1) * DISTINCT > rival and fits[1].matched > 0.5 * best.matched:
        return None
    return ClockFit(best.offset_ns, best.drift_ppb, best.origin_ns, best.residual_ns, rival, best.matched)


def _candidate_pairs(reference_ends: IntArray, ends: IntArray) -> list[tuple[int, int]]:
    """Pair an anchor of the reference with the ends whose following intervals look most like its own."""
    width = min(PROBE, len(reference_ends) // 2, len(ends) // 2)
    steps = np.diff(ends)
    pairs: list[tuple[float, int, int]] = []
    anchors = [int((len(reference_ends) - width) * share) for share in (0.5, 0.25, 0.75)]
    wanted = np.stack([np.diff(reference_ends[anchor : anchor + width]) for anchor in anchors])
    windows = np.lib.stride_tricks.sliding_window_view(steps, width - 1)
    some = np.unique(np.linspace(0, width - 2, ROUGH_POINTS).astype(np.int64))
    for anchor, mine, rough in zip(anchors, wanted, _score(windows, wanted, some), strict=True):
        likely = np.sort(np.argsort(rough, kind="stable")[: ROUGH_CANDIDATES * CANDIDATES])
        scores = _score(windows[likely], mine[None], np.arange(width - 1))[0]
        best = np.argsort(scores, kind="stable")[:CANDIDATES]
        pairs.extend((float(scores[index]), anchor, int(likely[index])) for index in best)
    pairs.sort()
    return [(anchor, partner) for _, anchor, partner in pairs]


def _score(windows: IntArray, wanted: IntArray, points: IntArray) -> FloatArray:
    """Measure how far the intervals of each window lie from those wanted, the median of some points.

    Args:
        windows, wanted: `(n_windows, width)` and `(n_wanted, width)`.

    Returns:
        `(n_wanted, n_windows)`.
    """
    scores = np.empty((len(wanted), len(windows)))
    for low in range(0, len(windows), 4096):
        chunk = windows[low : low + 4096, points]
        for number, mine in enumerate(wanted):
            scores[number, low : low + 4096] = np.median(np.abs(chunk - mine[points]), axis=1)
    return scores


def _grow(
    reference_ends: IntArray, ends: IntArray, begin: tuple[int, int], typical_ns: float, most_ns: float
) -> ClockFit | None:
    """Refine a line through (reference, clock) pairs from one anchor outwards.

    Args:
        begin: the anchor and its partner.
        typical_ns: between two ends of the reference.
        most_ns: a residual beyond which the alignment is no rival of the best, and is given up.
    """
    origin = int(ends[begin[1]])
    offset, drift = origin - int(reference_ends[begin[0]]), 0
    span = max(64 * typical_ns, 1.0)
    fit: ClockFit | None = None
    for _ in range(40):
        trial = ClockFit(offset, drift, origin, 0, None, 0)
        near = np.abs(ends - origin) <= span
        moved = trial.apply(ends[near])
        index, distance = nearest(reference_ends, moved)
        good = np.abs(distance) <= max(typical_ns / 3, 1.0)
        if good.sum() < 8:
            return fit
        points = FIT_POINTS if near.all() else GROW_POINTS
        chosen = np.flatnonzero(good)[:: max(1, int(good.sum()) // points)]
        mine = ends[near][chosen]
        x = (mine - origin).astype(np.float64)
        y = (mine - reference_ends[index[chosen]] - offset).astype(np.float64)
        slope, intercept = _robust_line(x, y, drift / 1e9)
        residual = np.abs(y - intercept - slope * x)
        offset += round(intercept)
        drift = round(slope * 1e9)
        fit = ClockFit(offset, drift, origin, round(quantile(residual, AGREE)), None, int(good.sum()))
        if fit.residual_ns > most_ns:
            return None
        if near.all():
            return fit
        span *= 3
    return fit


def _robust_line(x: FloatArray, y: FloatArray, drift: float) -> tuple[float, float]:
    """Fit a line no steeper than clocks drift to where most points lie closest; a short span gives a flat line.

    Ends may lie on two lines, one above the other, where ranks leave late in part of the recording: one of them is
    fitted, not what lies between.

    Args:
        drift: slope of a part of the points.

    Returns:
        Slope and intercept.
    """
    if np.ptp(x) < 1e6:
        return 0.0, find_densest_half(y)[0]
    trials = [(*find_densest_half(y - trial * x), trial) for trial in (drift, 0.0)]
    middle, width, slope = min(trials, key=lambda trial: trial[1])
    near = np.abs(y - slope * x - middle) <= 3 * max(width, 1.0)
    slope, intercept = _reweighted_line(x[near], y[near])
    if abs(slope) > MOST_DRIFT:
        slope = float(np.clip(slope, -MOST_DRIFT, MOST_DRIFT))
        intercept, _ = find_densest_half(y - slope * x)
    return slope, intercept


def find_densest_half(values: FloatArray) -> tuple[float, float]:
    """Return middle and half width of the shortest range that holds half of the values.

    Source: Rousseeuw and Leroy, "Robust Regression and Outlier Detection" (1987), the shorth.
    """
    ordered = np.sort(values)
    count = (len(ordered) + 1) // 2
    widths = ordered[count - 1 :] - ordered[: len(ordered) - count + 1]
    first = int(np.argmin(widths))
    # Neighbouring ranges as short count alike, so that rounding to ticks takes no side.
    longer = np.flatnonzero(widths[first:] > widths[first])
    last = first + (int(longer[0]) if len(longer) else len(widths) - first) - 1
    middle = float(ordered[(first + last + count - 1) // 2]) + float(ordered[(first + last + count) // 2])
    return middle / 2, float(widths[first]) / 2


def _reweighted_line(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Fit a line by reweighted least squares with Huber weights."""
    weights = np.ones(len(x))
    slope, intercept = 0.0, 0.0
    for _ in range(4):
        total = weights.sum()
        mean_x, mean_y = (x * weights).sum() / total, (y * weights).sum() / total
        centred = x - mean_x
        power = float(np.sum(weights * centred**2))
        slope = float(np.sum(weights * centred * (y - mean_y))) / power if power > 0 else 0.0
        intercept = float(mean_y - slope * mean_x)
        distance = np.abs(y - intercept - slope * x)
        scale = max(median(distance) * 1.4826, 1.0)
        weights = np.where(distance <= 2 * scale, 1.0, 2 * scale / np.maximum(distance, 1e-9)) ** 2
    return slope, intercept


def _leads_to(fit: ClockFit, reference_ns: int, time_ns: int) -> bool:
    """Tell whether a fit puts two ends together, so that growing from them would only find it again."""
    return abs(fit.apply_once(time_ns) - reference_ns) <= 4 * (fit.residual_ns + 50)


def _same_alignment(left: ClockFit, right: ClockFit) -> bool:
    """Tell whether two fits put the same ends together (their lines cross within a small distance)."""
    apart = abs(left.apply_once(left.origin_ns) - right.apply_once(left.origin_ns))
    return apart <= 4 * (left.residual_ns + right.residual_ns + 50)


def nearest(sorted_ns: IntArray, times_ns: IntArray) -> tuple[IntArray, IntArray]:
    """Find the nearest entry of a sorted series for each time.

    Returns:
        Its index, and the signed distance `time - entry`.
    """
    right = np.clip(np.searchsorted(sorted_ns, times_ns), 0, len(sorted_ns) - 1)
    left = np.maximum(right - 1, 0)
    use_left = np.abs(times_ns - sorted_ns[left]) <= np.abs(times_ns - sorted_ns[right])
    index = np.where(use_left, left, right)
    return index, times_ns - sorted_ns[index]
