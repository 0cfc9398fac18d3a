"""Tell ranks that own a larger share at every load from ranks that happen to be loaded more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dprankdiag.analysis.batches import tabulate_held_tokens, tabulate_prompts, tabulate_requests
from dprankdiag.analysis.loads import ROWS_ALIKE, LoadSkew, classify_loads
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.sides import Side, is_slow_beyond, projects_more
from dprankdiag.analysis.skews import Skews
from dprankdiag.analysis.standouts import FEWEST_STEPS, Standout, find_standouts
from dprankdiag.analysis.statistics import (
    MEDIAN_ERROR,
    PRIOR_WEIGHT,
    BoolArray,
    FloatArray,
    find_high,
    peer_median,
    robust_sd,
)
from dprankdiag.analysis.thresholds import LEAST_WORK_SHARE, WORK_PRIOR_SD

LEVELS_APART = 2.0
"""Total load must vary so much for a constant share to say anything (DESIGN 3)."""

LEVEL_STEPS = FEWEST_STEPS
"""Steps at the lower and at the higher load, each: as many as any level is read from."""

EVEN_STEPS = 10
"""Steps from which layers are compared with each other."""

TOLD = 0.9
"""Share of the decode steps in which annotations must tell every rank's load."""

OFTEN = 0.5
"""Share of the decode steps in which the ranks must stand out; in the others their share must be the same."""

UNLIKE = 3.0
"""Standard errors by which the share's change must differ from that of the other explanation."""

NEARER = 1.0 / 3.0
"""A change this small against that of the other explanation is none, as with alignments (DESIGN 2.1, rule 12)."""

OWN_SHARE_SD = 0.01
"""How much a healthy rank's share may change with the load: its chip, and lengths within the batch."""


@dataclass(frozen=True, slots=True)
class LoadLevels:
    """Steps at a lower and a higher total load.

    Attributes:
        low, high: `(n_steps,)`.
        ratio: total load at the higher over the lower.
    """

    low: BoolArray
    high: BoolArray
    ratio: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks with more work on one side of the gather than the others at every load, if that can be told.

    Attributes:
        side: where the work lies: "pre" or "post".
        mask: `(n_ranks,)` the ranks.
        steps: `(n_steps,)` where it was seen.
        low_ratio, high_ratio: their work over the others' at the lower and the higher load.
        load_ratio: total load at the higher over the lower.
        held_ratio, request_ratio: KV tokens and requests over the others'; None where nothing tells.
        doubt: why it cannot be told; "" if it can.
        lacks_rows: it is the rows of each step that nothing tells.
    """

    side: Side
    mask: BoolArray
    steps: BoolArray
    low_ratio: float
    high_ratio: float
    load_ratio: float
    held_ratio: float | None
    request_ratio: float | None
    doubt: str = ""
    lacks_rows: bool = False


def measure_layouts(seen: Observations, skews: Skews) -> Iterator[Layout]:
    """Find ranks that own more before the gather, and such that own more after it; load that explains it is none."""
    steps = find_decode(seen)
    if not steps.any():
        return
    attention = seen.sums["attention"] / skews.slowness
    told = set()
    for team, covered in _heavier_before(classify_loads(seen, skews)):
        mask = _single_out(attention, team, steps)
        found = _judge_before(seen, skews, attention, mask, covered & steps, steps)
        if found is not None:
            told.add(mask.tobytes())
            yield found
    for mask, covered in _heavier_than_mates(seen, attention):
        even = _even_teams(seen, attention, mask)
        found = _judge_before(seen, skews, even, mask, covered & steps, steps, shared=True)
        if found is not None and mask.tobytes() not in told:
            yield found
    expert = seen.sums["expert"] / skews.slowness
    hot = _heavier_after(seen, skews)
    if hot is not None and _is_throughout(_share(expert, hot[0]), hot[1] & steps, steps):
        found = _judge_after(seen, expert, hot[0], steps)
        if found is not None and not is_slow_beyond(seen, skews, hot[0], steps, "post"):
            yield found


def find_decode(seen: Observations) -> BoolArray:
    """Mark the steps without prompts as far as annotations tell, else kernels, `(n_steps,)`."""
    kinds = np.array([grid.kind not in ("mixed", "prefill", "meeting") for grid in seen.grids])
    steps = kinds[seen.grid_of]
    return steps & ~(tabulate_prompts(seen) > 0).any(axis=1)


def find_load_levels(total: FloatArray, steps: BoolArray) -> LoadLevels | None:
    """Split steps by their total load; None unless it varies twofold with enough steps on both sides.

    Args:
        total: `(n_steps,)` load of all ranks together.
        steps: `(n_steps,)` those to split.
    """
    known = steps & (total > 0)
    if known.sum() < 2 * LEVEL_STEPS:
        return None
    edges = np.quantile(total[known], [0.1, 0.9])
    low = known & (total <= np.sqrt(edges[0] * edges[1]))
    high = known & ~low
    if min(low.sum(), high.sum()) < LEVEL_STEPS:
        return None
    ratio = float(np.median(total[high]) / np.median(total[low]))
    return LoadLevels(low, high, ratio) if ratio >= LEVELS_APART else None


def _is_throughout(share: FloatArray, covered: BoolArray, steps: BoolArray) -> bool:
    """Tell whether the ranks stand out in most steps, and have the same share in those in which too little shows.

    Args:
        share: `(n_steps,)` logarithm of their work over the others'.
        covered, steps: `(n_steps,)` those in which they stand out, and all to be looked at.
    """
    rest = steps & ~covered
    if covered.sum() < OFTEN * steps.sum() or not covered.any():
        return False
    if not rest.any():
        return True
    level = float(np.median(share[covered]))
    noise = float(np.hypot(_error(share[covered]), _error(share[rest])))
    return abs(float(np.median(share[rest])) - level) <= max(UNLIKE * noise, NEARER * abs(level))


def _error(values: FloatArray) -> float:
    """Return the standard error of a median."""
    return MEDIAN_ERROR * float(robust_sd(values)) / float(np.sqrt(len(values)))


def _change_error(low: FloatArray, high: FloatArray) -> float:
    """Return the standard error of the difference of two medians; few samples on either side are joined to scatter."""
    rest = np.concatenate([low - np.median(low), high - np.median(high)])
    scatter = float(robust_sd(rest)) * np.sqrt(len(rest) / (len(rest) - 2))
    return MEDIAN_ERROR * float(scatter * np.sqrt(1 / len(low) + 1 / len(high)))


def _heavier_before(loads: list[LoadSkew]) -> Iterator[tuple[BoolArray, BoolArray]]:
    """Join the runs of steps in which the same ranks have more attention work: ranks, steps."""
    kinds = ("context", "requests", "unknown")
    runs = [load.standout for load in loads if load.kind in kinds]
    yield from _join_runs([run for run in runs if not run.is_burst and not run.in_turn])


def _join_runs(runs: Sequence[Standout]) -> Iterator[tuple[BoolArray, BoolArray]]:
    """Join the runs of steps of the same ranks: ranks, steps."""
    for mask in {run.mask.tobytes(): run.mask for run in runs if not run.mask.all()}.values():
        yield mask, np.any([run.steps for run in runs if np.array_equal(run.mask, mask)], axis=0)


def _heavier_than_mates(seen: Observations, work: FloatArray) -> Iterator[tuple[BoolArray, BoolArray]]:
    """Find ranks with more attention work than those they share requests with, which no load makes: ranks, steps."""
    mates = [list(team) for team in seen.teams if len(team) > 1]
    if not mates or np.median(work) <= 0:
        return
    ratio = np.ones_like(work)
    for team in mates:
        ratio[:, team] = work[:, team] / np.maximum(work[:, team].min(axis=1, keepdims=True), 1.0)
    least = LEAST_WORK_SHARE * seen.median_step_ns / float(np.median(work))
    yield from _join_runs(find_standouts(ratio, WORK_PRIOR_SD, least))


def _even_teams(seen: Observations, work: FloatArray, mask: BoolArray) -> FloatArray:
    """Return the work as if all teams had as much, by those members that do not stand out, `(n_steps, n_ranks)`."""
    usual = np.median(work[:, ~mask], axis=1)
    even = work.copy()
    for team in seen.teams:
        rest = [rank for rank in team if not mask[rank]]
        if rest:
            level = np.maximum(np.median(work[:, rest], axis=1), 1.0)
            even[:, list(team)] *= (usual / level)[:, None]
    return even


def _single_out(work: FloatArray, team: BoolArray, steps: BoolArray) -> BoolArray:
    """Mark those of the ranks that have more work themselves: requests are shared by a team, what is owned may not be.

    Args:
        work: `(n_steps, n_ranks)`.
        team: `(n_ranks,)` ranks that stand out together.
    """
    ratio = work[steps] / np.maximum(np.median(work[steps], axis=1, keepdims=True), 1.0)
    error = MEDIAN_ERROR * np.asarray(robust_sd(ratio, axis=0)) / np.sqrt(len(ratio))
    own = team & find_high(np.median(ratio, axis=0), error, WORK_PRIOR_SD, LEAST_WORK_SHARE).mask
    return own if own.any() else team


def _heavier_after(seen: Observations, skews: Skews) -> tuple[BoolArray, BoolArray] | None:
    """Find the ranks that have more expert work in most layers while no other rank has in any: ranks, steps."""
    runs = [skew for skew in skews.experts if not skew.is_burst]
    if not runs or skews.speed_basis == "expert":
        return None
    hot, layers = np.zeros(seen.n_ranks), 0
    for skew in runs:
        for level, mine in zip(skew.levels, skew.hot, strict=True):
            hot += mine.sum(axis=0)
            layers += int(np.isfinite(level).any(axis=1).sum())
    mask = 2 * hot >= layers
    if not mask.any() or mask.mean() > 0.5 or hot[~mask].any() or any((item.mask & mask).any() for item in skews.speed):
        return None
    return mask, np.any([skew.steps for skew in runs], axis=0)


def _judge_before(
    seen: Observations,
    skews: Skews,
    work: FloatArray,
    mask: BoolArray,
    covered: BoolArray,
    steps: BoolArray,
    *,
    shared: bool = False,
) -> Layout | None:
    """Judge ranks with more attention work.

    Args:
        covered, steps: `(n_steps,)` those in which they stand out, and all to be looked at.
        shared: they stand out against ranks that hold the same requests.
    """
    share = _share(work, mask)
    slow = any((item.mask & mask).any() for item in skews.speed)
    if slow or not _is_throughout(share, covered, steps) or is_slow_beyond(seen, skews, mask, steps, "pre"):
        return None
    told = [_told_in(table, steps) for table in (tabulate_held_tokens(seen), tabulate_requests(seen))]
    total = next((table.sum(axis=1) for table in told if table is not None), np.median(work[:, ~mask], axis=1))
    held, requests = (None if table is None or shared else _ratio(table, mask, steps) for table in told)
    requests = 1.0 if shared else requests
    mean = float(np.exp(np.median(share[steps])))
    describe = partial(Layout, "pre", mask, steps, held_ratio=held, request_ratio=requests)
    if held is not None and not _is_beyond(mean, max(held, requests or 1.0, 1.0)):
        return None
    levels = find_load_levels(total, steps)
    if levels is None:
        if held is None and not shared:
            return None
        doubt = "total load varies by less than 2 ×, so that a share that is always larger does not show"
        return describe(mean, mean, 1.0, doubt=doubt)
    if held is None and not projects_more(seen, skews, mask, (levels.low, levels.high), requests):
        return None
    low, high = (float(np.median(share[part])) for part in (levels.low, levels.high))
    constant = np.log((1.0 + np.expm1(low) / _growth(work, mask, levels)) / np.exp(low))
    found = describe(float(np.exp(low)), float(np.exp(high)), levels.ratio)
    even = work if shared or told[0] is None else _even_out(work, told[0])
    return _decide(found, even, levels, float(constant))


def _even_out(work: FloatArray, held: FloatArray) -> FloatArray:
    """Return the work of every rank as if all held as many tokens, `(n_steps, n_ranks)`."""
    return np.asarray(work * held.mean(axis=1, keepdims=True) / np.where(held > 0, held, np.inf))


def _judge_after(seen: Observations, work: FloatArray, mask: BoolArray, steps: BoolArray) -> Layout | None:
    requests = _told_in(tabulate_requests(seen), steps)
    share = _share(work, mask)
    mean = float(np.exp(np.median(share[steps])))
    describe = partial(Layout, "post", mask, steps, held_ratio=None)
    levels = None if requests is None else find_load_levels(requests.sum(axis=1), steps)
    if levels is None or requests is None:
        lacks = "rows of a step are not told" if requests is None else "total load varies by less than 2 ×"
        doubt = f"the same ranks' experts take longer in every layer, but {lacks}: hot experts may do that as well"
        unsaid = requests is None
        return describe(mean, mean, 1.0, request_ratio=None, doubt=doubt, lacks_rows=unsaid)
    low, high = (float(np.median(share[part])) for part in (levels.low, levels.high))
    hot = _heat(work, mask, levels, float(np.exp(low)))
    ratio = _ratio(requests, mask, steps)
    found = describe(float(np.exp(low)), float(np.exp(high)), levels.ratio, request_ratio=ratio)
    return _decide(found, work, levels, hot) if _is_even(seen, mask, steps) else None


def _told_in(table: FloatArray, steps: BoolArray) -> FloatArray | None:
    """Keep what is told for nearly all of the steps and ranks, gaps taken as 0."""
    if np.isfinite(table[steps]).all(axis=1).mean() < TOLD:
        return None
    return np.where(np.isfinite(table).all(axis=1, keepdims=True), table, 0.0)


def _share(work: FloatArray, mask: BoolArray) -> FloatArray:
    """Return the logarithm of the ranks' work over the median of the others', `(n_steps,)`."""
    rest = np.maximum(np.median(work[:, ~mask], axis=1), 1.0)
    return np.asarray(np.log(np.maximum(work[:, mask].mean(axis=1), 1.0) / rest))


def _ratio(table: FloatArray, mask: BoolArray, steps: BoolArray) -> float:
    """Return what the ranks hold over the median of the others, step by step; the median step's."""
    own, rest = table[steps][:, mask].mean(axis=1), np.median(table[steps][:, ~mask], axis=1)
    return float(np.median(own / np.maximum(rest, 1e-9)))


def _is_beyond(work: float, load: float) -> bool:
    """Tell whether load leaves more than half of the excess work unexplained."""
    return load <= 1.0 + ROWS_ALIKE and 2 * (load - 1.0) < work - 1.0


def _growth(work: FloatArray, mask: BoolArray, levels: LoadLevels) -> float:
    low, high = (float(np.median(work[part][:, ~mask])) for part in (levels.low, levels.high))
    return max(high / max(low, 1.0), 1.0)


def _heat(work: FloatArray, mask: BoolArray, levels: LoadLevels, low_ratio: float) -> float:
    """Predict how the logarithm of the ranks' share changes with the load if only more tokens made it larger.

    Expert time is a line in tokens, with the reading of the weights as its start. What a rank has beyond that start it
    has by tokens, and those grow with the load.
    """
    growth = _growth(work, mask, levels)
    start = float(np.clip((levels.ratio - growth) / (levels.ratio - 1.0), 0.0, 1.0))
    return float(np.log((start + (low_ratio - start) * levels.ratio) / growth / low_ratio))


def _is_even(seen: Observations, mask: BoolArray, steps: BoolArray) -> bool:
    """Tell whether the ranks' share differs no more from layer to layer than the others' shares do."""
    for grid_id, grid in enumerate(seen.grids):
        rows = seen.select(grid_id, steps)
        work = grid.components["expert"][rows].astype(np.float64)
        has_work = np.median(work, axis=(0, 2)) > 0 if len(work) else np.zeros(0, bool)
        if rows.sum() < EVEN_STEPS or has_work.sum() < 2:
            continue
        work = work[:, has_work]
        work = np.maximum(work, 1.0)
        rest = work[:, :, ~mask]
        own = np.log(work[:, :, mask] / np.median(rest, axis=2, keepdims=True))
        peers = np.log(rest / peer_median(rest)) if rest.shape[2] > 1 else own
        error = MEDIAN_ERROR * float(np.median(robust_sd(peers, axis=0))) / np.sqrt(len(peers))
        usual = float(np.sqrt(np.median(peers, axis=0).var(axis=0, ddof=1).mean()))
        if np.median(own, axis=0).std(axis=0, ddof=1).max() > UNLIKE * np.hypot(usual, error):
            return False
    return True


def _decide(found: Layout, work: FloatArray, levels: LoadLevels, other: float) -> Layout | None:
    """Keep the layout if the share is constant, and would not be by the other explanation.

    Args:
        other: change of the share's logarithm from the lower to the higher load by that explanation.
    """
    share = _share(work, found.mask)
    low, high = share[levels.low], share[levels.high]
    noise = float(np.hypot(_change_error(low, high), _usual_change(work, found.mask, levels)))
    change = float(np.median(high) - np.median(low))
    holds = abs(change) <= max(UNLIKE * noise, NEARER * abs(other)) and abs(change - other) >= UNLIKE * noise
    return found if holds else None


def _usual_change(work: FloatArray, mask: BoolArray, levels: LoadLevels) -> float:
    """Estimate by how much the share of a rank changes with the load without any cause, from the other ranks."""
    rest = np.maximum(work[:, ~mask], 1.0)
    if rest.shape[1] < 2:
        return OWN_SHARE_SD
    share = np.log(rest / peer_median(rest))
    change = np.median(share[levels.high], axis=0) - np.median(share[levels.low], axis=0)
    n = len(change)
    squares = float(np.sum((change - change.mean()) ** 2))
    return float(np.sqrt((PRIOR_WEIGHT * OWN_SHARE_SD**2 + squares) / (PRIOR_WEIGHT + n - 1)))
