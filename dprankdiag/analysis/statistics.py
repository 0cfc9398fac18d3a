"""Robust statistics: scale, outlying ranks, events in time, change points, bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

MAD_TO_SD = 1.4826
PRIOR_WEIGHT = 4.0
"""Degrees of freedom given to the prior spread of peers: few peers lean on it, many peers override it."""

OUTLIER_SCORE = 5.5
"""Student t at about 11 degrees of freedom for a chance of 1e-4 a side: thousands of even windows stay silent."""

EVENT_SCORE = 8.0
"""Robust z of a single sample that is an event: heavy-tailed host noise reaches 5 and 6 in ordinary traces."""

TWO_LEVEL_SCORE = 6.0
"""Least distance of two levels in standard deviations of either; the halves of one normal sample lie 3.2 apart."""

_HUBER = 2.0
"""Scales beyond which a sample counts less."""

_ROUNDS = 8

CHANGE_SCORE = 6.5
"""Least |t| of a change point: sqrt(2 ln n) for the best of n places, plus a margin for short-range correlation."""


def robust_sd(values: FloatArray, axis: int | None = None) -> Any:
    """Estimate the standard deviation from the median absolute deviation."""
    centre = np.median(values, axis=axis, keepdims=axis is not None)
    return MAD_TO_SD * np.median(np.abs(values - centre), axis=axis)


def fit_slope(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Fit a line, far samples drawn in; its slope and the slope's standard error (infinite if x does not vary).

    Args:
        x, y: of one shape.

    Source: iterated weights of Huber, Annals of Mathematical Statistics 35 (1964), begun from the better of the slopes
    0 and 1, so that no group of far samples can lead the line away from both.
    """
    x, y = (x - np.median(x)).ravel(), y.ravel()
    slope, error = min((0.0, 1.0), key=lambda start: float(robust_sd(y - start * x))), np.inf
    middle = float(np.median(y - slope * x))
    for _ in range(_ROUNDS):
        rest = y - middle - slope * x
        scale = max(float(robust_sd(rest)), 1.0)
        weight = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(rest), 1e-9))
        total = float(weight.sum())
        mean_x, mean_y = float((weight * x).sum()) / total, float((weight * y).sum()) / total
        base = float((weight * (x - mean_x) ** 2).sum())
        if base <= 0:
            return 0.0, np.inf
        slope = float((weight * (x - mean_x) * (y - mean_y)).sum()) / base
        middle, error = mean_y - slope * mean_x, scale / float(np.sqrt(base))
    return slope, error


def noise_sd(series: FloatArray) -> float:
    """Estimate the sample noise of a series from its successive differences, blind to slow change."""
    if len(series) < 3:
        return 0.0
    return float(robust_sd(np.diff(series)) / np.sqrt(2.0))


def peer_median(values: FloatArray) -> FloatArray:
    """Return, for every rank (last axis), the median of the other ranks.

    Args:
        values: `(..., n_ranks)`, n_ranks >= 2.
    """
    n_ranks = values.shape[-1]
    ordered = np.sort(values, axis=-1)
    rank_of = np.argsort(np.argsort(values, axis=-1, kind="stable"), axis=-1, kind="stable")
    low, high = (n_ranks - 2) // 2, (n_ranks - 1) // 2
    # Leaving one value out shifts every later position of the sorted row by one.
    low_index = low + (rank_of <= low)
    high_index = high + (rank_of <= high)
    return (np.take_along_axis(ordered, low_index, -1) + np.take_along_axis(ordered, high_index, -1)) / 2.0


MEDIAN_ERROR = 1.2533
"""Standard error of a median over that of a mean, for normal samples."""

LOSS_SHARE = 0.8
"""Share of the loss that the ranks named hold (DESIGN 3). All wait for the last: it loses what it is above the next."""


@dataclass(frozen=True, slots=True)
class Outliers:
    """Ranks above the rest; `centre` is the rest's median."""

    mask: BoolArray
    centre: float


def find_high(
    levels: FloatArray, errors: FloatArray, prior_sd: float, least: float, halves: Sequence[BoolArray] = ()
) -> Outliers:
    """Find the ranks whose level lies outside what the other ranks scatter.

    The rest's spread is a pooled variance of the rest and a prior, so that two ranks are judged by the prior alone and
    many by themselves. Up to fewer than half of the ranks can be outside, or one of the halves given; the split taken
    is the lowest gap for which every member passes, so that a rank far out does not hide another. Of these, ranks are
    left out that would not be missed: all the others hold `LOSS_SHARE` of what the highest is above the centre.

    Args:
        levels: `(n_ranks,)` level of each rank.
        errors: `(n_ranks,)` standard error of each level.
        prior_sd: spread expected among healthy ranks, same unit.
        least: smallest excess worth a claim, same unit.
        halves: groups of half of the ranks that have something in common, `(n_ranks,)` each.

    Source: the largest number of outliers whose least passes, B. Rosner, Technometrics 25 (1983), is what masks none.
    """
    n_ranks = len(levels)
    nobody = Outliers(np.zeros(n_ranks, bool), float(np.median(levels)))
    if n_ranks < 2:
        return nobody
    order = np.argsort(levels)
    ordered = levels[order]
    best = nobody
    for count in range(1, n_ranks // 2 + 1):
        rest = ordered[: n_ranks - count]
        gap = ordered[n_ranks - count] - rest[-1]
        centre = float(np.median(rest))
        squares = float(np.sum((rest - rest.mean()) ** 2))
        spread = np.sqrt((PRIOR_WEIGHT * prior_sd**2 + squares) / (PRIOR_WEIGHT + len(rest) - 1))
        weakest = order[n_ranks - count]
        scale = float(np.hypot(spread, errors[weakest]))
        threshold = max(OUTLIER_SCORE * scale, least)
        excess = levels[weakest] - centre
        if excess > threshold and gap > 2 * spread:
            mask = np.zeros(n_ranks, bool)
            mask[order[n_ranks - count :]] = True
            if 2 * count == n_ranks > 2 and not any(np.array_equal(mask, half) for half in halves):
                continue
            held = levels - centre > (1.0 - LOSS_SHARE) * (ordered[-1] - centre)
            best = Outliers(mask & held, centre)
    return best


def find_events(series: FloatArray, least: float, scale: float | None = None) -> BoolArray:
    """Mark samples far above the series' own distribution.

    Args:
        series: `(n,)` excess over peers.
        least: smallest height above the median worth an event.
        scale: noise of the series; its own robust standard deviation if not given.
    """
    if len(series) < 8:
        return np.zeros(len(series), bool)
    scale = float(robust_sd(series)) if scale is None else scale
    return np.asarray(series - np.median(series) > max(EVENT_SCORE * scale, least), bool)


def find_two_levels(series: FloatArray, least: float) -> BoolArray | None:
    """Mark the upper samples of a series that goes to and fro between two levels; None if it does not.

    Both levels must hold a quarter of the samples, lie far apart for what each scatters, and alternate at least every
    four samples on average.

    Args:
        series: `(n,)` excess over peers.
        least: smallest distance of the levels worth telling.

    Source: the split is Otsu's, IEEE Transactions on Systems, Man and Cybernetics 9 (1979).
    """
    n = len(series)
    ordered = np.sort(series)
    count = np.arange(1, n)
    below = np.cumsum(ordered)[:-1]
    distance = (ordered.sum() - below) / (n - count) - below / count
    between = count * (n - count) * distance**2
    split = int(np.argmax(between))
    if between[split] <= 0 or 4 * min(count[split], n - count[split]) < n:
        return None
    upper = np.asarray(series > (ordered[split] + ordered[split + 1]) / 2)
    apart = float(np.median(series[upper]) - np.median(series[~upper]))
    scatter = max(float(robust_sd(series[upper])), float(robust_sd(series[~upper])))
    alternates = 4 * int((upper[1:] != upper[:-1]).sum()) >= n
    return upper if apart > max(TWO_LEVEL_SCORE * scatter, least) and alternates else None


def find_changes(series: FloatArray, shortest: int | None = None, least: float = 0.0) -> list[int]:
    """Find the indices at which the mean of a series shifts (binary segmentation without single spikes).

    Args:
        series: `(n,)`.
        shortest: least number of samples on each side; a quarter of the series but 5 to 10 if not given.
        least: smallest shift worth a change point.

    Source: binary segmentation with a standardised mean shift, as in Scott and Knott, Biometrics 30 (1974).
    """
    if shortest is None:
        shortest = int(np.clip(len(series) // 4, 5, 10))
    scale = noise_sd(series)
    if len(series) < 2 * shortest or (scale == 0.0 and np.ptp(series) == 0):
        return []
    scale = max(scale, 1e-12)
    # A running median of five takes single and paired spikes out and leaves shifts where they are.
    padded = np.concatenate([series[:1], series[:1], series, series[-1:], series[-1:]])
    clipped = np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1)
    found: list[int] = []
    stack = [(0, len(series))]
    while stack:
        low, high = stack.pop()
        split = _best_split(clipped[low:high], shortest, scale, least)
        if split is not None:
            found.append(low + split)
            stack += [(low, low + split), (low + split, high)]
    return sorted(found)


def _best_split(values: FloatArray, shortest: int, scale: float, least: float) -> int | None:
    n = len(values)
    if n < 2 * shortest:
        return None
    total = np.cumsum(values)
    left = np.arange(shortest, n - shortest + 1)
    left_mean = total[left - 1] / left
    right_mean = (total[-1] - total[left - 1]) / (n - left)
    shift = np.abs(right_mean - left_mean)
    score = shift / (scale * np.sqrt(1.0 / left + 1.0 / (n - left)))
    best = int(np.argmax(score))
    if score[best] < CHANGE_SCORE or shift[best] < least:
        return None
    return int(left[best])


def block_length(n: int) -> int:
    """Choose how many neighbouring steps a block of the bootstrap has; it grows with the cube root of n."""
    return max(1, min(n, round(float(n ** (1 / 3))) * 2))


def draw_blocks(n: int, draws: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Draw block-bootstrap samples of step indices, `(draws, n)`.

    Blocks keep short-range correlation.

    Source: Künsch, Annals of Statistics 17 (1989), moving blocks.
    """
    length = block_length(n)
    blocks = -(-n // length)
    starts = np.random.default_rng(seed).integers(0, n - length + 1, (draws, blocks))
    index = starts[:, :, None] + np.arange(length)[None, None, :]
    return index.reshape(draws, -1)[:, :n]


def bootstrap_sum(samples: FloatArray, level: float = 0.9) -> tuple[float, float]:
    """Bootstrap how far a sum of samples may lie off its expectation by chance.

    Args:
        samples: `(n,)` in order of time; their mean is taken out.

    Returns:
        The two-sided interval at `level`, around 0.
    """
    if len(samples) < 2:
        return 0.0, 0.0
    sums = (samples - samples.mean())[draw_blocks(len(samples), 400)].sum(axis=1)
    tail = (1 - level) / 2
    low, high = np.quantile(sums, [tail, 1 - tail])
    return min(float(low), 0.0), max(float(high), 0.0)
