"""Late exits from collectives: are they real, and what do they follow?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dprankdiag.analysis.grid import Leave, StepGrid
from dprankdiag.analysis.observations import IntArray, Observations
from dprankdiag.analysis.skews import EP_FAMILIES, Skews
from dprankdiag.analysis.standouts import Standout
from dprankdiag.analysis.statistics import BoolArray, FloatArray, robust_sd

FEWEST_MEETINGS = 8
CLEARLY = 0.8
"""A reading of the clocks is believed if transfers scatter at most this much of what they do under the other."""

FOLLOWS_TOKENS = 4.0
"""Standard errors by which lateness must follow the rank's own expert work to call it a receiver queue.

So much has a chance of 3e-5, of pairs that have nothing to do with each other.
"""


@dataclass(frozen=True, slots=True)
class LateExit:
    """Ranks that leave meetings late.

    Attributes:
        verdict: "link", "dispatch" or "late" (which of them cannot be told).
        operations: operations in which it occurs.
        lateness_ns: mean lateness of the named ranks a meeting.
        correlation: of lateness with the rank's own expert work, layer by layer within a step; None if not measurable.
    """

    standout: Standout
    verdict: str
    operations: tuple[str, ...]
    lateness_ns: float
    correlation: float | None


def judge_exits(seen: Observations, skews: Skews) -> list[LateExit]:
    """Judge every exit standout: a link is late whatever the operation, a receiver queue where it receives."""
    collective, ep = skews.exits["collective"], skews.exits["ep"]
    found = []
    for only_ep, standout in (*((False, item) for item in collective), *((True, item) for item in ep)):
        if only_ep and any(np.array_equal(standout.mask, other.mask) for other in collective):
            continue
        standout = _without_clocks(seen, standout)
        if not standout.mask.any():
            continue
        by_operation = _by_operation(seen, standout)
        peak = max(by_operation.values())
        late = tuple(sorted(name for name, value in by_operation.items() if value > 0.33 * peak))
        correlation, pairs = _correlation(seen, standout)
        follows = correlation is not None and correlation * np.sqrt(pairs) >= FOLLOWS_TOKENS
        verdict = _verdict(seen, set(late), follows=follows)
        found.append(LateExit(standout, verdict, late, peak, correlation))
    return found


def _without_clocks(seen: Observations, standout: Standout) -> Standout:
    """Leave out the ranks whose ends are late because their clock is ahead, or may be."""
    if standout.is_burst:
        # A clock does not run ahead in single steps.
        return standout
    mask = standout.mask.copy()
    together = mask.sum() > 1 and _tell_clock_from_exit(seen, standout) == "exit"
    for rank in np.flatnonzero(standout.mask):
        alone = replace(standout, mask=np.arange(len(mask)) == rank)
        reading = _tell_clock_from_exit(seen, alone)
        late_ns = max(_by_operation(seen, alone).values())
        # Of several that are late together each may come last, so that one alone changes little.
        sure = reading == "exit" or (reading == "open" and together)
        mask[rank] = sure or (reading == "open" and late_ns > seen.abilities.clock_bound_ns)
    return replace(standout, mask=mask, marks=standout.marks & mask)


def _verdict(seen: Observations, late: set[str], *, follows: bool) -> str:
    """Tell a link, late in whatever it does, from a receiver queue, late where it receives.

    Where ranks meet in nothing but dispatch and combine, both would be late in all of them: only lateness that follows
    the tokens tells, or an exchange of counts.
    """
    leaves = seen.grids[0].leaves
    exchange = {leave.operation for leave in leaves if leave.family in EP_FAMILIES}
    everything = {leave.operation for leave in leaves}
    if exchange == everything:
        if follows or late != everything:
            return "dispatch"
        # Counts are sent before any token is: who is late with them too is late whatever comes.
        return "link" if any(leave.family == "notify" for leave in leaves) else "late"
    if late == everything:
        return "link"
    return "dispatch" if late <= exchange else "late"


def _by_operation(seen: Observations, standout: Standout) -> dict[str, float]:
    grid = _observed_steps(seen, standout)
    ranks = np.flatnonzero(standout.mask)
    late = {}
    for operation in {leave.operation for leave in grid.leaves}:
        mine = [leave for leave in grid.leaves if leave.operation == operation]
        own = [grid.exit[:, leave.position][:, ranks].mean() for leave in mine]
        whole = [_late_as_a_group(grid, leave, standout.mask) for leave in mine]
        late[operation] = float(np.mean(own) + np.mean(whole))
    return late


def _late_as_a_group(grid: StepGrid, leave: Leave, mask: BoolArray) -> float:
    """Return how much longer than those of other groups the transfers last in groups that are late as a whole, ns.

    There nobody leaves later than the others; each group tells it on its own clocks. Mean over all ranks of the mask.
    """
    whole, others = part_groups(grid, leave, mask)
    if not whole.any() or not others.any():
        return 0.0
    lasts = np.median(grid.transfer[:, leave.call], axis=0)
    excess = lasts[whole] - np.median(lasts[others])
    return float(np.maximum(excess, 0.0).sum() / mask.sum())


def part_groups(grid: StepGrid, leave: Leave, mask: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Mark the ranks in groups of a meeting that lie wholly in a mask, and those in groups without any rank of it."""
    group = grid.group[leave.call]
    if leave.call < 0:
        return np.zeros_like(mask), np.zeros_like(mask)
    whole = np.array([bool(mask[group == own].all()) for own in group])
    none = np.array([not mask[group == own].any() for own in group])
    return whole, none


def _observed_steps(seen: Observations, standout: Standout) -> StepGrid:
    """Return the standout's steps of the kind that most of them are of."""
    counts = [int(seen.select(grid_id, standout.steps).sum()) for grid_id in range(len(seen.grids))]
    grid_id = int(np.argmax(counts))
    return seen.grids[grid_id].take(np.flatnonzero(seen.select(grid_id, standout.steps)))


def _correlation(seen: Observations, standout: Standout) -> tuple[float | None, int]:
    """Correlate the lateness out of a meeting with the expert work that follows it, over steps and layers.

    What a layer has in all steps is left out on both sides, and so is what a step has in all layers: tokens come anew
    in each, while load that grows makes experts longer and transfers later for everybody.

    Returns:
        The correlation, None where nothing shows it, and the number of independent pairs behind it.
    """
    grid = _observed_steps(seen, standout)
    expert = grid.components["expert"]
    places = [leave.position for leave in grid.leaves if leave.position + 1 < len(grid.family)]
    following = [k for k in places if np.median(expert[:, k + 1]) > 0]
    ranks = np.flatnonzero(standout.mask)
    pairs = max(len(expert) - 1, 0) * max(len(following) - 1, 0) * len(ranks)
    if pairs < FEWEST_MEETINGS:
        return None, pairs
    late = _center(grid.exit[:, following][:, :, ranks])
    work = _center(expert[:, [k + 1 for k in following]][:, :, ranks])
    if not late.any() or not work.any():
        return None, pairs
    return float((late * work).sum() / np.sqrt((late**2).sum() * (work**2).sum())), pairs


def _center(values: IntArray) -> FloatArray:
    """Take each rank's means over steps and over positions out, `(n_steps, n_positions, n_ranks)`."""
    centred = values - values.mean(axis=0, keepdims=True)
    return np.asarray(centred - centred.mean(axis=1, keepdims=True))


def _tell_clock_from_exit(seen: Observations, standout: Standout) -> str:
    """Tell whether late ends are late exits or a clock that runs ahead.

    A rank that really leaves late comes late to the next meeting and its own pace sets the pace of the group; if only
    its clock is ahead, the group keeps to whoever is last once its times are set back. The reading under which
    transfers scatter less is the right one.

    Returns:
        "exit", "clock" or "open".
    """
    grid = _observed_steps(seen, standout)
    leaves = [leave for leave in grid.leaves if leave.call >= 0]
    if not leaves:
        return "open"
    offset = np.where(standout.mask, np.median(grid.exit[:, [leave.position for leave in leaves]], axis=(0, 1)), 0.0)
    receipts = [leave for leave in leaves if leave.position != leave.call]
    told = _read_receipts(grid, receipts, standout, offset)
    return told or _compare_scatter(grid, [leave for leave in leaves if leave not in receipts], standout, offset)


def _read_receipts(grid: StepGrid, receipts: Sequence[Leave], standout: Standout, offset: FloatArray) -> str | None:
    """Tell by receipts that begin when all data have come: how long such a one lasts is told by its rank's own clock.

    Args:
        offset: `(n_ranks,)` how late the ranks leave, or how far their clocks are ahead.

    Returns:
        "exit" or "clock"; None where too few receipts find their data there.
    """
    reach, lasting = grid.reach_ns, []
    for leave in receipts:
        come = reach[:, leave.call].max(axis=1, keepdims=True) + grid.transfer[:, leave.call]
        lasts = (grid.wait + grid.own_transfer)[:, leave.position]
        lasting.append(np.where(reach[:, leave.position] - offset >= come, lasts, np.nan))
    if not lasting:
        return None
    own = np.concatenate([values[:, standout.mask].ravel() for values in lasting])
    rest = np.concatenate([values[:, ~standout.mask].ravel() for values in lasting])
    own, rest = own[~np.isnan(own)], rest[~np.isnan(rest)]
    if min(len(own), len(rest)) < FEWEST_MEETINGS:
        return None
    return "exit" if np.median(own) - np.median(rest) >= 0.5 * offset[standout.mask].mean() else "clock"


def _compare_scatter(grid: StepGrid, leaves: Sequence[Leave], standout: Standout, offset: FloatArray) -> str:
    """Tell under which reading of the ends transfers scatter less, in the groups that some of the ranks are members of.

    Args:
        offset: as `_read_receipts`.
    """
    as_exit, as_clock = 0.0, 0.0
    for leave in leaves:
        behind = grid.behind_ns[:, leave.call]
        for group in np.unique(grid.group[leave.call]):
            members = grid.group[leave.call] == group
            if standout.mask[members].all() or not standout.mask[members].any():
                # A shift of all members, or of none, changes nothing among them.
                continue
            own = behind[:, members]
            transfer = grid.transfer[:, leave.call, int(np.argmax(members))].astype(np.float64)
            as_exit += float(robust_sd(transfer))
            as_clock += float(robust_sd(transfer - (own - offset[members]).max(axis=1) + own.max(axis=1)))
    if as_exit < CLEARLY * as_clock:
        return "exit"
    return "clock" if as_clock < CLEARLY * as_exit else "open"
