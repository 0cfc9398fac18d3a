"""The steps of a group in order of time, and the names of its members."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dprankdiag.analysis.collectives import MeetingSet
from dprankdiag.analysis.observations import sum_steps
from dprankdiag.analysis.observe import join_groups
from dprankdiag.model.results import COMPONENTS
from tests.analysis.builders import draw_components, observe_grids, observe_steps, ranks, run_grid


def test_sums_of_the_components_close_over_every_step() -> None:
    seen = observe_steps()
    (grid,) = seen.grids
    total = np.sum([seen.sums[name] for name in COMPONENTS], axis=0)
    np.testing.assert_array_equal(total, grid.segment.sum(axis=1))
    spent = total + seen.sums["wait"] + seen.sums["transfer"] + seen.sums["exit"]
    np.testing.assert_array_equal(spent, np.broadcast_to(seen.duration_ns[:, None], spent.shape))


def test_steps_of_several_kinds_are_ordered_by_their_start() -> None:
    grid = run_grid(draw_components(12))
    odd, even = grid.take(np.arange(1, 12, 2)), grid.take(np.arange(0, 12, 2))
    grid_of, row_of, sums = sum_steps([odd, even])
    assert grid_of.tolist() == [1, 0] * 6
    assert row_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    np.testing.assert_array_equal(sums["attention"], grid.components["attention"].sum(axis=1))


def test_a_factor_by_step_reaches_the_grid_the_step_lies_in() -> None:
    grid = run_grid(draw_components(12))
    seen = observe_grids([grid.take(np.arange(1, 12, 2)), grid.take(np.arange(0, 12, 2))])
    first, second = seen.spread_factor(np.arange(12.0)[:, None] + np.zeros(8))
    assert first[:, 0, 0].tolist() == [1, 3, 5, 7, 9, 11]
    assert second.shape == (6, 1, 8)
    assert seen.select(0, np.arange(12) < 4).tolist() == [True, True, False, False, False, False]


def test_durations_follow_each_other() -> None:
    seen = observe_steps()
    assert (seen.n_steps, seen.n_ranks) == (40, 8)
    np.testing.assert_array_equal(seen.start_ns[1:], seen.end_ns[:-1])
    assert seen.median_step_ns == np.median(seen.duration_ns)


def test_a_rank_that_is_assumed_is_named_by_its_process() -> None:
    seen = observe_steps()
    assert seen.names_of([1, 2]) == "rank 1, rank 2"
    assert replace(seen, ranks=ranks(8, "assumed")).name_of(2) == "process 4102 (rank 2 assumed)"


def test_groups_that_share_a_rank_are_one_lockstep_group() -> None:
    empty = np.empty((0, 2), np.int64)

    def meet(*members: int) -> MeetingSet:
        return MeetingSet("x", "collective", "all_reduce", members, empty, empty, np.ones(2, bool), 0)

    assert join_groups([meet(0, 1), meet(2, 3), meet(4, 5), meet(1, 2)]) == [(0, 1, 2, 3), (4, 5)]
