"""Hot experts: some ranks get more of the routed tokens, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.experts import ExpertSkew
from dprankdiag.analysis.ledger_view import LedgerView
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import Skews
from dprankdiag.analysis.standouts import choose_by_loss, find_period
from dprankdiag.analysis.statistics import BoolArray, FloatArray
from dprankdiag.analysis.uneven import find_high
from dprankdiag.classifiers.base import ONSET_STEPS, members, name_numbers, show_culprits, times, unseen_member
from dprankdiag.classifiers.ledgers import sureness, who_of
from dprankdiag.model.claims import Claim, Undo, UntimedClaim
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence, When, Who


class StructuralExpert:
    """Hot experts: some ranks get more of the routed tokens, layer by layer.

    *What you see*: the expert GEMMs of a layer are longer on one rank than on the others, in the same layer of
    every step; in other layers it may be another rank. The others wait in the collective after the experts.

    *Why it happens*: routing is uneven and the placement of experts does not make up for it: popular experts share
    a rank, there are too few copies of them, or dummy tokens all go to one rank's experts.

    *How we tell it apart*: the excess sits after the gather, in expert kernels only, at the same layers throughout;
    kernels of equal work and attention are not longer. A layer counts if its mean ratio over the steps lies beyond
    both its own error and five per cent. In a ledger: tokens routed to the experts of each GPU, layer by layer, where
    the engine counts them; the sum over the layers hides hot experts that differ from layer to layer, so each layer is
    judged.

    *What to do*: turn on or refresh expert placement (EPLB), add redundant experts for the hot layers, use a finer
    expert parallelism; check where padding tokens are routed.
    """

    cause = "structural.expert"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim the layers whose expert work is uneven, by the steps in which it is."""
        if np.median(seen.sums["expert"]) <= 0:
            yield Abstention(
                self.cause,
                "no expert work was seen after the gather",
                ("expert kernels",),
                "dprankdiag kernels TRACE shows unknown names; name them with --patterns",
            )
            return
        if skews.speed_basis == "expert":
            return
        if skews.experts and (reason := unseen_member(seen)) is not None:
            yield Abstention(self.cause, reason)
            return
        for skew in skews.experts:
            yield _claim(seen, skew, self.cause)

    def judge_ledger(self, seen: LedgerView) -> Iterator[UntimedClaim | Abstention]:
        """Claim GPUs whose experts get more tokens than the others' in most layers, or layers with one each."""
        if seen.experts is None:
            return
        highs = [find_high(layer, layer / TOKENS_ALIKE) for layer in seen.experts]
        hot = [number for number, high in enumerate(highs) if high is not None]
        if 2 * len(hot) < len(highs):
            return
        often = np.sum([high.mask for high in highs if high is not None], axis=0) * 2 >= len(hot)
        yield _claim_counts(self.cause, seen, np.asarray(often), hot)


TOKENS_ALIKE = 64.0
"""Tokens of one sequence go to the same experts more often than not; so many are taken to count as one."""


def _claim_counts(cause: str, seen: LedgerView, often: BoolArray, hot: list[int]) -> UntimedClaim:
    assert seen.experts is not None
    layers = seen.experts[hot]
    worst = float((layers.max(axis=1) / layers.mean(axis=1)).mean())
    balance = float((seen.experts.mean(axis=1) / np.maximum(seen.experts.max(axis=1), 1.0)).mean())
    ranks = tuple(int(gpu) for gpu in np.flatnonzero(often))
    named = f"EP {name_numbers(ranks)}" if ranks else "another GPU in each layer"
    share = f"{len(hot)} of {len(seen.experts)} layers"
    text = f"the busiest GPU's experts get {times(worst)} the mean of the tokens in {share}"
    return UntimedClaim(
        cause,
        ranks,
        who_of(often) if ranks else "rotating",
        f"{named}: {text}",
        (
            Evidence("expert_token_ratio", worst, "ratio", text, 1.0, len(hot)),
            Evidence("balancedness_ratio", balance, "ratio", f"balancedness {balance:.3f} over all layers", 1.0),
        ),
        (Alternative("load.unknown", "rank-wise work before the gather that is uneven too"),),
        sureness(10.0),
        seen.window.span_ns,
        layers=tuple(hot),
        work_ratio=worst,
    )


def _claim(seen: Observations, skew: ExpertSkew, cause: str) -> Claim:
    ranks, who = _smallest_set(_excess_by_rank(seen, skew))
    n = int(skew.steps.sum())
    period = find_period(np.flatnonzero(skew.steps), seen.start_ns[skew.steps]) if skew.is_burst else None
    worst = max(float(level[hot].max()) for level, hot in zip(skew.levels, skew.hot, strict=True) if hot.any())
    grid_layers = zip(seen.grids, skew.hot, strict=True)
    layers = sorted({int(grid.layer[k]) for grid, hot in grid_layers for k in np.flatnonzero(hot.any(axis=1))})
    named = seen.names_of(ranks) if ranks else "every rank in turn"
    where = f" in {n} of {seen.n_steps} steps" if n < seen.n_steps else ""
    text = f"experts take up to {worst:.2f} × the other ranks' time"
    return Claim(
        cause,
        ranks,
        skew.steps,
        who,
        _when(seen, skew, period),
        f"{named}: hot experts in {len(layers)} layers, up to {worst:.2f} × the others' expert time{where}",
        (
            Evidence("expert_work_ratio", worst, "ratio", text, 1.0, n),
            Evidence("expert_layers", float(len(layers)), "count", f"in {len(layers)} layers of a step"),
            *(show_culprits(seen, ranks, skew.steps) if ranks else ()),
        ),
        (
            Alternative("single_point.gpu", "kernels of equal work longer on the same rank"),
            Alternative("structural.dispatch", "late exits from dispatch instead of longer expert kernels"),
        ),
        (Undo("expert", tuple(_even_layers(seen, skew, grid_id) for grid_id in range(len(seen.grids)))),),
        layers=tuple(layers),
        period_ns=period,
    )


def _when(seen: Observations, skew: ExpertSkew, period: int | None) -> When:
    if skew.is_burst:
        return "periodic" if period is not None else "burst"
    covered = np.flatnonzero(skew.steps)
    outside = max(int(covered[0]), seen.n_steps - 1 - int(covered[-1]))
    return "onset" if outside >= ONSET_STEPS and len(covered) >= ONSET_STEPS else "steady"


def _even_layers(seen: Observations, skew: ExpertSkew, grid_id: int) -> FloatArray:
    """Give every rank the mean expert work of a hot layer, the routed tokens being conserved."""
    grid = seen.grids[grid_id]
    factor = np.ones(grid.segment.shape)
    rows = np.flatnonzero(seen.select(grid_id, skew.steps))
    hot = np.flatnonzero(skew.hot[grid_id].any(axis=1))
    if not len(rows) or not len(hot):
        return factor
    block = np.ix_(rows, hot)
    work = grid.components["expert"][block].astype(np.float64)
    level = work if skew.is_burst else np.broadcast_to(skew.levels[grid_id][hot], work.shape)
    factor[block] = level.mean(axis=2, keepdims=True) / np.maximum(level, 1e-9)
    return factor


def _excess_by_rank(seen: Observations, skew: ExpertSkew) -> FloatArray:
    """Sum, over the hot layers, the time by which the slowest rank exceeds the mean."""
    excess = np.zeros(seen.n_ranks)
    for grid_id, grid in enumerate(seen.grids):
        rows = np.flatnonzero(seen.select(grid_id, skew.steps))
        if not len(rows):
            continue
        work = grid.components["expert"][rows].mean(axis=0)
        for position in np.flatnonzero(skew.hot[grid_id].any(axis=1)):
            top = int(np.argmax(work[position]))
            excess[top] += float(work[position, top] - work[position].mean()) * len(rows)
    return excess


def _smallest_set(excess: FloatArray) -> tuple[tuple[int, ...], Who]:
    ranks = members(choose_by_loss(excess))
    if len(ranks) == len(excess) and len(ranks) > 2:
        return (), "all"
    return ranks, "one" if len(ranks) == 1 else "rotating"
