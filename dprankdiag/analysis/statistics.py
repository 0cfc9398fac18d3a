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

ROUNDING = 1e-6
"""Share of the numbers summed by which a sum may err, at the very most."""

CHANGE_SCORE = 6.5
"""Least |t| of a change point: sqrt(2 ln n) for the best of n places, plus a margin for short-range correlation."""


def median(values: np.ndarray[Any, Any]) -> float:
    """Return the median of all values, as `np.median` does; of a thousand values and fewer in half the time."""
    n = values.size
    if not n:
        return float(np.median(values))
    ordered = values.flatten()
    ordered.partition(n // 2)
    highest, middle = float(ordered[n // 2 :].max()), float(ordered[n // 2])
    if highest != highest:  # NaN lies behind all numbers
        return highest
    return middle if n % 2 else (float(ordered[: n // 2].max()) + middle) / 2.0


def quantile(values: FloatArray, share: float) -> float:
    """Return the quantile of all values, as `np.quantile` does (linear), in less time.

    Args:
        values: at least one.
        share: 0 to 1, below which so many of the values lie.
    """
    place = (values.size - 1) * share
    low = int(place)
    ordered = values.flatten()
    ordered.partition(low)
    highest, left = float(ordered[low:].max()), float(ordered[low])
    if highest != highest:  # NaN lies behind all numbers
        return highest
    right = float(ordered[low + 1 :].min()) if low + 1 < values.size else left
    between = place - low
    return left + (right - left) * between if between < 0.5 else right - (right - left) * (1 - between)


def robust_sd(values: FloatArray, axis: int | None = None) -> Any:
    """Estimate the standard deviation from the median absolute deviation."""
    if axis is None:
        return MAD_TO_SD * median(np.abs(values - median(values)))
    return MAD_TO_SD * np.median(np.abs(values - np.median(values, axis=axis, keepdims=True)), axis=axis)


def fit_slope(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    """Fit a line, far samples drawn in; its slope and the slope's standard error (infinite if x does not vary).

    Args:
        x, y: of one shape.

    Source: iterated weights of Huber, Annals of Mathematical Statistics 35 (1964), begun from the better of the slopes
    0 and 1, so that no group of far samples can lead the line away from both.
    """
    x, y = (x - median(x)).ravel(), y.ravel()
    slope, error = min((0.0, 1.0), key=lambda start: float(robust_sd(y - start * x))), np.inf
    middle = median(y - slope * x)
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


def noise_sd(series: FloatArray) -> Any:
    """Estimate the sample noise of series `(..., n)` from their successive differences, blind to slow change."""
    if series.shape[-1] < 3:
        return np.zeros(series.shape[:-1])
    return robust_sd(np.diff(series), axis=-1) / np.sqrt(2.0)


def peer_median(values: FloatArray) -> FloatArray:
    """Return, for every rank (last axis), the median of the other ranks.

    Args:
        values: `(..., n_ranks)`, n_ranks >= 2.
    """
    n_ranks = values.shape[-1]
    low, high = (n_ranks - 2) // 2, (n_ranks - 1) // 2
    ordered = np.partition(values, sorted({low, low + 1, high + 1}), axis=-1)
    # Leaving one value out shifts every later position of the sorted row by one.
    left, right = (
        np.where(values <= ordered[..., place, None], ordered[..., place + 1, None], ordered[..., place, None])
        for place in (low, high)
    )
    return np.asarray((left + right) / 2.0)


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
    nobody = Outliers(np.zeros(n_ranks, bool), median(levels))
    if n_ranks < 2:
        return nobody
    order = np.argsort(levels)
    ordered = levels[order]
    for count in reversed(_list_splits(ordered, least)):
        rest = ordered[: n_ranks - count]
        gap = ordered[n_ranks - count] - rest[-1]
        centre = median(rest)
        squares = float(np.sum((rest - rest.mean()) ** 2))
        spread = np.sqrt((PRIOR_WEIGHT * prior_sd**2 + squares) / (PRIOR_WEIGHT + len(rest) - 1))
        weakest = order[n_ranks - count]
        scale = float(np.hypot(spread, errors[weakest]))
        if levels[weakest] - centre > max(OUTLIER_SCORE * scale, least) and gap > 2 * spread:
            mask = np.zeros(n_ranks, bool)
            mask[order[n_ranks - count :]] = True
            if 2 * count == n_ranks > 2 and not any(np.array_equal(mask, half) for half in halves):
                continue
            held = levels - centre > (1.0 - LOSS_SHARE) * (ordered[-1] - centre)
            return Outliers(mask & held, centre)
    return nobody


def may_be_high(levels: FloatArray, least: float) -> bool:
    """Tell whether `find_high` could find any rank, whatever the errors of the levels."""
    return bool(_list_splits(np.sort(levels), least))


def _list_splits(ordered: FloatArray, least: float) -> list[int]:
    """List how many of the ranks may be outside: the lowest of so many lies far enough above the rest's median."""
    count = np.arange(1, len(ordered) // 2 + 1)
    rest = len(ordered) - count
    centre = (ordered[(rest - 1) // 2] + ordered[rest // 2]) / 2.0
    return count[ordered[rest] - centre > least].tolist()  # type: ignore[no-any-return]


def find_events(series: FloatArray, least: float, *, pooled: bool = False) -> BoolArray:
    """Mark samples far above the distribution of their own series.

    Args:
        series: `(n,)` or `(n, n_series)` excess over peers.
        least: smallest height above the median worth an event.
        pooled: take the noise of the median series for all, in place of each one's own robust standard deviation.
    """
    columns = series.reshape(len(series), -1)
    marks = np.zeros(columns.shape, bool)
    if len(series) >= 8:
        # Nothing lies farther above the median than above the lowest.
        chosen = np.flatnonzero(np.ptp(columns, axis=0) > least)
        height = columns[:, chosen] - np.median(columns[:, chosen], axis=0)
        far = (height > least).any(axis=0)
        chosen, height = chosen[far], height[:, far]
        if len(chosen):
            scale = median(robust_sd(columns, axis=0)) if pooled else robust_sd(columns[:, chosen], axis=0)
            marks[:, chosen] = height > np.maximum(EVENT_SCORE * scale, least)
    return marks.reshape(series.shape)


def find_two_levels(series: FloatArray, least: float) -> BoolArray:
    """Mark the upper samples of every series that goes to and fro between two levels; none of one that does not.

    Both levels must hold a quarter of the samples, lie far apart for what each scatters, and alternate at least every
    four samples on average.

    Args:
        series: `(n, n_series)` excess over peers.
        least: smallest distance of the levels worth telling.

    Source: the split is Otsu's, IEEE Transactions on Systems, Man and Cybernetics 9 (1979).
    """
    n, n_series = series.shape
    marks = np.zeros(series.shape, bool)
    ordered = np.sort(np.ascontiguousarray(series.T), axis=1)
    count = np.arange(1, n)
    below = np.cumsum(ordered, axis=1)[:, :-1]
    distance = (ordered.sum(axis=1, keepdims=True) - below) / (n - count) - below / count
    between = count * (n - count) * distance**2
    split = np.argmax(between, axis=1)
    each = np.arange(n_series)
    even = (between[each, split] > 0) & (4 * np.minimum(count[split], n - count[split]) >= n)
    # The levels lie no farther apart than the outermost samples.
    for number in np.flatnonzero(even & (ordered[:, -1] - ordered[:, 0] > least)).tolist():
        mine, place = series[:, number], int(split[number])
        upper = np.asarray(mine > (ordered[number, place] + ordered[number, place + 1]) / 2)
        apart = median(mine[upper]) - median(mine[~upper])
        if apart > least and 4 * int((upper[1:] != upper[:-1]).sum()) >= n:
            scatter = max(float(robust_sd(mine[upper])), float(robust_sd(mine[~upper])))
            marks[:, number] = upper & (apart > TWO_LEVEL_SCORE * scatter)
    return marks


def find_changes(series: FloatArray, shortest: int | None = None, least: float = 0.0) -> list[int]:
    """Find the indices at which the mean of a series shifts (binary segmentation without single spikes).

    Args:
        series: `(n,)`.
        shortest: least number of samples on each side; a quarter of the series but 5 to 10 if not given.
        least: smallest shift worth a change point.

    Source: binary segmentation with a standardised mean shift, as in Scott and Knott, Biometrics 30 (1974).
    """
    return find_changes_each(series[None], shortest, least)[0]


def find_changes_each(series: FloatArray, shortest: int | None = None, least: float = 0.0) -> list[list[int]]:
    """Find of every series `(n_series, n)` what `find_changes` finds of one."""
    n_series, n = series.shape
    found: list[list[int]] = [[] for _ in range(n_series)]
    if shortest is None:
        shortest = int(np.clip(n // 4, 5, 10))
    if n < 2 * shortest:
        return found
    clipped = _without_spikes(series)
    # No mean lies beyond the outermost samples, but for rounding.
    reach = np.ptp(clipped, axis=1) + ROUNDING * np.abs(clipped).max(axis=1)
    chosen = np.flatnonzero((np.ptp(series, axis=1) > 0) & (reach >= least))
    scales = np.maximum(noise_sd(series[chosen]), 1e-12)
    for number, scale in zip(chosen.tolist(), scales.tolist(), strict=True):
        stack = [(0, n)]
        while stack:
            low, high = stack.pop()
            split = _best_split(clipped[number, low:high], shortest, scale, least)
            if split is not None:
                found[number].append(low + split)
                stack += [(low, low + split), (low + split, high)]
    return [sorted(mine) for mine in found]


def _without_spikes(series: FloatArray) -> FloatArray:
    """Take single and paired spikes out of series `(n_series, n)` and leave shifts where they are.

    That is a running median of five: the middle one of the central sample, the greater of the lesser two of two pairs,
    and the lesser of their greater two.
    """
    padded = np.concatenate([series[:, :1], series[:, :1], series, series[:, -1:], series[:, -1:]], axis=1)
    first, second, middle, third, fourth = (padded[:, k : k + series.shape[1]] for k in range(5))
    low = np.maximum(np.minimum(first, second), np.minimum(third, fourth))
    high = np.minimum(np.maximum(first, second), np.maximum(third, fourth))
    return np.asarray(np.maximum(np.minimum(low, high), np.minimum(middle, np.maximum(low, high))))


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
