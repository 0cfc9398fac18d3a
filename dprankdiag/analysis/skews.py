"""Measure every kind of skew of a lockstep group once, for all classifiers to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dprankdiag.analysis.chips import measure_slowness
from dprankdiag.analysis.common_speed import find_common_slowdown
from dprankdiag.analysis.experts import ExpertSkew, measure_experts
from dprankdiag.analysis.observations import Observations, order_steps
from dprankdiag.analysis.speed import measure_speed, measure_worst_family
from dprankdiag.analysis.standouts import (
    FEWEST_STEPS,
    Standout,
    find_all,
    find_bursts,
    find_stalls,
    find_standouts,
    relative_to_step,
)
from dprankdiag.analysis.statistics import BoolArray, FloatArray
from dprankdiag.analysis.thresholds import BURST_LEAST, LEAST_WORK_SHARE, WORK_PRIOR_SD
from dprankdiag.analysis.transfers import TransferShift, find_transfer_shifts

HOST_PRIOR_SHARE = 0.05
"""Healthy hosts differ in their launch idle by some part of it."""

HOST_PAIR_SHARE = 0.2
"""Two hosts alone have no spread of their own, so that only what is far outside the habit of hosts is believed."""

LEAST_HOST_SHARE = 0.03

MAJORITY_APART = 5.0
"""Most hosts are late only if the earliest of them lies this many times above the latest of the few that are not."""

LEAST_EXIT_SHARE = 0.015

EP_FAMILIES = ("dispatch", "combine", "notify")


@dataclass(frozen=True)  # without slots, so that it can keep what it measured
class Skews:
    """What stands out, by kind; what no classifier asks for is not measured.

    Attributes:
        slowness: `(n_steps, n_ranks)` time of equal work over the median rank's (level of the run of steps).
        speed: ranks slow at equal work.
        speed_basis: "probes", "after the gather" (probes there alone: those before it follow the rows), "expert" (no
            probe: experts and attention slow alike), "one side" (what looks like equal work is slower before the gather
            or after it, not on both sides: no speed can be read) or "none".
    """

    seen: Observations
    slowness: FloatArray
    speed: tuple[Standout, ...]
    speed_basis: str

    @cached_property
    def attention(self) -> tuple[Standout, ...]:
        """Ranks with more attention work, speed taken out; ranks of one team stand out together."""
        return self._find_work("attention", self.seen.teams)

    @cached_property
    def other(self) -> tuple[Standout, ...]:
        """Ranks with more of the remaining work, speed taken out."""
        return self._find_work(rest_of_work(self.speed_basis), ())

    @cached_property
    def worst_family(self) -> FloatArray:
        """`(n_ranks,)` slowness of the probe family that suffers most, whole recording."""
        return measure_worst_family(self.seen)

    @cached_property
    def host(self) -> tuple[Standout, ...]:
        """Ranks that launch later than their peers over a run of steps."""
        found = _host_standouts(self._idle, self._step_ns, self._homes)
        return tuple(found or _late_majority(self._idle, self.seen.sums["wait"], self._step_ns))

    @cached_property
    def stalls(self) -> tuple[Standout, ...]:
        """Single steps in which ranks launched far too late."""
        return tuple(find_bursts(self._idle, LEAST_HOST_SHARE * self._step_ns, of_host=True))

    @cached_property
    def rest(self) -> tuple[Standout, ...]:
        """Ranks with more idle time that no launch explains."""
        if not self.seen.abilities.has_launches:
            return ()
        return tuple(_host_standouts(np.maximum(self.seen.sums["rest"], 0.0), self._step_ns, self._homes))

    @cached_property
    def exits(self) -> dict[str, tuple[Standout, ...]]:
        """By family class ("collective", "ep") the ranks that leave meetings late."""
        kinds = ("collective", "ep")
        return {kind: tuple(_exit_standouts(self.seen, kind, self._step_ns, self._homes)) for kind in kinds}

    @cached_property
    def experts(self) -> tuple[ExpertSkew, ...]:
        """Hot experts, by the steps they are hot in."""
        slow = measure_slowness(self.seen, "expert", self.slowness, self.speed, self.worst_family)
        return tuple(measure_experts(self.seen, slow, self._step_ns))

    @cached_property
    def transfer(self) -> tuple[TransferShift, ...]:
        """Steps with long transfers."""
        return tuple(find_transfer_shifts(self.seen, self._step_ns))

    @cached_property
    def common(self) -> tuple[BoolArray, float] | None:
        """Steps in which equal work took longer on every rank alike, with the ratio; None if never."""
        return find_common_slowdown(self.seen)

    @property
    def _step_ns(self) -> float:
        return max(self.seen.median_step_ns, 1.0)

    @property
    def _homes(self) -> list[BoolArray]:
        return list(self.seen.homes.values())

    @property
    def _idle(self) -> FloatArray:
        """Return the idle time in which hosts may be late; all of it where launches are not known."""
        if self.seen.abilities.has_launches:
            return np.asarray(self.seen.sums["host"] - self.seen.sums["inherited"])
        return np.maximum(self.seen.sums["rest"], 0.0)

    def _find_work(self, component: str, teams: Sequence[tuple[int, ...]]) -> tuple[Standout, ...]:
        bursts = [item for item in self.speed if item.is_burst]
        slow = measure_slowness(self.seen, component, self.slowness, bursts, self.worst_family)
        return tuple(_work_standouts(self.seen.sums[component] / slow, teams, self._step_ns, self._homes))


def measure_skews(seen: Observations) -> Skews:
    """Measure the speed of a group's ranks, and all other skews when they are asked for."""
    slowness, speed, basis = measure_speed(seen, max(seen.median_step_ns, 1.0))
    return Skews(seen, slowness, tuple(speed), basis)


def rest_of_work(speed_basis: str) -> str:
    """Name the component that holds work no other cause explains: probes that are none count as such work."""
    return "probe" if speed_basis in ("one side", "after the gather") else "other"


def _work_standouts(
    work: FloatArray, teams: Sequence[tuple[int, ...]], step_ns: float, homes: Sequence[BoolArray]
) -> list[Standout]:
    """Find ranks with more work; the members of a team carry the same requests and are judged as one."""
    typical = float(np.median(work))
    if typical <= 0:
        return []
    least = LEAST_WORK_SHARE * step_ns / typical
    if len(teams) < 2:
        return find_all(relative_to_step(work), WORK_PRIOR_SD, least, BURST_LEAST * least, halves=homes)
    # What one member alone shows is its own: requests lengthen the work of all.
    joined = np.stack([work[:, list(team)].min(axis=1) for team in teams], axis=1)
    halves = [np.array([home[list(team)].all() for team in teams]) for home in homes]
    found = find_all(relative_to_step(joined), WORK_PRIOR_SD, least, BURST_LEAST * least, halves=halves)
    return [_widen(item, teams, work.shape[1]) for item in found]


def _widen(standout: Standout, teams: Sequence[tuple[int, ...]], n_ranks: int) -> Standout:
    mask = np.zeros(n_ranks, bool)
    levels = np.ones(n_ranks)
    for position, team in enumerate(teams):
        mask[list(team)] = standout.mask[position]
        levels[list(team)] = standout.levels[position]
    marks = np.zeros((len(standout.marks), n_ranks), bool)
    for position, team in enumerate(teams):
        marks[:, list(team)] = standout.marks[:, position, None]
    return replace(standout, mask=mask, levels=levels, marks=marks)


def _host_standouts(idle: FloatArray, step_ns: float, homes: Sequence[BoolArray]) -> list[Standout]:
    """Find ranks that idle longer over runs of steps; single stalls are set to the rank's habit first."""
    habit = np.median(idle, axis=0)
    stalls = find_stalls(idle, LEAST_HOST_SHARE * step_ns)
    calm = np.where(stalls, habit[None, :], idle)
    share = HOST_PAIR_SHARE if idle.shape[1] == 2 else HOST_PRIOR_SHARE
    prior = share * float(np.median(habit)) + 0.002 * step_ns
    return find_standouts(calm, prior, LEAST_HOST_SHARE * step_ns, own_past=True, halves=homes)


def _late_majority(idle: FloatArray, wait: FloatArray, step_ns: float) -> list[Standout]:
    """Find most ranks launching late in a group of which two or more show that it can be done in time.

    Those few are believed only if they wait in their meetings about as long as the others idle before launches: a
    rank that is busy with something else idles little, too, but nobody waits for the idle ones then.

    Args:
        idle, wait: `(n_steps, n_ranks)`.
    """
    levels = np.median(idle, axis=0)
    early = _split_majority(levels)
    if early is None or len(idle) < FEWEST_STEPS:
        return []
    excess = float(np.median(levels[~early]) - np.median(levels[early]))
    waits = np.median(wait, axis=0)
    if excess < LEAST_HOST_SHARE * step_ns or np.median(waits[early]) - np.median(waits[~early]) < 0.5 * excess:
        return []
    latest = np.bincount(np.argmax(np.where(early, -1.0, idle), axis=1), minlength=len(levels))
    return [
        Standout(
            0,
            len(idle),
            ~early,
            levels,
            float(np.median(levels[early])),
            np.broadcast_to(~early, idle.shape),
            in_turn=bool(latest.max() <= len(idle) / 2),
            spread=float(np.std(levels[early], ddof=1)),
        )
    ]


def _split_majority(levels: FloatArray) -> BoolArray | None:
    """Mark the few ranks, at least two, that lie far below all others; None if there are none."""
    ordered = np.sort(levels)
    counts = np.arange(2, len(levels) // 2 + 1)
    if not len(counts):
        return None
    count = int(counts[np.argmax(ordered[counts] - ordered[counts - 1])])
    if ordered[count] < MAJORITY_APART * max(float(ordered[count - 1]), 1.0):
        return None
    return np.asarray(levels < ordered[count])


def _exit_standouts(seen: Observations, kind: str, step_ns: float, homes: Sequence[BoolArray]) -> list[Standout]:
    late = exit_sums(seen, kind)
    if late is None:
        return []
    calls = max(exit_calls(seen, kind), 1)
    transfer = float(np.median(seen.sums["transfer"]))
    least = LEAST_EXIT_SHARE * step_ns
    halves = homes or [np.isin(np.arange(seen.n_ranks), clock) for clock in seen.abilities.clocks]
    return find_all(late, 0.05 * transfer + 500.0 * np.sqrt(calls), least, BURST_LEAST * least, halves=halves)


def exit_sums(seen: Observations, kind: str) -> FloatArray | None:
    """Sum the exit lateness per step and rank over the meetings of a family class; None if there are none."""
    parts = []
    for grid in seen.grids:
        chosen = [leave.position for leave in grid.leaves if (leave.family in EP_FAMILIES) == (kind == "ep")]
        if not chosen:
            return None
        parts.append(grid.exit[:, chosen].sum(axis=1).astype(np.float64))
    return order_steps(seen, parts)


def exit_calls(seen: Observations, kind: str) -> int:
    """Count the meetings of a family class in a step of the commonest kind."""
    return sum((leave.family in EP_FAMILIES) == (kind == "ep") for leave in seen.grids[0].leaves)
