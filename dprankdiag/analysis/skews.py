"""Measure every kind of skew of a lockstep group once, for all classifiers to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.standouts import Standout, find_bursts, find_stalls, find_standouts, relative_to_step
from dprankdiag.analysis.statistics import BoolArray, FloatArray, find_changes, find_events, robust_sd

SPEED_PRIOR_SD = 0.008
"""Healthy chips of one model differ by 2–4 % end to end, a standard deviation near 1 % (DESIGN 2.1, rule 16)."""

WORK_PRIOR_SD = 0.03
HOST_PRIOR_SHARE = 0.05
"""Healthy hosts differ in their launch idle by some part of it."""

HOST_PAIR_SHARE = 0.2
"""Two hosts alone have no spread of their own, so that only what is far outside the habit of hosts is believed."""

LEAST_SPEED_SHARE = 0.02
LEAST_WORK_SHARE = 0.01
LEAST_HOST_SHARE = 0.03
LEAST_EXIT_SHARE = 0.015
THROUGHOUT = 0.4
"""Share of the mean slowness that every part of the step must show at least."""

EXPERT_LEAST = 0.05
EXPERT_SCORE = 5.5
FEWEST_EXPERT_STEPS = 8
BURST_LEAST = 3.0
"""A single step must exceed what is worth a claim over a run of steps this many times to count as an event."""

EP_FAMILIES = ("dispatch", "combine", "notify")


@dataclass(frozen=True, slots=True)
class ExpertSkew:
    """Systematic expert work over a set of steps.

    Attributes:
        steps: `(n_steps,)` the steps.
        is_burst: single steps, not a run.
        levels: one a grid, `(n_positions, n_ranks)` expert time over the median rank's, speed taken out; NaN where
            there is none.
        hot: one a grid, `(n_positions, n_ranks)` ranks beyond chance.
    """

    steps: BoolArray
    is_burst: bool
    levels: tuple[FloatArray, ...]
    hot: tuple[BoolArray, ...]


@dataclass(frozen=True, slots=True)
class TransferShift:
    """Steps in which transfers take longer for everyone than in the reference steps."""

    steps: BoolArray
    ratio: float
    is_burst: bool
    reference_steps: int


@dataclass(frozen=True, slots=True)
class Skews:
    """What stands out, by kind.

    Attributes:
        slowness: `(n_steps, n_ranks)` time of equal work over the median rank's (level of the run of steps).
        speed: ranks slow at equal work.
        speed_basis: "probes", "expert" (no probe: experts and attention slow alike), "one side" (what looks like equal
            work is slower before the gather or after it, not on both sides: no speed can be read) or "none".
        attention: ranks with more attention work, speed taken out; ranks of one team stand out together.
        worst_family: `(n_ranks,)` slowness of the probe family that suffers most, whole recording.
        other: ranks with more of the remaining work, speed taken out.
        host: ranks that launch later than their peers over a run of steps.
        stalls: single steps in which ranks launched far too late.
        rest: ranks with more idle time that no launch explains.
        exits: by family class ("collective", "ep") the ranks that leave meetings late.
        experts: hot experts, by the steps they are hot in.
        transfer: steps with long transfers.
        common: steps in which equal work took longer on every rank alike, with the ratio; None if never.
    """

    slowness: FloatArray
    speed: tuple[Standout, ...]
    speed_basis: str
    attention: tuple[Standout, ...]
    worst_family: FloatArray
    other: tuple[Standout, ...]
    host: tuple[Standout, ...]
    stalls: tuple[Standout, ...]
    rest: tuple[Standout, ...]
    exits: dict[str, tuple[Standout, ...]]
    experts: tuple[ExpertSkew, ...]
    transfer: tuple[TransferShift, ...]
    common: tuple[BoolArray, float] | None


def measure_skews(seen: Observations) -> Skews:
    """Measure all skews of a group."""
    step_ns = max(seen.median_step_ns, 1.0)
    slowness, speed, basis = _measure_speed(seen, step_ns)
    idle = seen.sums["host"] if seen.abilities.has_launches else np.maximum(seen.sums["rest"], 0.0)
    stalls = find_bursts(idle, LEAST_HOST_SHARE * step_ns, of_host=True)
    rest = np.maximum(seen.sums["rest"], 0.0)
    return Skews(
        slowness,
        tuple(speed),
        basis,
        tuple(_work_standouts(seen.sums["attention"] / slowness, seen.teams, step_ns)),
        _worst_family(seen),
        tuple(_work_standouts(seen.sums[rest_of_work(basis)] / slowness, (), step_ns)),
        tuple(_host_standouts(idle, step_ns)),
        tuple(stalls),
        tuple(_host_standouts(rest, step_ns)) if seen.abilities.has_launches else (),
        {kind: tuple(_exit_standouts(seen, kind, step_ns)) for kind in ("collective", "ep")},
        tuple(_measure_experts(seen, slowness, step_ns)),
        tuple(_transfer_shifts(seen, step_ns)),
        _common_slowdown(seen),
    )


def rest_of_work(speed_basis: str) -> str:
    """Name the component that holds work no other cause explains: probes that are none count as such work."""
    return "probe" if speed_basis == "one side" else "other"


def _measure_speed(seen: Observations, step_ns: float) -> tuple[FloatArray, list[Standout], str]:
    probe = seen.sums["probe"]
    even = np.ones_like(probe)
    if np.median(probe) > 0:
        ratio = relative_to_step(probe)
        # What a slow chip costs is all its work, not only the probes.
        work = float(np.median(sum(seen.sums[name] for name in ("attention", "expert", "probe", "other"))))
        least = LEAST_SPEED_SHARE * step_ns / max(work, 1.0)
        found = find_standouts(ratio, SPEED_PRIOR_SD, least, own_past=True)
        found += find_bursts(ratio, max(2 * least, 0.05), found)
        slow = [item for item in found if is_slow_throughout(seen, item)]
        if found and not slow:
            return even, [], "one side"
        return _level_matrix(ratio, slow), slow, "probes"
    expert, attention = seen.sums["expert"], seen.sums["attention"]
    if np.median(expert) > 0 and np.median(attention) > 0:
        ratio = relative_to_step(expert)
        also = find_standouts(relative_to_step(attention), WORK_PRIOR_SD, LEAST_WORK_SHARE)
        found = [
            standout
            for standout in find_standouts(ratio, WORK_PRIOR_SD, LEAST_WORK_SHARE)
            if any(np.array_equal(standout.mask, other.mask) for other in also)
        ]
        if found:
            return _level_matrix(ratio, found), found, "expert"
    return even, [], "none"


def _worst_family(seen: Observations) -> FloatArray:
    """Return, for each rank, the slowness of the worst probe family, of those that hold a twentieth of the time."""
    probes = seen.probes
    worst = np.ones(seen.n_ranks)
    total = float(probes.weight_ns.sum())
    for family in set(probes.family):
        rows = [row for row, name in enumerate(probes.family) if name == family]
        weight = probes.weight_ns[rows]
        if weight.sum() < 0.05 * total:
            continue
        ratio = probes.mean_ns[rows] / np.maximum(np.median(probes.mean_ns[rows], axis=1, keepdims=True), 1.0)
        worst = np.maximum(worst, np.average(ratio, axis=0, weights=np.maximum(weight, 1.0)))
    return worst


def is_slow_throughout(seen: Observations, standout: Standout) -> bool:
    """Tell whether equal work is slower before and after the gather (DESIGN 2.1, rule 8).

    A chip slows everything; work that only looks equal, because its launch shape is padded, follows the requests and
    is longer on one side alone. Where probes lie on one side only, the experts stand for the other.
    """
    excess = float(np.mean(standout.levels[standout.mask])) / standout.centre - 1.0
    ratios: list[float] = []
    for grid_id, grid in enumerate(seen.grids):
        rows = seen.select(grid_id, standout.steps)
        if not rows.any():
            continue
        # The collective that closes a segment tells its side even where no kernel has a name that is known.
        for channel in dict.fromkeys(grid.channel):
            positions = [k for k, name in enumerate(grid.channel) if name == channel]
            ratios += _side_ratio(grid, rows, positions, standout.mask)
    return bool(ratios) and min(ratios) >= 1.0 + THROUGHOUT * excess


def _side_ratio(grid: StepGrid, rows: BoolArray, positions: Sequence[int], mask: BoolArray) -> list[float]:
    """Return how much longer the work of one side takes: its probes, or its other work where that suffers more."""
    total = float(sum(grid.components[name][rows].sum() for name in ("probe", "expert", "other")))
    ratios = []
    for name in ("probe", "expert", "other"):
        times = grid.components[name][rows][:, positions].sum(axis=(0, 1)).astype(np.float64)
        rest = float(np.median(times[~mask])) if (~mask).any() else 0.0
        if rest > 0 and times.sum() >= 0.02 * total:
            ratios.append(float(np.mean(times[mask])) / rest)
    return [max(ratios)] if ratios else []


def _level_matrix(ratio: FloatArray, found: Sequence[Standout]) -> FloatArray:
    """Give every step the level of its run of steps, and events their own: other noise is no difference in speed."""
    runs = [item for item in found if not item.is_burst]
    edges = sorted({0, len(ratio), *(edge for item in runs for edge in (item.first, item.stop))})
    levels = np.empty_like(ratio)
    for first, stop in pairwise(edges):
        levels[first:stop] = np.median(ratio[first:stop], axis=0)
    for item in found:
        if item.is_burst:
            levels[item.marks] = ratio[item.marks]
    return np.maximum(levels, 1e-3)


def _work_standouts(work: FloatArray, teams: Sequence[tuple[int, ...]], step_ns: float) -> list[Standout]:
    """Find ranks with more work; the members of a team carry the same requests and are judged as one."""
    typical = float(np.median(work))
    if typical <= 0:
        return []
    least = LEAST_WORK_SHARE * step_ns / typical
    if len(teams) < 2:
        return _runs_and_bursts(relative_to_step(work), WORK_PRIOR_SD, least)
    joined = np.stack([work[:, list(team)].mean(axis=1) for team in teams], axis=1)
    found = _runs_and_bursts(relative_to_step(joined), WORK_PRIOR_SD, least)
    return [_widen(item, teams, work.shape[1]) for item in found]


def _runs_and_bursts(series: FloatArray, prior_sd: float, least: float) -> list[Standout]:
    runs = find_standouts(series, prior_sd, least)
    return [*runs, *find_bursts(series, BURST_LEAST * least, runs)]


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


def _host_standouts(idle: FloatArray, step_ns: float) -> list[Standout]:
    """Find ranks that idle longer over runs of steps; single stalls are set to the rank's habit first."""
    habit = np.median(idle, axis=0)
    stalls = find_stalls(idle, LEAST_HOST_SHARE * step_ns)
    calm = np.where(stalls, habit[None, :], idle)
    share = HOST_PAIR_SHARE if idle.shape[1] == 2 else HOST_PRIOR_SHARE
    prior = share * float(np.median(habit)) + 0.002 * step_ns
    return find_standouts(calm, prior, LEAST_HOST_SHARE * step_ns, own_past=True)


def _exit_standouts(seen: Observations, kind: str, step_ns: float) -> list[Standout]:
    late = exit_sums(seen, kind)
    if late is None:
        return []
    calls = max(exit_calls(seen, kind), 1)
    transfer = float(np.median(seen.sums["transfer"]))
    return _runs_and_bursts(late, 0.05 * transfer + 500.0 * np.sqrt(calls), LEAST_EXIT_SHARE * step_ns)


def exit_sums(seen: Observations, kind: str) -> FloatArray | None:
    """Sum the exit lateness per step and rank over the meetings of a family class; None if there are none."""
    parts = []
    for grid in seen.grids:
        chosen = [k for k, family in enumerate(grid.family) if (family in EP_FAMILIES) == (kind == "ep")]
        if not chosen:
            return None
        parts.append(grid.exit[:, chosen].sum(axis=1).astype(np.float64))
    return order_steps(seen, parts)


def exit_calls(seen: Observations, kind: str) -> int:
    """Count the meetings of a family class in a step of the commonest kind."""
    return sum((family in EP_FAMILIES) == (kind == "ep") for family in seen.grids[0].family)


def order_steps(seen: Observations, parts: Sequence[np.ndarray[Any, Any]]) -> FloatArray:
    """Put per-grid rows into the order of the recording's steps."""
    result = np.empty((seen.n_steps, *parts[0].shape[1:]))
    for grid_id, part in enumerate(parts):
        result[seen.grid_of == grid_id] = part
    return result


def _measure_experts(seen: Observations, slowness: FloatArray, step_ns: float) -> Iterator[ExpertSkew]:
    """Find the steps in which expert work is uneven, and who is hot in them.

    The imbalance of a step is what its slowest rank spends beyond the mean, over its layers; where that shifts, the
    steps are judged apart.
    """
    work = [
        grid.components["expert"] / slowness[seen.grid_of == grid_id][:, None, :]
        for grid_id, grid in enumerate(seen.grids)
    ]
    excess = order_steps(seen, [(part.max(axis=2) - part.mean(axis=2)).sum(axis=1) for part in work])
    if seen.n_steps < FEWEST_EXPERT_STEPS or not excess.any():
        return
    least = LEAST_WORK_SHARE * step_ns
    events = find_events(excess, BURST_LEAST * least)
    if events.mean() > 0.25:
        events[:] = False
    calm = np.where(events, np.median(excess), excess)
    for first, stop in pairwise([0, *find_changes(calm, least=least), seen.n_steps]):
        steps = np.zeros(seen.n_steps, bool)
        steps[first:stop] = True
        skew = _expert_skew(seen, work, steps & ~events, is_burst=False)
        if any(hot.any() for hot in skew.hot):
            yield skew
    if events.sum() >= 2:
        skew = _expert_skew(seen, work, events, is_burst=True)
        if any(hot.any() for hot in skew.hot):
            yield skew


def _expert_skew(seen: Observations, work: Sequence[FloatArray], steps: BoolArray, *, is_burst: bool) -> ExpertSkew:
    levels, hot = [], []
    for grid_id, part in enumerate(work):
        chosen = part[seen.select(grid_id, steps)]
        if len(chosen) < 2:
            levels.append(np.full(part.shape[1:], np.nan))
            hot.append(np.zeros(part.shape[1:], bool))
            continue
        middle = np.median(chosen, axis=2, keepdims=True)
        has_work = np.median(middle[:, :, 0], axis=0) > 0
        ratio = chosen / np.maximum(middle, 1.0)
        level = ratio.mean(axis=0)
        error = 1.5 * ratio.std(axis=0, ddof=1) / np.sqrt(len(chosen))
        hot.append((level - 1.0 > np.maximum(EXPERT_SCORE * error, EXPERT_LEAST)) & has_work[:, None])
        levels.append(np.where(has_work[:, None], level, np.nan))
    return ExpertSkew(steps, is_burst, tuple(levels), tuple(hot))


def _transfer_shifts(seen: Observations, step_ns: float) -> list[TransferShift]:
    """Find runs of steps, and single steps, with longer transfers than the rest of the same recording."""
    total = seen.sums["transfer"].mean(axis=1)
    if seen.n_steps < 16:
        return []
    usual = np.empty_like(total)
    for grid_id in range(len(seen.grids)):
        mine = seen.grid_of == grid_id
        usual[mine] = np.median(total[mine])
    ratio = total / np.maximum(usual, 1.0)
    least = 0.015 * step_ns / max(float(np.median(usual)), 1.0)
    shifts = []
    events = find_events(ratio, max(least * 2, 0.5))
    if events.mean() > 0.1:
        events[:] = False
    calm = np.where(events, 1.0, ratio)
    edges = [0, *find_changes(calm, least=least), len(ratio)]
    runs = [(a, b, float(np.median(calm[a:b]))) for a, b in pairwise(edges)]
    longest = [run for run in runs if run[1] - run[0] >= min(20, seen.n_steps // 3)]
    if len(runs) > 1 and longest:
        reference = min(longest, key=lambda run: run[2])
        noise = float(robust_sd(calm[reference[0] : reference[1]]))
        for first, stop, level in runs:
            if level - reference[2] > max(least, 3 * noise) and level / reference[2] >= 1.05:
                steps = np.zeros(seen.n_steps, bool)
                steps[first:stop] = True
                shifts.append(TransferShift(steps, level / reference[2], False, reference[1] - reference[0]))
    if events.sum() >= 2:
        shifts.append(TransferShift(events, float(np.median(ratio[events])), True, int((~events).sum())))
    return shifts


def _common_slowdown(seen: Observations) -> tuple[BoolArray, float] | None:
    """Find a run of steps in which equal work takes longer on every rank, against the rest of the recording."""
    probe = seen.sums["probe"]
    if np.median(probe) <= 0 or seen.n_steps < 40:
        return None
    usual = np.empty(seen.n_steps)
    for grid_id in range(len(seen.grids)):
        mine = seen.grid_of == grid_id
        usual[mine] = np.median(probe[mine])
    ratio = probe / np.maximum(usual, 1.0)[:, None]
    middle = np.median(ratio, axis=1)
    edges = [0, *find_changes(middle, shortest=20, least=0.03), seen.n_steps]
    runs = [(a, b, np.median(ratio[a:b], axis=0)) for a, b in pairwise(edges)]
    if len(runs) < 2:
        return None
    calm = min(runs, key=lambda run: float(np.median(run[2])))
    steps = np.zeros(seen.n_steps, bool)
    worst = 1.0
    for first, stop, level in runs:
        growth = level / calm[2]
        if growth.min() >= 1.03 and growth.min() - 1 >= 0.7 * (growth.max() - 1):
            steps[first:stop] = True
            worst = max(worst, float(np.median(growth)))
    return (steps, worst) if steps.any() else None
