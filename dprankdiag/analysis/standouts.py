"""Find the ranks that stand out in a per-step series, and since when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from dprankdiag.analysis.statistics import (
    LOSS_SHARE,
    MEDIAN_ERROR,
    BoolArray,
    FloatArray,
    find_changes_each,
    find_events,
    find_high,
    find_two_levels,
    may_be_high,
    median,
    peer_median,
    robust_sd,
)

FEWEST_STEPS = 5
FEWEST_EVENTS = 2
MOST_CULPRITS = 3
TURNS_SHARE = 0.1
SMALL_STALL = 0.2
ALIKE = 0.7
"""Beside the smallest set that holds the loss, ranks are named that are so heavy beside its last member."""

OWN_PAST_SHARE = 0.2
"""How much of the spread among ranks is left between two parts of one rank's own recording."""


@dataclass(frozen=True, slots=True)
class Standout:
    """Ranks that stand out over a run of steps, or in single steps.

    Attributes:
        first, stop: half-open range of steps.
        mask: `(n_ranks,)` the ranks.
        levels: `(n_ranks,)` level of every rank in these steps (of a burst: in the marked ones).
        centre: level of the rest.
        marks: `(n_steps, n_ranks)` the steps and ranks meant.
        is_burst: single steps stand out, not a run.
        in_turn: the ranks take turns.
        spread: standard deviation of the rest's levels, unit of the series.
        peaks: `(n_steps,)` of ranks that go to and fro between two levels, the steps at the upper one; the lower one
            may stand out as well, because a step's tail counts to the next.
    """

    first: int
    stop: int
    mask: BoolArray
    levels: FloatArray
    centre: float
    marks: BoolArray
    is_burst: bool = False
    in_turn: bool = False
    spread: float = 0.0
    peaks: BoolArray | None = None

    @property
    def steps(self) -> BoolArray:
        """Mark the steps covered, `(n_steps,)`."""
        return np.asarray(self.marks.any(axis=1))


def relative_to_step(values: FloatArray) -> FloatArray:
    """Divide by what the step asks of everybody: the median rank (of two ranks, the lesser)."""
    base = values.min(axis=1) if values.shape[1] == 2 else np.median(values, axis=1)
    return np.asarray(values / np.maximum(base, 1.0)[:, None])


def find_all(
    series: FloatArray,
    prior_sd: float,
    least: float,
    burst_least: float,
    *,
    own_past: bool = False,
    halves: Sequence[BoolArray] = (),
) -> list[Standout]:
    """Find what stands out over runs of steps, in every few steps, and in single ones; each step counts once.

    Args:
        series, prior_sd, least, own_past, halves: as `find_standouts`.
        burst_least: smallest height of a single step worth an event.
    """
    turns, calm = split_turns(series, least)
    runs = find_standouts(calm, prior_sd, least, own_past=own_past, halves=halves)
    for number, turn in enumerate(turns):
        for run in [item for item in runs if np.array_equal(item.mask, turn.mask)]:
            runs = [item for item in runs if item is not run]
            turns[number] = replace(turns[number], marks=turns[number].marks | run.marks)
    return [*turns, *runs, *find_bursts(calm, burst_least, runs)]


def split_turns(series: FloatArray, least: float) -> tuple[list[Standout], FloatArray]:
    """Find ranks that go up and down between two levels every few steps, too often for events and no run either.

    Ranks that do so at different times take turns; those are left to `find_bursts`.

    Returns:
        The standouts, marking the upper steps, and the series with those steps set to the lower level.
    """
    if len(series) < 4 * FEWEST_STEPS or series.shape[1] < 2:
        return [], series
    excess = series - peer_median(series)
    marks = find_two_levels(excess, least)
    groups = group_by_steps(marks, np.flatnonzero(marks.any(axis=0)).tolist())
    if len(groups) != 1:
        return [], series
    calm = series.copy()
    for rank in np.flatnonzero(marks.any(axis=0)).tolist():
        upper = marks[:, rank]
        calm[upper, rank] -= median(excess[upper, rank]) - median(excess[~upper, rank])
    found = describe_burst(series, marks, groups[0], in_turn=False)
    return [replace(found, peaks=found.steps)], calm


def find_standouts(
    series: FloatArray,
    prior_sd: float,
    least: float,
    *,
    own_past: bool = False,
    halves: Sequence[BoolArray] = (),
) -> list[Standout]:
    """Cut the steps where any rank's level shifts, and name who stands out in each part.

    Args:
        series: `(n_steps, n_ranks)`, already relative to what is common to the step.
        prior_sd: spread of levels expected among healthy ranks.
        least: smallest excess worth a claim.
        own_past: also judge each rank against its own best part of the recording, where healthy ranks differ far less
            than from each other; for what does not follow the requests.
        halves: as `statistics.find_high`.
    """
    n_steps, n_ranks = series.shape
    if n_steps < FEWEST_STEPS or n_ranks < 2:
        return []
    excess = series - peer_median(series)
    borders = {0, n_steps}
    for changes in find_changes_each(np.ascontiguousarray(excess.T), least=least / 2):
        borders.update(changes)
    edges = _merge_close(sorted(borders), n_steps)
    parts: list[tuple[int, int, BoolArray]] = []
    best = _best_levels(series, edges) if own_past and len(edges) > 2 else None
    for first, stop in pairwise(edges):
        mask = _judge(series[first:stop], prior_sd, least, halves)
        if best is not None and not mask.any():
            mask = _judge(series[first:stop] - best, OWN_PAST_SHARE * prior_sd, least, halves)
        if parts and np.array_equal(parts[-1][2], mask):
            parts[-1] = (parts[-1][0], stop, mask)
        else:
            parts.append((first, stop, mask))
    found = []
    for first, stop, mask in parts:
        if mask.any():
            found.append(_describe(series, first, stop, mask, prior_sd))
    return found


def _best_levels(series: FloatArray, edges: Sequence[int]) -> FloatArray:
    """Return each rank's lowest level over the parts of the recording."""
    return np.asarray(np.min([np.median(series[a:b], axis=0) for a, b in pairwise(edges)], axis=0))


def _merge_close(edges: list[int], n_steps: int) -> list[int]:
    kept = [0]
    for edge in edges[1:-1]:
        if edge - kept[-1] >= FEWEST_STEPS // 2 and n_steps - edge >= FEWEST_STEPS // 2:
            kept.append(edge)
    return [*kept, n_steps]


def _judge(series: FloatArray, prior_sd: float, least: float, halves: Sequence[BoolArray]) -> BoolArray:
    if len(series) < FEWEST_STEPS // 2:
        return np.zeros(series.shape[1], bool)
    levels = np.median(series, axis=0)
    if not may_be_high(levels, least):
        return np.zeros(series.shape[1], bool)
    errors = MEDIAN_ERROR * np.asarray(robust_sd(series, axis=0)) / np.sqrt(len(series))
    return find_high(levels, errors, prior_sd, least, halves).mask


def _describe(series: FloatArray, first: int, stop: int, mask: BoolArray, prior_sd: float) -> Standout:
    part = series[first:stop]
    levels = np.median(part, axis=0)
    centre = float(np.median(levels[~mask])) if (~mask).any() else float(np.median(levels))
    marks = np.zeros(series.shape, bool)
    marks[first:stop, mask] = True
    spread = float(np.std(levels[~mask], ddof=1)) if (~mask).sum() > 1 else prior_sd
    return Standout(first, stop, mask, levels, centre, marks, spread=spread)


def find_stalls(series: FloatArray, least: float, *, pooled: bool = False) -> BoolArray:
    """Mark single steps in which one rank lies far above both its own habit and its peers.

    Args:
        series: `(n_steps, n_ranks)`.
        least: smallest height worth an event.
        pooled: take the noise of the median rank for all: a rank that surges in a third of the steps must not hide
            behind its own scatter.

    Returns:
        `(n_steps, n_ranks)`.
    """
    return find_events(series - peer_median(series), least, pooled=pooled)


def find_bursts(
    series: FloatArray, least: float, taken: Sequence[Standout] = (), *, of_host: bool = False
) -> list[Standout]:
    """Find single steps in which ranks stand out, and tell ranks that do so together from ranks that take turns.

    Now and then, now this rank and now that one, is noise and left to the jitter.

    Args:
        series: `(n_steps, n_ranks)` relative to what is common to the step.
        least: smallest height worth an event.
        taken: standouts whose ranks and steps are accounted for.
        of_host: stalls of a host: a rank is held against its own unrest, its small ones beside large ones do not
            count, a single one is told, and rare ones on many ranks are told together.
    """
    if len(series) < FEWEST_STEPS or series.shape[1] < 2:
        return []
    marks = find_stalls(series, least, pooled=not of_host)
    for standout in taken:
        marks &= ~standout.marks
    if of_host:
        marks &= series >= SMALL_STALL * np.where(marks, series, 0.0).max(axis=0)
    ranks = [int(rank) for rank in np.flatnonzero(marks.sum(axis=0) >= (1 if of_host else FEWEST_EVENTS))]
    groups = group_by_steps(marks, ranks)
    apart = groups
    if of_host and series.shape[1] > 2:
        groups = _group_alike(np.where(marks, series, 0.0).max(axis=0), groups)
    share = float(marks[:, ranks].any(axis=1).mean()) if ranks else 0.0
    if of_host and len(ranks) > max(MOST_CULPRITS, series.shape[1] // 2):
        return [describe_burst(series, marks, ranks, in_turn=True)]
    if len(groups) > MOST_CULPRITS and share < TURNS_SHARE and not of_host:
        return []
    if len(groups) > MOST_CULPRITS or (len(groups) > 1 and share >= TURNS_SHARE and series.shape[1] > 2):
        return [describe_burst(series, marks, ranks, in_turn=True)]
    everybody = [] if of_host else [list(range(series.shape[1]))]
    told_apart = [group for group in map(sorted, apart) if group not in everybody]
    return [describe_burst(series, marks, group, in_turn=sorted(group) not in told_apart) for group in groups]


def group_by_steps(marks: BoolArray, ranks: Sequence[int]) -> list[list[int]]:
    """Join ranks whose events fall mostly on the same steps."""
    groups: list[list[int]] = []
    for rank in ranks:
        for group in groups:
            both = (marks[:, rank] & marks[:, group].any(axis=1)).sum()
            if 2 * both >= min(marks[:, rank].sum(), marks[:, group].any(axis=1).sum()):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return groups


def _group_alike(height: FloatArray, groups: list[list[int]]) -> list[list[int]]:
    """Join groups whose stalls are of about the same height: one fault that strikes several hosts, now and then."""
    joined: list[list[int]] = []
    for group in sorted(groups, key=lambda ranks: -height[ranks].max()):
        for other in joined:
            if height[group].max() >= 0.5 * height[other].max():
                other.extend(group)
                break
        else:
            joined.append(list(group))
    return [sorted(group) for group in joined]


def describe_burst(series: FloatArray, marks: BoolArray, ranks: Sequence[int], *, in_turn: bool) -> Standout:
    """Describe ranks that stand out in the steps marked; of ranks in turn, those are meant that hold the loss."""
    mine = np.zeros_like(marks)
    mine[:, ranks] = marks[:, ranks]
    excess = np.where(mine, series - np.median(series, axis=1, keepdims=True), 0.0).sum(axis=0)
    mask: BoolArray = choose_by_loss(excess) if in_turn else np.asarray(mine.any(axis=0))
    steps = np.flatnonzero(mine.any(axis=1))
    marked = np.where(mine, series, np.nan)
    levels = np.median(series[steps], axis=0)
    levels[mine.any(axis=0)] = np.nanmedian(marked[:, mine.any(axis=0)], axis=0)
    quiet = ~mine.any(axis=0)
    centre = float(np.median(levels[quiet])) if quiet.any() else float(np.median(series))
    return Standout(int(steps[0]), int(steps[-1]) + 1, mask, levels, centre, mine, True, in_turn)


def choose_by_loss(excess: FloatArray) -> BoolArray:
    """Choose the smallest set of ranks that holds the loss, and those as heavy as its last member.

    To leave one of these out would be chance.

    Args:
        excess: `(n_ranks,)` what each rank costs.
    """
    order = np.argsort(-excess)
    count = int(np.searchsorted(np.cumsum(excess[order]) / max(float(excess.sum()), 1e-9), LOSS_SHARE) + 1)
    return np.asarray((excess >= ALIKE * excess[order[min(count, len(order)) - 1]]) & (excess > 0))


def find_period(index: np.ndarray[Any, np.dtype[Any]], times_ns: np.ndarray[Any, np.dtype[Any]]) -> int | None:
    """Return the period of events that come back regularly (at least five, spacing within a quarter), in ns.

    Steps without a step between them are one event: what a step ends with lies in the first segment of the next.

    Args:
        index, times_ns: `(n,)` steps that hold an event, in order of time, and when they start.
    """
    begins = np.flatnonzero(np.diff(index, prepend=-2) > 1)
    if len(begins) < 5:
        return None
    spacing = np.diff(index[begins])
    middle = float(np.median(spacing))
    if middle < 2 or np.mean(np.abs(spacing - middle) <= max(1.0, middle / 4)) < 0.8:
        return None
    return int(np.median(np.diff(times_ns[begins])))
