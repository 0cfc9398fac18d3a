"""Steps laid out by position and rank: only like is put beside like, and every sum closes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.analysis.collectives import MeetingSet
from dprankdiag.analysis.grid import StepGrid, build_grids
from dprankdiag.analysis.lanes import Lane
from dprankdiag.analysis.left_out import LeftOut
from dprankdiag.analysis.participations import collect_participations, find_world, locate_world
from dprankdiag.analysis.segments import cut_segments
from dprankdiag.analysis.steps import Cut
from dprankdiag.model.results import COMPONENTS
from tests.analysis.builders import EPOCH_NS, Array, Row, lane

PROBE_KEY = 40


def play(work: Array, *, transfer_ns: int = 500, late: Sequence[int] = ()) -> tuple[list[MeetingSet], list[Lane]]:
    """Play steps of a gather and a scatter: attention and a probe before the one, experts and an idle gap after.

    Args:
        work: `(n_steps, 2, n_ranks)` ns of attention and of experts.
        late: how late each rank leaves every meeting.
    """
    n_steps, _, n_ranks = work.shape
    ready = np.full(n_ranks, EPOCH_NS, np.int64)
    rows: list[list[Row]] = [[] for _ in range(n_ranks)]
    arrivals: tuple[list[Array], ...] = ([], [])
    ends: tuple[list[Array], ...] = ([], [])
    exits = np.array(late or [0] * n_ranks)
    for step in range(n_steps):
        for side, family in enumerate(("attention", "moe_expert")):
            for rank in range(n_ranks):
                begin = int(ready[rank]) + (0 if side == 0 else 30)
                stop = begin + int(work[step, side, rank])
                rows[rank].append(Row(family, begin, stop, phase=2 if side == 0 else 0))
                if side == 0:
                    rows[rank].append(Row("gemm", stop, stop + 70, key=PROBE_KEY))
                    stop += 70
                ready[rank] = stop
            end = ready.max() + transfer_ns + exits
            for rank in range(n_ranks):
                rows[rank].append(Row("collective", int(ready[rank]), int(end[rank]), channel=side))
            arrivals[side].append(ready.copy())
            ends[side].append(end.copy())
            ready = end.copy()
    names = ("all_gather", "reduce_scatter")
    sets = [
        MeetingSet(
            name,
            "collective",
            name,
            tuple(range(n_ranks)),
            np.array(arrivals[k]),
            np.array(ends[k]),
            np.ones(n_ranks, bool),
            0,
        )
        for k, name in enumerate(names)
    ]
    return sets, [lane(mine) for mine in rows]


def build(
    sets: list[MeetingSet], lanes: list[Lane], first: Array, basis: str = "sampling"
) -> tuple[list[StepGrid], LeftOut]:
    members = collect_participations(sets, len(lanes))
    keys = np.array([PROBE_KEY], np.int64)
    own = [cut_segments(made, part.arrival_ns, part.end_ns, keys) for made, part in zip(lanes, members, strict=True)]
    world = find_world(sets, range(len(lanes)))
    position = [locate_world(part, sets, world) for part in members]
    return build_grids(members, own, position, sets, Cut(first, basis))


def draw_work(n_steps: int = 12, n_ranks: int = 3, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(1_000, 5_000, (n_steps, 2, n_ranks))


def whole_grid(work: Array, *, late: Sequence[int] = ()) -> StepGrid:
    sets, lanes = play(work, late=late)
    (grid,), left_out = build(sets, lanes, np.arange(2, 2 * len(work) + 1, 2))
    assert left_out.count == 0
    return grid


def test_components_add_up_to_segments() -> None:
    grid = whole_grid(draw_work())
    total = sum(grid.components[name] for name in COMPONENTS)
    np.testing.assert_array_equal(total, grid.segment)


def test_each_component_is_what_was_played() -> None:
    work = draw_work()
    grid = whole_grid(work)
    np.testing.assert_array_equal(grid.components["attention"][:, 0], work[1:, 0])
    np.testing.assert_array_equal(grid.components["expert"][:, 1], work[1:, 1])
    assert (grid.components["probe"][:, 0] == 70).all()
    assert (grid.components["rest"][:, 1] == 30).all()
    assert not grid.components["host"].any()


def test_work_wait_transfer_and_idle_add_up_to_the_step() -> None:
    grid = whole_grid(draw_work(), late=[0, 0, 130])
    spent = (grid.segment + grid.wait + grid.own_transfer).sum(axis=1)
    left = grid.entry - grid.exit[:, -1]
    np.testing.assert_array_equal(spent + left, np.broadcast_to(grid.duration_ns[:, None], spent.shape))


def test_the_last_to_arrive_waits_for_nobody() -> None:
    work = draw_work()
    grid = whole_grid(work)
    assert (grid.wait.min(axis=2) == 0).all()
    np.testing.assert_array_equal(grid.wait[:, 0].argmin(axis=1), work[1:, 0].argmax(axis=1))


def test_late_exits_are_told_against_the_median_and_carried_into_the_next_step() -> None:
    grid = whole_grid(draw_work(), late=[0, 0, 130])
    assert (grid.exit == [0, 0, 130]).all()
    assert (grid.entry == [0, 0, 130]).all()
    assert (grid.transfer == 500).all()


def test_a_call_that_does_not_wait_is_credited_with_none() -> None:
    sets, lanes = play(draw_work())
    sets = [replace(item, waits=np.array([False, True, True])) for item in sets]
    (grid,), _ = build(sets, lanes, np.arange(2, 25, 2))
    assert not grid.wait[:, :, 0].any()
    assert grid.wait[:, :, 1:].any()
    total = grid.segment + grid.wait + grid.own_transfer
    np.testing.assert_array_equal(total.sum(axis=1)[:, 0], grid.duration_ns)


def test_layers_and_sides_of_the_gather_are_numbered() -> None:
    sets, lanes = play(draw_work(n_steps=24))
    (grid,), _ = build(sets, lanes, np.arange(4, 49, 4))
    assert grid.layer.tolist() == [0, 0, 1, 1]
    assert grid.side == ("pre", "post", "pre", "post")
    assert grid.operation == ("all_gather", "reduce_scatter") * 2


def test_steps_of_another_order_of_meetings_have_a_grid_of_their_own() -> None:
    sets, lanes = play(draw_work(n_steps=30))
    borders = np.concatenate([np.arange(2, 31, 2), np.arange(34, 61, 4)])
    grids, left_out = build(sets, lanes, borders)
    assert [grid.segment.shape[1] for grid in grids] == [2, 4]
    assert left_out.count == 0


def test_a_kind_of_step_that_is_rare_is_left_out_and_counted() -> None:
    sets, lanes = play(draw_work(n_steps=20))
    grids, left_out = build(sets, lanes, np.concatenate([np.arange(2, 31, 2), np.array([34, 38])]))
    assert len(grids) == 1
    assert left_out.count == 2


def test_steps_left_out_hide_no_more_than_their_most_idle_rank_stands_still_beyond_the_usual() -> None:
    work = draw_work(n_steps=20) // 100 + 3_000  # ranks nearly alike, so that nobody waits for long
    borders = np.concatenate([np.arange(2, 31, 2), np.array([34, 38])])
    _, even = build(*play(work), borders)
    assert even.hidden_ns < 500
    work[17, 0, 1] += 50_000
    _, uneven = build(*play(work), borders)
    assert 50_000 < uneven.hidden_ns < 51_000


def test_taking_steps_takes_them_of_every_array() -> None:
    grid = whole_grid(draw_work())
    part = grid.take(np.array([1, 4]))
    assert len(part.number) == 2
    np.testing.assert_array_equal(part.duration_ns, grid.duration_ns[[1, 4]])
    np.testing.assert_array_equal(part.components["expert"], grid.components["expert"][[1, 4]])


@pytest.mark.parametrize("n_ranks", [2, 5])
def test_a_world_is_where_all_meet(n_ranks: int) -> None:
    sets, _ = play(draw_work(n_ranks=n_ranks))
    assert find_world(sets, range(n_ranks)) == [0, 1]
    assert find_world(sets, range(n_ranks - 1)) == []


def test_times_near_the_epoch_stay_whole() -> None:
    grid = whole_grid(draw_work())
    assert grid.start_ns.dtype == grid.segment.dtype == np.int64
    assert grid.start_ns[1:].tolist() == grid.end_ns[:-1].tolist()
