"""Tell what kind of load makes a rank's attention heavier."""

from __future__ import annotations

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
EMPTY_KERNEL_NS = 4_000
"""Attention and KV writes of a layer without rows take about the two kernels' own start and end."""


@dataclass(frozen=True, slots=True)
class LoadSkew:
    """Ranks with more attention work, and what is known of why.

    Attributes:
        kind: "context", "requests", "prefill", "idle" or "unknown".
        row_ratio: requests of the heavier ranks over the rest's, from batch annotations, else from launch shapes;
            None if neither tells.
        held_ratio: KV tokens held, likewise, from batch annotations.
        post_ratio: expert work of the heavier ranks over the rest's; None if there is none.
    """

    standout: Standout
    kind: str
    row_ratio: float | None
    held_ratio: float | None
    post_ratio: float | None


SLOW_CHIP_MARGIN = 1.15
"""Attention reads memory: on a slow chip it may suffer this much more than the probe family that suffers most."""


def classify_loads(seen: Observations, skews: Skews) -> list[LoadSkew]:
    """Name the kind of every attention standout, as far as the recording carries it."""
    if skews.speed_basis == "expert":
        # Experts and attention are slow alike and nothing of equal work was seen: not load, not known.
        return []
    found = []
    for standout in skews.attention:
        mask = standout.mask
        if _is_slow_chip(seen, skews, standout):
            continue
        rows = _compare(_annotated(seen, standout, "requests"), mask)
        if rows is None:
            rows = _compare(seen.row_ratio, mask)
        held = _compare(_annotated(seen, standout, "held_tokens"), mask)
        kind = _kind(seen, standout, rows)
        found.append(LoadSkew(standout, kind, rows, held, _post_ratio(seen, skews, standout)))
    return found


def _is_slow_chip(seen: Observations, skews: Skews, standout: Standout) -> bool:
    """Tell whether heavier attention is what a slow chip does to it, beyond what the probes show on average.

    Of a team that shares its requests one slow chip is enough: the mean over the team hides the others.
    """
    teams = [team for team in seen.teams if standout.mask[list(team)].any()] or [
        tuple(np.flatnonzero(standout.mask).tolist())
    ]
    for slow in skews.speed:
        ill = standout.mask & slow.mask
        covered = all(ill[list(team)].any() for team in teams) if len(seen.teams) > 1 else ill[standout.mask].all()
        if covered and (slow.steps & standout.steps).any():
            share = float(ill[standout.mask].mean())
            ratio = 1.0 + (float(np.max(standout.levels[standout.mask])) - 1.0) / share
            speed = float(np.mean(slow.levels[ill])) / slow.centre
            return ratio * speed <= SLOW_CHIP_MARGIN * _worst_slowness(skews, ill, speed)
    return False


def _worst_slowness(skews: Skews, ill: BoolArray, speed: float) -> float:
    """Return how slow the worst family of equal work is where all of it is `speed` slower, not on average."""
    typical = float(skews.slowness[:, ill].mean())
    worst = float(skews.worst_family[ill].max())
    return max(1.0 + (worst - 1.0) * (speed - 1.0) / (typical - 1.0), worst) if typical > 1.0 else worst


def _annotated(seen: Observations, standout: Standout, field: str) -> FloatArray | None:
    """Average what the ranks' annotations say of the standout's steps; None if any rank's do not say."""
    covered = np.flatnonzero(standout.steps)
    means = []
    for rank, series in enumerate(seen.batches):
        mine = np.flatnonzero(standout.marks[:, rank]) if standout.mask[rank] else covered
        # An annotation begins with the launches of its step, so it lies before the step's end on the GPU.
        step = np.searchsorted(seen.end_ns, series.start_ns, side="right")
        values = getattr(series, field)[np.isin(step, mine)]
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
    attention = seen.sums["attention"][standout.steps]
    busy = float(np.median(attention[:, mask]))
    nothing = EMPTY_KERNEL_NS * max(_attention_calls(seen), 1)
    idle = (attention < min(NO_WORK * busy, nothing)).mean(axis=0) >= IDLE_SHARE
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


def _attention_calls(seen: Observations) -> int:
    """Count the positions of a step that hold attention."""
    attention = seen.grids[0].components["attention"]
    return int((np.median(attention.max(axis=2), axis=0) > 0).sum())


def _post_ratio(seen: Observations, skews: Skews, standout: Standout) -> float | None:
    expert = seen.sums["expert"][standout.steps] / skews.slowness[standout.steps]
    if np.median(expert) <= 0 or not (~standout.mask).any():
        return None
    level = np.median(expert, axis=0)
    return float(np.mean(level[standout.mask]) / max(float(np.median(level[~standout.mask])), 1.0))
