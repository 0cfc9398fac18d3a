"""From claims to findings: replay without each, share the loss, grade it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dprankdiag.analysis.grid import StepGrid
from dprankdiag.analysis.observations import Observations, mark_next, order_steps
from dprankdiag.analysis.statistics import EVENT_SCORE, BoolArray, FloatArray, bootstrap_sum, robust_sd
from dprankdiag.catalog.causes import Cause
from dprankdiag.catalog.confidence import load_calibration
from dprankdiag.model.claims import Claim
from dprankdiag.model.diagnosis import Evidence, Finding, Interval, Severity, TimeWindow, When
from dprankdiag.pipelines.remedies import NOT_REPLAYED, UNTRUSTED, Gain, list_remedies
from dprankdiag.simulate.counterfactual import measure_hidden, measure_replay_error, replay_with, share_losses
from dprankdiag.units import NS_PER_S, format_ns, format_ratio

CRITICAL, WARNING = 0.10, 0.03
WINDOW_STEPS = 20
WINDOW_NS = 10 * NS_PER_S
NORMAL_90 = 1.645
MORE_WORK = 1.5
LEAST_LOSS = 0.005
"""A claim whose replay wins back less than this share of its own window is not shown; it stays in `unexplained`."""

BURST_STEPS, BURST_LOSS = 0.10, 0.80
REPLAY_ERROR_LIMIT = 0.03
MOST_CONFIDENT = 0.99
ASSUMED_CONFIDENCE = 0.9
PAIR_CONFIDENCE = 0.8


@dataclass(frozen=True, slots=True)
class StepLoss:
    """What a finding costs in each step.

    Attributes:
        lost_ns: `(n_steps,)`.
        spread_ns: `(n_steps,)` how far that may be off in all steps alike (a standard deviation).
        covered: `(n_steps,)` the steps that the claim covers.
    """

    lost_ns: FloatArray
    spread_ns: FloatArray
    covered: BoolArray


@dataclass(frozen=True, slots=True)
class Account:
    """The lost time of one lockstep group.

    Attributes:
        measured_ns, balanced_ns: `(n_steps,)` in order of time.
        total_ns, unexplained_ns, jitter_ns: sums over the steps; None where the replay cannot be trusted.
        hidden_ratio: share of the wall that systematic differences below every threshold could still cost.
        spike_ratio: share of the wall that single steps take beyond the usual, all claims undone.
        losses: one a finding, by step; None where it has no price.
    """

    findings: tuple[Finding, ...]
    measured_ns: FloatArray
    balanced_ns: FloatArray
    total_ns: int | None
    unexplained_ns: int | None
    jitter_ns: int | None
    interval: Interval | None
    replay_error: float | None
    hidden_ratio: float
    spike_ratio: float
    losses: tuple[StepLoss | None, ...] = ()


def price(seen: Observations, claims: Sequence[Claim], causes: Mapping[str, Cause]) -> Account:
    """Price the claims of a group and turn those that cost something into findings."""
    priced = [claim for claim in claims if claim.loss_known]
    shares = share_losses(seen.grids, priced)
    lost = [_in_time(seen, row) for row in shares.lost]
    measured, balanced = _in_time(seen, shares.measured), _in_time(seen, shares.balanced)
    noise = _measure_noise(seen, balanced)
    alone = shares.balanced if len(priced) == 1 else None
    more = [_more_at_most(seen, claim, alone) for claim in priced]
    event = np.zeros(seen.n_steps, bool)
    for claim in claims:
        if claim.when in ("burst", "periodic") or claim.who == "rotating":
            event |= claim.steps & (claim.steps.mean() < 1)
    event |= mark_next(seen, event)  # what a step ends with lies in the first segment of the next one
    error = measure_replay_error(seen.grids, [event[seen.grid_of == grid_id] for grid_id in range(len(seen.grids))])
    trusted = error is None or error <= REPLAY_ERROR_LIMIT
    findings: list[Finding] = []
    losses: list[StepLoss | None] = []
    kept = np.zeros(seen.n_steps)
    for claim, row, beyond in zip(priced, lost, more, strict=True):
        interval = _bound(row, measured, noise, [claim], beyond) if trusted else None
        finding = _make_finding(seen, claim, row, measured, interval, causes)
        if finding is not None:
            findings.append(finding)
            losses.append(StepLoss(row, np.where(claim.steps, claim.spread_ns, 0.0), claim.steps) if trusted else None)
            kept += row
    findings += [_unpriced(seen, claim, causes) for claim in claims if not claim.loss_known]
    losses += [None] * (len(findings) - len(losses))
    total = measured - balanced
    hidden = measure_hidden(seen.grids, [undo for claim in priced for undo in claim.undo])
    return Account(
        tuple(findings),
        measured,
        balanced,
        round(float(total.sum())) if trusted else None,
        round(float((total - kept).sum())) if trusted else None,
        round(max(float((shares.balanced - shares.even).sum()), 0.0)) if trusted else None,
        _bound(total, measured, noise, priced, sum(more)) if trusted else None,
        error,
        hidden / float(shares.measured.sum()),
        _spike_ratio(seen, measured, balanced),
        tuple(losses),
    )


def _in_time(seen: Observations, by_grid: FloatArray) -> FloatArray:
    """Reorder steps from grid order to order of time."""
    sizes = np.cumsum([len(grid.number) for grid in seen.grids])[:-1]
    return order_steps(seen, np.split(by_grid, sizes))


def _measure_noise(seen: Observations, balanced: FloatArray) -> FloatArray:
    """Return by how much steps differ from the course of their kind, `(n_steps,)`."""
    noise = np.zeros(len(balanced))
    for grid_id in range(len(seen.grids)):
        mine = np.flatnonzero(seen.grid_of == grid_id)
        place = mine - mine.mean()
        slope = float(place @ balanced[mine]) / max(float(place @ place), 1.0)
        noise[mine] = balanced[mine] - balanced[mine].mean() - slope * place
    return noise


def _make_finding(
    seen: Observations,
    claim: Claim,
    lost: FloatArray,
    measured: FloatArray,
    interval: Interval | None,
    causes: Mapping[str, Cause],
) -> Finding | None:
    """Make a finding of a claim that costs enough; without an interval its price is not trusted, and not told."""
    covered = np.flatnonzero(claim.steps)
    window = slice(int(covered[0]), int(covered[-1]) + 1)
    lost_ns = float(lost.sum())
    ratio = lost_ns / float(measured.sum())
    window_ratio = float(lost[window].sum()) / float(measured[window].sum())
    brief = window.stop - window.start < WINDOW_STEPS or claim.steps.mean() <= BURST_STEPS
    if (ratio if brief else window_ratio) < LEAST_LOSS or lost_ns <= 0:
        return None
    bare = _unpriced(seen, claim, causes)
    span = bare.window
    wide = window.stop - window.start >= WINDOW_STEPS or span.end_ns - span.start_ns >= WINDOW_NS
    trusted = interval is not None
    when = _refine_when(claim.when, lost)
    return replace(
        bare,
        when=when,
        severity=grade(window_ratio if wide else ratio),
        lost_ns=round(lost_ns) if trusted else None,
        lost_ratio=ratio if trusted else None,
        window_lost_ratio=window_ratio if trusted else None,
        interval=interval,
        recoverable_ns=round(lost_ns) if trusted else None,
        onset_ns=span.start_ns if when == "onset" else None,
        summary=_summarise(claim, lost, ratio, int(claim.steps.sum())),
        evidence=(*claim.evidence, *_prove_onset(seen, claim)),
        remedies=list_remedies(causes[claim.cause], Gain(ratio, interval, claim.basis) if interval else UNTRUSTED),
    )


def _bound(
    lost: FloatArray, measured: FloatArray, noise: FloatArray, claims: Sequence[Claim], more_ns: float
) -> Interval:
    """Bound what claims cost, as a share of the measured time.

    The faults lie in the recording as they are, so that only what the steps would have taken without them is uncertain:
    by chance from step to step, by what nobody knows of the ranks, and by what the replay leaves out.

    Args:
        lost, measured: `(n_steps,)`.
        noise: `(n_steps,)` by how much steps differ without the faults.
        more_ns: by how much more the claims cost at most (see `_more_at_most`).
    """
    wall, whole = float(measured.sum()), float(lost.sum())
    covered = np.any([claim.steps for claim in claims], axis=0) if claims else np.zeros(len(lost), bool)
    low, high = bootstrap_sum(noise[covered])
    unknown = sum((claim.spread_ns * int(claim.steps.sum())) ** 2 for claim in claims)
    model = load_calibration().model_error_ratio * whole
    beyond = NORMAL_90 * float(np.sqrt(unknown + model**2))
    high = float(np.hypot(high, beyond)) + more_ns
    return max(whole - float(np.hypot(low, beyond)), 0.0) / wall, min((whole + high) / wall, 1.0)


def _more_at_most(seen: Observations, claim: Claim, without: FloatArray | None) -> float:
    """Sum by how much more a claim costs if all is its that may be, ns.

    Args:
        without: `(n_steps,)` the steps with this claim alone undone, by grid; None if they were not replayed.
    """
    if not claim.most:
        return 0.0
    undone = replay_with(seen.grids, claim.undo) if without is None else without
    return max(float((undone - replay_with(seen.grids, claim.most)).sum()), 0.0)


def _unpriced(seen: Observations, claim: Claim, causes: Mapping[str, Cause]) -> Finding:
    """Say all that is known of a claim but what it costs."""
    covered = np.flatnonzero(claim.steps)
    span = TimeWindow(int(seen.start_ns[covered[0]]), int(seen.end_ns[covered[-1]]))
    return Finding(
        "",
        claim.cause,
        seen.engine,
        tuple(seen.ranks[position].rank for position in claim.ranks),
        claim.layers,
        claim.who,
        claim.when,
        causes[claim.cause].default_severity,
        None,
        None,
        None,
        None,
        claim.basis,
        None,
        _confidence(seen, claim),
        span,
        span.start_ns if claim.when == "onset" else None,
        claim.period_ns,
        claim.summary,
        claim.evidence,
        claim.alternatives,
        list_remedies(causes[claim.cause], NOT_REPLAYED),
    )


def grade(ratio: float) -> Severity:
    """Grade a share of the wall."""
    return "critical" if ratio >= CRITICAL else "warning" if ratio >= WARNING else "info"


def _refine_when(when: When, lost: FloatArray) -> When:
    """Call it a burst where a tenth of the steps holds four fifths of the loss."""
    if when == "periodic" or lost.sum() <= 0:
        return when
    few = int(np.ceil(BURST_STEPS * len(lost)))
    top = np.sort(lost)[::-1][:few].sum()
    return "burst" if top >= BURST_LOSS * lost.sum() else "steady" if when == "burst" else when


def _confidence(seen: Observations, claim: Claim) -> float:
    """Say how often such claims are right by the share of draws that agree, capped by how well the ranks are known."""
    most = MOST_CONFIDENT
    if any(seen.ranks[position].grade == "assumed" for position in claim.ranks):
        most = ASSUMED_CONFIDENCE
    if seen.n_ranks == 2:
        most = min(most, PAIR_CONFIDENCE)
    return min(load_calibration().confide(claim.support), most)


def _summarise(claim: Claim, lost: FloatArray, ratio: float, steps: int) -> str:
    each = float(lost[claim.steps].sum()) / max(steps, 1)
    bound = {"bound": "up to ", "lower bound": "at least "}.get(claim.basis, "")
    where = f"in each of {steps} steps" if steps > 1 else "in one step"
    return f"{claim.summary}; costs {bound}{format_ns(each)} {where}, {format_ratio(ratio)} of all time"


def _prove_onset(seen: Observations, claim: Claim) -> list[Evidence]:
    """Replay the claim's steps as if the fault had never been, and compare with the steps outside."""
    grid_id = 0
    inside = seen.select(grid_id, claim.steps)
    if claim.when != "onset" or min(inside.sum(), (~inside).sum()) < WINDOW_STEPS:
        return []
    without = replay_with(seen.grids, claim.proof or claim.undo)[: len(inside)]
    predicted = float(np.median(without[inside]))
    outside = float(np.median(seen.grids[grid_id].duration_ns[~inside]))
    error = abs(predicted - outside) / outside
    text = f"without it these steps would take {format_ns(predicted)}; the other steps take {format_ns(outside)}"
    return [Evidence("onset_error_ratio", error, "ratio", text, 0.0, int(inside.sum()))]


def _spike_ratio(seen: Observations, measured: FloatArray, balanced: FloatArray) -> float:
    """Sum what single steps take beyond the usual of their kind, as a share of the wall.

    Steps in which every rank has more to do (prompts among decode steps) are another kind of step by what they hold,
    whatever their kernels are called, and no sign of trouble. Their transfers are longer as well, for more rows.
    """
    common = order_steps(seen, [np.median(grid.segment, axis=2).sum(axis=1) for grid in seen.grids])
    by_rows = order_steps(seen, [np.median(_sum_by_rows(grid), axis=2).sum(axis=1) for grid in seen.grids])
    beyond = 0.0
    for grid_id in range(len(seen.grids)):
        mine = seen.grid_of == grid_id
        rest = balanced[mine] - common[mine]
        usual = float(np.median(balanced[mine]))
        height = rest - np.median(rest)
        far = height > max(EVENT_SCORE * float(robust_sd(rest)), 0.2 * usual)
        far &= common[mine] <= MORE_WORK * np.median(common[mine])
        far &= by_rows[mine] <= MORE_WORK * max(float(np.median(by_rows[mine])), 1.0)
        beyond += float(height[far].sum())
    return beyond / float(measured.sum())


def _sum_by_rows(grid: StepGrid) -> FloatArray:
    """Sum the work that grows with the rows of a step, `(n_steps, n_positions, n_ranks)`.

    Experts that read all their weights anyhow hardly grow, and hosts idle less the more their GPUs have to do.
    """
    return np.asarray(sum(grid.components[name] for name in ("attention", "probe", "other")))
