"""Find the groups that meet on a channel where no communicator is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.calls import Calls
from dprankdiag.analysis.partners import match_rows
from dprankdiag.analysis.statistics import median, quantile

IntArray = np.ndarray[Any, np.dtype[np.int64]]

NOISE_FACTOR = 1.25
"""A larger group is taken only if its ends follow the arrivals about as well as those of the best partition."""

SCATTER_FACTOR = 3.0
"""The same for constant differences between ranks, which the GPUs' own clocks cause as well."""

SHARE_MARGIN = 0.003
"""Calls without a partner, more than a better partition leaves, that a partition may have by chance."""

LOST_FACTOR = 2.0

TICK_NS = 50

SAMPLE, FEWEST_SAMPLED, MOST_SAMPLED = 1500, 250, 150_000
"""Calls of each member that are looked at, and of all members together: the more members, the fewer of each tell."""


def choose_partition(calls: Sequence[Calls]) -> list[tuple[int, ...]] | None:
    """Choose the partition of the callers into groups that meet: the largest whose ends follow its arrivals.

    Returns:
        Positions in `calls` by group, or None where two partitions of one size explain the ends equally well and the
        whole does not.
    """
    n = len(calls)
    if n == 2:
        return [(0, 1)]
    most = min(SAMPLE, max(FEWEST_SAMPLED, MOST_SAMPLED // n))
    sampled = [_middle(member, most) for member in calls]
    fits = [
        _partition_fit(sampled, groups)
        for size in range(n, 1, -1)
        if n % size == 0
        for groups in list_partitions(n, size)
    ]
    best_share = max(fit.share for fit in fits)
    if best_share <= 0:
        return None
    # A lost row takes its partners' matches along, the more the larger the group.
    margin = SHARE_MARGIN + LOST_FACTOR * (1.0 - best_share)
    usable = [fit for fit in fits if fit.share >= best_share - margin]
    usable = [fit for fit in usable if fit.early <= min(other.early for other in usable) + margin]
    for name, factor in (("noise_ns", NOISE_FACTOR), ("scatter_ns", SCATTER_FACTOR)):
        tightest = min(getattr(fit, name) for fit in usable)
        usable = [fit for fit in usable if getattr(fit, name) <= factor * tightest + TICK_NS]
    largest = max(len(fit.groups[0]) for fit in usable)
    chosen = [fit for fit in usable if len(fit.groups[0]) == largest]
    return chosen[0].groups if len(chosen) == 1 else None


@dataclass(frozen=True, slots=True)
class _Fit:
    """How well a partition explains the ends of the calls.

    Attributes:
        share: share of calls that find their partner in the group's busiest member, whatever the group's size.
        early: share of calls that end before the group's last arrival, which no call that waits for it can.
        noise_ns: scatter of the time from last arrival to end, each rank about its own median.
        scatter_ns: the same about the common median: ranks of two groups end apart, by as much as they come apart.
    """

    groups: list[tuple[int, ...]]
    share: float
    early: float
    noise_ns: float
    scatter_ns: float


def _middle(calls: Calls, most: int) -> Calls:
    if len(calls) <= 2 * most:
        return calls
    low = (len(calls) - most) // 2
    return calls.take(slice(low, low + most))


def list_partitions(n: int, size: int) -> list[list[tuple[int, ...]]]:
    """List how n callers may meet in groups of one size: neighbours, or every so many."""
    contiguous = [tuple(range(low, low + size)) for low in range(0, n, size)]
    if size in (1, n):
        return [contiguous]
    stride = n // size
    strided = [tuple(range(low, n, stride)) for low in range(stride)]
    return [contiguous, strided]


def _partition_fit(calls: Sequence[Calls], groups: list[tuple[int, ...]]) -> _Fit:
    """Measure how the ends of the calls follow the last arrival of each group.

    A group too small misses the last arrival in some meetings, one too large waits for arrivals that do not concern
    it: both scatter more than the true one. The scatter is a mean, so that faults in few meetings count.
    """
    matched, total, early = 0, 0, 0
    noise, scatter, weight = 0.0, 0.0, 0
    for group in groups:
        members = [calls[position] for position in group]
        index = match_rows(members)
        complete = index[(index >= 0).all(axis=1)]
        matched += int((index >= 0).sum()) - len(index)
        total += sum(len(member) for member in members) - len(index)
        if len(complete) < 2:
            continue
        end = np.stack([m.end_ns[complete[:, k]] for k, m in enumerate(members)], axis=1)
        arrival = np.stack([m.arrival_ns[complete[:, k]] for k, m in enumerate(members)], axis=1)
        transfer = (end - arrival.max(axis=1, keepdims=True)).astype(np.float64)
        # The GPUs' own clocks may differ a little: the reading under which ends follow better counts.
        offset = clock_offsets(end)
        early += min(_count_early(arrival, end), _count_early(arrival - offset, end - offset))
        shifted = transfer_scatter(arrival, end, offset)
        noise += min(transfer_scatter(arrival, end, None), shifted) * len(complete)
        scatter += _mean_distance(transfer, median(transfer)) * len(complete)
        weight += len(complete)
    if not weight:
        return _Fit(groups, 0.0, 1.0, np.inf, np.inf)
    return _Fit(groups, matched / total, early / total, noise / weight, scatter / weight)


def _count_early(arrival_ns: IntArray, end_ns: IntArray) -> int:
    return int((end_ns < arrival_ns.max(axis=1, keepdims=True) - TICK_NS).sum())


def clock_offsets(end_ns: IntArray) -> IntArray:
    """Return how far each member's ends lie from the group's, in the median over the meetings, `(n_members,)`."""
    middle = np.sort(end_ns, axis=1)[:, (end_ns.shape[1] - 1) // 2]
    return np.asarray(np.median(end_ns - middle[:, None], axis=0).astype(np.int64))


def transfer_scatter(arrival_ns: IntArray, end_ns: IntArray, offset_ns: IntArray | None) -> float:
    """Measure how much the time from the last arrival to each end scatters about each member's median.

    Args:
        offset_ns: `(n_members,)` taken off the members' clocks first.
    """
    if offset_ns is not None:
        arrival_ns, end_ns = arrival_ns - offset_ns, end_ns - offset_ns
    transfer = (end_ns - arrival_ns.max(axis=1, keepdims=True)).astype(np.float64)
    return _mean_distance(transfer, np.median(transfer, axis=0))


def _mean_distance(values: np.ndarray[Any, Any], centre: Any) -> float:
    distance = np.abs(values - centre)
    return float(np.minimum(distance, quantile(distance, 0.995)).mean())
