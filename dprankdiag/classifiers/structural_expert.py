"""Hot experts: some ranks get more of the routed tokens, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import ExpertSkew, Skews
from dprankdiag.analysis.statistics import BoolArray, FloatArray
from dprankdiag.classifiers.base import unseen_member, waiting_evidence
from dprankdiag.model.claims import Claim, Undo
from dprankdiag.model.diagnosis import Abstention, Alternative, Evidence, Who

ALIKE = 0.7
LOSS_SHARE = 0.8
"""The ranks named are the smallest set that holds this share of the excess (DESIGN 3)."""


class StructuralExpert:
    """Hot experts: some ranks get more of the routed tokens, layer by layer.

    *What you see*: the expert GEMMs of a layer are longer on one rank than on the others, in the same layer of
    every step; in other layers it may be another rank. The others wait in the collective after the experts.

    *Why it happens*: routing is uneven and the placement of experts does not make up for it: popular experts share
    a rank, there are too few copies of them, or dummy tokens all go to one rank's experts.

    *How we tell it apart*: the excess sits after the gather, in expert kernels only, at the same layers throughout;
    kernels of equal work and attention are not longer. A layer counts if its mean ratio over the steps lies beyond
    both its own error and five per cent.

    *What to do*: turn on or refresh expert placement (EPLB), add redundant experts for the hot layers, use a finer
    expert parallelism; check where padding tokens are routed.
    """

    cause = "structural.expert"

    def judge(self, seen: Observations, skews: Skews) -> Iterator[Claim | Abstention]:
        """Claim the layers whose expert work is uneven in the same way over the whole recording."""
        if np.median(seen.sums["expert"]) <= 0:
            yield Abstention(
                self.cause,
                "no expert work was seen after the gather",
                ("expert kernels",),
                "dprankdiag kernels TRACE shows unknown names; name them with --patterns",
            )
            return
        if skews.speed_basis == "expert" or not any(item.hot.any() for item in skews.experts):
            return
        if (reason := unseen_member(seen)) is not None:
            yield Abstention(self.cause, reason)
            return
        excess = _excess_by_rank(seen, skews)
        ranks, who = _smallest_set(excess)
        steps = np.ones(seen.n_steps, bool)
        undo = tuple(_even_layers(skew) for skew in skews.experts)
        main = skews.experts[0]
        hot = main.hot.any(axis=1)
        worst = float(np.nanmax(np.where(main.hot, main.level, np.nan))) if hot.any() else 1.0
        layers = tuple(sorted({int(seen.grids[0].layer[k]) for k in np.flatnonzero(hot)}))
        evidence = [
            Evidence(
                "expert_work_ratio",
                worst,
                "ratio",
                f"experts take up to {worst:.2f} × the other ranks' time",
                1.0,
                seen.n_steps,
            ),
            Evidence(
                "expert_layers",
                float(hot.sum()),
                "count",
                f"in {int(hot.sum())} of {_layers(main)} expert positions a step",
            ),
            *(waiting_evidence(seen, ranks, steps) if ranks else ()),
        ]
        named = seen.names_of(ranks) if ranks else "every rank in turn"
        yield Claim(
            self.cause,
            ranks,
            steps,
            who,
            "steady",
            f"{named}: hot experts in {len(layers)} layers, up to {worst:.2f} × the others' expert time",
            tuple(evidence),
            (
                Alternative("single_point.gpu", "kernels of equal work longer on the same rank"),
                Alternative("structural.dispatch", "late exits from dispatch instead of longer expert kernels"),
            ),
            (Undo("expert", undo),),
            _support(seen, skews, ranks),
            layers=layers,
        )


def _layers(skew: ExpertSkew) -> int:
    return int((~np.isnan(skew.level).all(axis=1)).sum())


def _even_layers(skew: ExpertSkew) -> FloatArray:
    """Give every rank the mean expert level of a hot layer, the routed tokens being conserved."""
    factor = np.ones(skew.level.shape)
    hot = skew.hot.any(axis=1)
    level = skew.level[hot]
    factor[hot] = level.mean(axis=1, keepdims=True) / np.maximum(level, 1e-9)
    return factor[None, :, :]


def _excess_by_rank(seen: Observations, skews: Skews) -> FloatArray:
    """Sum, over the hot layers, the time by which the slowest rank exceeds the mean."""
    excess = np.zeros(seen.n_ranks)
    for grid, skew in zip(seen.grids, skews.experts, strict=True):
        work = grid.components["expert"].mean(axis=0)
        for position in np.flatnonzero(skew.hot.any(axis=1)):
            top = int(np.argmax(skew.level[position]))
            excess[top] += float(work[position, top] - work[position].mean()) * len(grid.number)
    return excess


def _smallest_set(excess: FloatArray) -> tuple[tuple[int, ...], Who]:
    order = np.argsort(-excess)
    held = np.cumsum(excess[order]) / max(float(excess.sum()), 1e-9)
    count = int(np.searchsorted(held, LOSS_SHARE) + 1)
    # Ranks as hot as the last one needed are named with it: leaving one of them out would be chance.
    count = int((excess >= ALIKE * excess[order[min(count, len(order)) - 1]]).sum())
    ranks = tuple(sorted(int(rank) for rank in order[:count]))
    if count == 1:
        return ranks, "one"
    if count >= len(excess):
        return (), "all"
    return ranks, "rotating"


def _support(seen: Observations, skews: Skews, ranks: tuple[int, ...]) -> float:
    """Halve the recording in many ways: how often do the same ranks come out?"""
    random = np.random.default_rng(0)
    same = 0
    draws = 50
    for _ in range(draws):
        excess = np.zeros(seen.n_ranks)
        for grid, skew in zip(seen.grids, skews.experts, strict=True):
            chosen: BoolArray = random.random(len(grid.number)) < 0.5
            if not chosen.any():
                continue
            work = grid.components["expert"][chosen].mean(axis=0)
            for position in np.flatnonzero(skew.hot.any(axis=1)):
                top = int(np.argmax(work[position]))
                excess[top] += float(work[position, top] - work[position].mean()) * len(grid.number)
        same += _smallest_set(excess)[0] == ranks
    return same / draws
