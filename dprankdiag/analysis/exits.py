"""Late exits from collectives: are they real, and what do they follow?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import EP_FAMILIES, Skews
from dprankdiag.analysis.standouts import Standout

FEWEST_MEETINGS = 8
FOLLOWS_TOKENS = 0.5
"""Least correlation of lateness with the rank's own expert work, over meetings, to call it a receiver queue."""


@dataclass(frozen=True, slots=True)
class LateExit:
    """Ranks that leave meetings late.

    Attributes:
        verdict: "link", "dispatch" or "late" (which of them cannot be told).
        operations: operations in which it occurs.
        lateness_ns: mean lateness of the named ranks a meeting.
        correlation: of lateness with the rank's own expert work; None if not measurable.
        own_clock_ns: the same lateness seen by the rank's own clock alone (its calls when it came last against the
            others' when they did); None if the ranks did not take turns.
    """

    standout: Standout
    verdict: str
    operations: tuple[str, ...]
    lateness_ns: float
    correlation: float | None
    own_clock_ns: float | None


def judge_exits(seen: Observations, skews: Skews) -> list[LateExit]:
    """Judge every exit standout: a link is late whatever the operation, a receiver queue where it receives."""
    collective, ep = skews.exits["collective"], skews.exits["ep"]
    found = []
    for standout in (*collective, *ep):
        if standout in ep and any(np.array_equal(standout.mask, other.mask) for other in collective):
            continue
        own_clock = _own_clock(seen, standout)
        by_operation = _by_operation(seen, standout)
        peak = max(by_operation.values())
        if own_clock is not None and own_clock < 0.5 * float(np.mean(list(by_operation.values()))):
            # Seen by its own clock the call is no longer than others': the clocks differ, not the exits.
            continue
        late = tuple(sorted(name for name, value in by_operation.items() if value > 0.33 * peak))
        correlation = _correlation(seen, standout)
        verdict = _verdict(seen, standout in ep, late, set(by_operation), correlation)
        found.append(LateExit(standout, verdict, late, peak, correlation, own_clock))
    return found


def _verdict(
    seen: Observations, only_ep: bool, late: tuple[str, ...], all_of: set[str], correlation: float | None
) -> str:
    follows = correlation is not None and correlation >= FOLLOWS_TOKENS
    mixed = any(family not in EP_FAMILIES for family in seen.grids[0].family)
    if only_ep and (mixed or follows or set(late) != all_of):
        return "dispatch"
    if not only_ep or set(late) == all_of:
        return "dispatch" if follows and only_ep else "link" if set(late) == all_of else "late"
    return "late"


def _by_operation(seen: Observations, standout: Standout) -> dict[str, float]:
    grid = seen.grids[0]
    rows = _rows(seen, standout)
    ranks = np.flatnonzero(standout.mask)
    late = {}
    for operation in set(grid.operation):
        positions = [k for k, name in enumerate(grid.operation) if name == operation]
        late[operation] = float(grid.exit[rows][:, positions][:, :, ranks].mean())
    return late


def _rows(seen: Observations, standout: Standout) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    steps = np.zeros(seen.n_steps, bool)
    steps[standout.first : standout.stop] = True
    return np.asarray(steps[seen.grid_of == 0])


def _correlation(seen: Observations, standout: Standout) -> float | None:
    """Correlate the lateness out of a meeting with the expert work that follows it, over steps and layers."""
    grid = seen.grids[0]
    expert = grid.components["expert"]
    following = [k for k in range(len(grid.family) - 1) if np.median(expert[:, k + 1]) > 0]
    if not following:
        return None
    rows = _rows(seen, standout)
    ranks = np.flatnonzero(standout.mask)
    late = grid.exit[rows][:, following][:, :, ranks].astype(np.float64).ravel()
    work = expert[rows][:, [k + 1 for k in following]][:, :, ranks].astype(np.float64).ravel()
    if late.std() == 0 or work.std() == 0 or len(late) < FEWEST_MEETINGS:
        return None
    return float(np.corrcoef(late, work)[0, 1])


def _own_clock(seen: Observations, standout: Standout) -> float | None:
    grid = seen.grids[0]
    rows = _rows(seen, standout)
    last = grid.wait[rows] == 0
    own = grid.own_transfer[rows].astype(np.float64)
    mine = last & standout.mask[None, None, :]
    others = last & ~standout.mask[None, None, :]
    if mine.sum() < FEWEST_MEETINGS or others.sum() < FEWEST_MEETINGS:
        return None
    differences = []
    for position in range(own.shape[1]):
        here, there = mine[:, position], others[:, position]
        if here.sum() >= 3 and there.sum() >= 3:
            differences.append(np.median(own[:, position][here]) - np.median(own[:, position][there]))
    return float(np.mean(differences)) if differences else None
