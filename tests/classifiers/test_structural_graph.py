"""Eager steps are priced as the graph steps beside them, and not at all where there are none of their batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import measure_skews
from dprankdiag.classifiers.precedence import give_way
from dprankdiag.classifiers.single_point_host import SinglePointHost
from dprankdiag.classifiers.structural_graph import StructuralGraph
from dprankdiag.model.claims import Claim
from dprankdiag.simulate.counterfactual import replay_with
from tests.analysis.builders import ABLE, EAGER_STEPS, GRAPH_STEPS, Array, announce, observe_grids, observe_lost_graphs

HOST = "single_point.host"


def mark(*ranks: int) -> Array:
    return np.tile(np.isin(np.arange(8), ranks), (EAGER_STEPS, 1))


def judge(seen: Observations) -> Claim:
    (claim,) = [item for item in StructuralGraph().judge(seen, measure_skews(seen)) if isinstance(item, Claim)]
    return claim


def test_undone_eager_steps_take_as_long_as_replayed_ones() -> None:
    seen = observe_lost_graphs(empty=mark(4))
    claim = judge(seen)
    assert (claim.ranks, claim.who, claim.when, claim.loss_known) == ((4,), "one", "onset", True)
    without = replay_with(seen.grids, claim.undo)
    assert np.median(without[GRAPH_STEPS:]) == pytest.approx(np.median(without[:GRAPH_STEPS]), rel=0.02)
    assert np.array_equal(without[:GRAPH_STEPS], replay_with(seen.grids, ())[:GRAPH_STEPS])


def test_a_batch_that_was_never_replayed_has_no_price() -> None:
    seen = observe_lost_graphs()
    rows = np.full((seen.n_steps, 8), 16.0)
    rows[GRAPH_STEPS:, 2] = 40.0
    claim = judge(announce(seen, rows))
    assert (claim.ranks, claim.loss_known, claim.undo) == ((2,), False, ())
    assert claim.steps.sum() == EAGER_STEPS


def test_nobody_is_named_where_nothing_shows_or_a_member_is_unseen() -> None:
    seen = observe_lost_graphs(empty=mark(4))
    hidden = replace(seen, abilities=replace(ABLE, missing_ranks=(8,)))
    assert [(claim.ranks, claim.who) for claim in (judge(observe_lost_graphs()), judge(hidden))] == [((), "all")] * 2


def test_ranks_that_run_empty_in_turn_are_named_so() -> None:
    turns = mark(1, 4)
    turns[::2, 1], turns[1::2, 4] = False, False
    claim = judge(observe_lost_graphs(empty=turns))
    assert (claim.ranks, claim.who) == ((1, 4), "rotating")


def test_hosts_that_scatter_as_eager_launches_do_give_way_and_a_late_one_does_not() -> None:
    seen = observe_lost_graphs(empty=mark(4))
    eager = seen.grids[1]
    late = np.where(np.arange(8) == 6, 400_000, 0)
    host = eager.components["host"] + np.where((np.arange(6) == 0)[None, :, None], late, 0)
    slow = replace(
        eager, components={**eager.components, "host": host}, segment=eager.segment + host - eager.components["host"]
    )
    worse = observe_grids([seen.grids[0], slow])
    (host_claim,) = [
        item for item in SinglePointHost().judge(worse, measure_skews(worse)) if isinstance(item, Claim) and item.ranks
    ]
    assert host_claim.ranks == (6,)
    assert [item.cause for item in give_way(worse, [judge(worse), host_claim])] == ["structural.graph", HOST]
    assert [item.cause for item in give_way(seen, [judge(seen), host_claim])] == ["structural.graph"]
    elsewhere = replace(host_claim, steps=np.ones(seen.n_steps, bool))
    assert [item.cause for item in give_way(seen, [judge(seen), elsewhere])] == ["structural.graph", HOST]
