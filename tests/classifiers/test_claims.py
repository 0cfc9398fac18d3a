"""What every claim must hold to, whoever makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import measure_skews
from dprankdiag.catalog.causes import load_causes
from dprankdiag.catalog.evidence import load_evidence
from dprankdiag.classifiers import ALL
from dprankdiag.classifiers.precedence import give_way
from dprankdiag.model.claims import Claim
from dprankdiag.model.diagnosis import Abstention
from dprankdiag.simulate.counterfactual import replay_with
from tests.analysis.builders import (
    EAGER_STEPS,
    Array,
    annotate,
    announce,
    observe_lost_graphs,
    observe_steps,
    on,
    on_steps,
)

N, RANKS = 60, 8
ALL_WORK = ("attention", "expert", "probe", "other")


def late_exit(positions: slice) -> Array:
    exits = np.zeros((1, 6, RANKS))
    exits[:, positions, 6] = 60_000
    return exits


def long_transfers() -> Array:
    transfer = np.full((N, 6, 1), 16_000)
    transfer[20:40] = 48_000
    return transfer + np.random.default_rng(0).integers(-300, 300, transfer.shape)


def heavy(**by_rank: Array) -> Observations:
    return annotate(observe_steps(N, factor={"attention": on(3, 2.0)}), **by_rank)


MEETINGS = ("all_reduce", "dispatch") * 3
ONES = np.ones(RANKS)
LOAD = np.where(np.arange(N) < N // 2, 1.0, 2.5)[:, None, None]
FAULTY: Mapping[str, Observations] = {
    "single_point.gpu": observe_steps(N, factor=dict.fromkeys(ALL_WORK, on(2, 1.25))),
    "single_point.host": observe_steps(N, add={"host": 300_000.0 * (on(1, 2.0) - 1)}),
    "single_point.link": observe_steps(N, exit_ns=late_exit(slice(None))),
    "single_point.unknown": observe_steps(
        N, factor={"probe": np.zeros(1), "attention": on(2, 1.4), "expert": on(2, 1.4)}
    ),
    "load.idle": observe_steps(N, factor={"attention": 0.03 * on([0, 1], 33.0)}),
    "load.prefill": replace(heavy(), prefill_share=np.where(np.arange(RANKS) == 3, 0.4, 0.0)),
    "load.context": heavy(requests=16 * ONES),
    "load.requests": heavy(requests=16 * np.where(np.arange(RANKS) == 3, 2.0, 1.0)),
    "load.unknown": observe_steps(N, factor={"attention": on(3, 2.0)}),
    "structural.expert": observe_steps(N, factor={"expert": on(4, 1.6)}),
    "structural.dispatch": observe_steps(
        N, exit_ns=late_exit(slice(1, None, 2)), operation=MEETINGS, family=("collective", "dispatch") * 3
    ),
    "structural.layout": announce(
        observe_steps(N, factor={"attention": LOAD * on(3, 1.5)}), np.tile(10 * LOAD[:, :, 0], (1, RANKS))
    ),
    "structural.graph": observe_lost_graphs(empty=np.tile(np.arange(RANKS) == 4, (EAGER_STEPS, 1))),
    "communication.fabric": observe_steps(N, transfer=long_transfers()),
    "uniform.slow": observe_steps(N, factor=dict.fromkeys(ALL_WORK, on_steps(range(8), 1.3, slice(30, N), N, RANKS))),
    "unclassified.late": observe_steps(N, add={"rest": 100_000.0 * (on(4, 2.0) - 1)}),
}


def judge(seen: Observations) -> tuple[list[Claim], list[Abstention]]:
    skews = measure_skews(seen)
    items = [item for classifier in ALL for item in classifier.judge(seen, skews)]
    claims = [item for item in items if isinstance(item, Claim)]
    return give_way(seen, claims), [item for item in items if isinstance(item, Abstention)]


def test_every_cause_has_a_fault_here() -> None:
    assert set(FAULTY) == {classifier.cause for classifier in ALL}


@pytest.mark.parametrize("cause", FAULTY)
def test_the_cause_is_claimed_alone(cause: str) -> None:
    claims, _ = judge(FAULTY[cause])
    assert [claim.cause for claim in claims] == [cause]


@pytest.mark.parametrize("cause", FAULTY)
def test_undoing_the_claim_wins_time_back(cause: str) -> None:
    seen = FAULTY[cause]
    ((claim,), _) = judge(seen)
    if not claim.loss_known:
        assert claim.undo == ()
        return
    measured, without = replay_with(seen.grids, ()), replay_with(seen.grids, claim.undo)
    covered = claim.steps[np.argsort(seen.grid_of, kind="stable")]
    assert without[covered].mean() < 0.99 * measured[covered].mean()
    assert without[~covered].sum() == pytest.approx(measured[~covered].sum(), rel=0.01)


@pytest.mark.parametrize("cause", FAULTY)
def test_what_a_claim_says_is_complete(cause: str) -> None:
    seen = FAULTY[cause]
    ((claim,), _) = judge(seen)
    assert claim.cause in load_causes()
    assert {item.name for item in claim.evidence} <= set(load_evidence())
    assert {item.cause for item in claim.alternatives} <= set(load_causes())
    assert claim.evidence
    assert claim.steps.shape == (N,)
    assert claim.ranks == tuple(sorted(claim.ranks))
    assert (claim.who == "all") == (claim.ranks == ())
    for undo in (*claim.undo, *claim.proof):
        for factor, grid in zip(undo.factors, seen.grids, strict=True):
            assert np.broadcast_shapes(factor.shape, grid.segment.shape) == grid.segment.shape
            assert np.isfinite(factor).all()
            assert (factor >= 0).all()


@pytest.mark.parametrize("cause", FAULTY)
def test_while_a_member_is_unseen_nobody_is_named(cause: str) -> None:
    seen = FAULTY[cause]
    claims, abstained = judge(replace(seen, abilities=replace(seen.abilities, missing_ranks=(8,))))
    assert [claim for claim in claims if claim.ranks] == []
    if cause not in ("communication.fabric", "uniform.slow"):
        assert cause in {item.cause for item in abstained}


@pytest.mark.parametrize("cause", [cause for cause in FAULTY if cause.startswith("single_point")])
def test_uneven_profiling_accuses_no_single_rank(cause: str) -> None:
    seen = FAULTY[cause]
    claims, _ = judge(replace(seen, abilities=replace(seen.abilities, uneven="overhead differs")))
    assert [claim.cause for claim in claims if claim.cause.startswith("single_point")] == []


@pytest.mark.parametrize("seed", range(20))
def test_even_ranks_are_claimed_by_nobody(seed: int) -> None:
    claims, abstained = judge(observe_steps(N, noise=0.03, seed=seed))
    assert claims == []
    assert {item.cause for item in abstained} == {"communication.fabric", "structural.graph", "uniform.slow"}


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_few_even_ranks_are_claimed_by_nobody(n_ranks: int) -> None:
    for seed in range(10):
        assert judge(observe_steps(N, n_ranks, noise=0.03, seed=seed))[0] == []


def test_two_faults_on_two_ranks_are_two_claims() -> None:
    slow = {name: on(5, 1.3) for name in ALL_WORK}
    seen = observe_steps(N, factor=slow | {"attention": on(5, 1.3) * on(2, 2.0)})
    claims, _ = judge(seen)
    assert {(claim.cause, claim.ranks) for claim in claims} == {("single_point.gpu", (5,)), ("load.unknown", (2,))}


def test_a_layout_that_cannot_be_told_says_what_would_tell_it() -> None:
    hot = observe_steps(N, factor={"expert": on(3, 1.5)})
    announced = annotate(hot, requests=9 * ONES)
    said = [next(item for item in judge(seen)[1] if item.cause == "structural.layout") for seen in (hot, announced)]
    assert [item.lacked[0] for item in said] == ["batch annotations of every rank", "steps at two or more load levels"]
    assert "NVTX" in str(said[0].get_it_with)
    assert "load" in str(said[1].get_it_with)
