"""Tell what kind of load makes a rank's attention heavier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.analysis.standouts import Standout
from dprankdiag.analysis.statistics import BoolArray, FloatArray

ROWS_ALIKE = 0.10
"""Rows within a tenth of the peers' count as equal (DESIGN 3: load.context before load.requests)."""

IDLE_SHARE = 0.5
NO_WORK = 0.05
FEWEST_SURGES = 3
LOSS_SHARE = 0.8
TURNS_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class LoadSkew:
    """Ranks with more attention work, and what is known of why.

    Attributes:
        kind: "context", "requests", "prefill", "idle" or "unknown".
        row_ratio: requests of the heavier ranks over the rest's, from batch annotations, else from launch shapes;
            None if neither tells.
        held_ratio: KV tokens held, likewise, from batch annotations.
        surges: `(n_steps, n_ranks)` the steps and ranks meant, where single steps stand out and no run of steps; the
            standout then covers the whole recording.
        post_ratio: expert work of the heavier ranks over the rest's; None if there is none.
    """

    standout: Standout
    kind: str
    row_ratio: float | None
    held_ratio: float | None
    post_ratio: float | None
    surges: BoolArray | None = None


SLOW_CHIP_MARGIN = 1.15
"""Attention reads memory: on a slow chip it may suffer this much more than the probe family that suffers most."""


def classify_loads(seen: Observations, skews: Skews) -> list[LoadSkew]:
    """Name the kind of every attention standout, as far as the recording carries it."""
    if skews.speed_basis == "expert":
        # Experts and attention are slow alike and nothing of equal work was seen: not load, not known.
        return []
    found = []
    for standout, surges in (*((item, None) for item in skews.attention), *_surging(seen, skews)):
        mask = standout.mask
        if _is_slow_chip(skews, standout):
            continue
        rows = _compare(_annotated(seen, standout, "requests"), mask)
        if rows is None:
            rows = _compare(seen.row_ratio, mask)
        held = _compare(_annotated(seen, standout, "held_tokens"), mask)
        kind = _kind(seen, standout, rows)
        found.append(LoadSkew(standout, kind, rows, held, _post_ratio(seen, skews, standout), surges))
    return found


def _surging(seen: Observations, skews: Skews) -> Iterator[tuple[Standout, BoolArray]]:
    """Make one standout of all surges: the ranks by loss, their level in the steps in which they surge."""
    steps = skews.surges.any(axis=1)
    if steps.sum() < FEWEST_SURGES:
        return
    work = seen.sums["attention"] / skews.slowness
    base = np.median(work, axis=1)
    excess = np.where(skews.surges, work - base[:, None], 0.0).sum(axis=0)
    order = np.argsort(-excess)
    count = int(np.searchsorted(np.cumsum(excess[order]) / excess.sum(), LOSS_SHARE) + 1)
    mask = excess >= 0.7 * excess[order[count - 1]]
    if mask.sum() > 1 and steps.mean() < TURNS_SHARE:
        # Now and then, now this rank and now that one: noise, which is told as jitter.
        return
    ratio = np.where(skews.surges, work / np.maximum(base, 1.0)[:, None], np.nan)
    levels = np.ones(seen.n_ranks)
    for rank in np.flatnonzero(skews.surges.any(axis=0)):
        levels[rank] = float(np.nanmedian(ratio[:, rank]))
    support = 1.0 - 0.5 ** float(skews.surges.sum())
    yield Standout(0, seen.n_steps, mask, levels, 1.0, 0.0, support), skews.surges


def _is_slow_chip(skews: Skews, standout: Standout) -> bool:
    """Tell whether heavier attention is what a slow chip does to it, beyond what the probes show on average."""
    for slow in skews.speed:
        if slow.mask[standout.mask].all() and slow.first < standout.stop and slow.stop > standout.first:
            ratio = float(np.max(standout.levels[standout.mask]))
            speed = float(np.mean(slow.levels[standout.mask])) / slow.centre
            return ratio * speed <= SLOW_CHIP_MARGIN * float(skews.worst_family[standout.mask].max())
    return False


def _annotated(seen: Observations, standout: Standout, field: str) -> FloatArray | None:
    """Average what the ranks' annotations say of the standout's steps; None if any rank's do not say."""
    low, high = seen.start_ns[standout.first], seen.end_ns[standout.stop - 1]
    means = []
    for series in seen.batches:
        values = getattr(series, field)[(series.start_ns >= low) & (series.start_ns < high)]
        if not len(values) or np.isnan(values).any():
            return None
        means.append(float(values.mean()))
    return np.array(means) if means else None


def _compare(values: FloatArray | None, mask: BoolArray) -> float | None:
    if values is None or not (~mask).any():
        return None
    rest = float(np.median(values[~mask]))
    return float(np.mean(values[mask])) / rest if rest > 0 else None


def _kind(seen: Observations, standout: Standout, rows: float | None) -> str:
    mask = standout.mask
    attention = seen.sums["attention"][standout.first : standout.stop]
    busy = float(np.median(attention[:, mask]))
    idle = (attention < NO_WORK * busy).mean(axis=0) >= IDLE_SHARE
    if idle.any() and not idle[mask].any():
        return "idle"
    if (~mask).any() and seen.prefill_share[mask].min() > 2 * seen.prefill_share[~mask].max() + 0.01:
        return "prefill"
    if rows is None:
        return "unknown"
    if abs(rows - 1.0) <= ROWS_ALIKE:
        return "context"
    ratio = float(np.mean(standout.levels[mask])) / max(standout.centre, 1e-9)
    return "requests" if rows > 1 + ROWS_ALIKE and rows >= 1 + 0.5 * (ratio - 1) else "unknown"


def _post_ratio(seen: Observations, skews: Skews, standout: Standout) -> float | None:
    window = slice(standout.first, standout.stop)
    expert = seen.sums["expert"][window] / skews.slowness[window]
    if np.median(expert) <= 0 or not (~standout.mask).any():
        return None
    level = np.median(expert, axis=0)
    return float(np.mean(level[standout.mask]) / max(float(np.median(level[~standout.mask])), 1.0))
