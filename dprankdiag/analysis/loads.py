"""Tell what kind of load makes a rank's attention heavier."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.analysis.standouts import Standout

ROWS_ALIKE = 0.10
"""Rows within a tenth of the peers' count as equal (DESIGN 3: load.context before load.requests)."""

IDLE_SHARE = 0.5
NO_WORK = 0.05


@dataclass(frozen=True, slots=True)
class LoadSkew:
    """Ranks with more attention work, and what is known of why.

    Attributes:
        kind: "context", "requests", "prefill", "idle" or "unknown".
        row_ratio: rows of the heavier ranks over the rest's; None if no launch shape tells.
        post_ratio: expert work of the heavier ranks over the rest's; None if there is none.
    """

    standout: Standout
    kind: str
    row_ratio: float | None
    post_ratio: float | None


def classify_loads(seen: Observations, skews: Skews) -> list[LoadSkew]:
    """Name the kind of every attention standout, as far as the recording carries it."""
    if skews.speed_basis == "expert":
        # Experts and attention are slow alike and nothing of equal work was seen: not load, not known.
        return []
    found = []
    for standout in skews.attention:
        mask = standout.mask
        rows = None
        if seen.row_ratio is not None and (~mask).any():
            rows = float(np.mean(seen.row_ratio[mask]) / max(float(np.median(seen.row_ratio[~mask])), 1e-9))
        found.append(LoadSkew(standout, _kind(seen, standout, rows), rows, _post_ratio(seen, skews, standout)))
    return found


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
