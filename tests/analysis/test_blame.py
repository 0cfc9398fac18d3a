"""Waits are charged to whom they lead back to, and every wait is charged once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dprankdiag.analysis.blame import spread_blame
from tests.analysis.builders import Array, observe_grids, observe_steps, run_grid

WAY_NS = 900_000
LATE_NS = 400_000
SLOWER_NS = 1_000
PAIRS_THEN_ALL = np.array([[0, 0, 1, 1], [2, 2, 2, 2]])


def meet_in_pairs(n_steps: int = 4, **told: Any) -> Any:
    """Let two pairs meet and then all: rank 3 is late to its pair, rank 2 a little slower from there to all."""
    other = np.full((n_steps, 2, 4), WAY_NS)
    other[:, 0, 3] += LATE_NS
    other[:, 1, 2] += SLOWER_NS
    return observe_grids([run_grid({"other": other}, group=PAIRS_THEN_ALL, **told)])


def test_all_waiting_for_one_late_rank_is_charged_to_it() -> None:
    attention = np.full((3, 2, 4), WAY_NS)
    attention[:, :, 1] += LATE_NS
    blame = spread_blame(observe_grids([run_grid({"attention": attention})]))
    everybody_waits = 2 * 3 * LATE_NS
    assert blame.caused_ns[:, 1].tolist() == [everybody_waits, 0, everybody_waits, everybody_waits]
    assert blame.caused_ns.sum() == 3 * everybody_waits
    assert blame.by_step[:, 1].tolist() == [2 * 3 * LATE_NS] * 3


def test_a_rank_that_was_released_late_passes_the_blame_on() -> None:
    blame = spread_blame(meet_in_pairs(1))
    assert blame.last_ns[0].tolist() == [0, 0, LATE_NS + SLOWER_NS, 0, 0]
    assert blame.caused_ns[0].tolist() == [0, 0, SLOWER_NS, LATE_NS, 0]
    assert blame.caused_ns[3].tolist() == [0, 0, SLOWER_NS, 0, 0]
    assert blame.caused_ns[2].tolist() == [0, 0, 0, LATE_NS, 0]


def test_who_is_released_late_but_catches_up_inherits_only_what_is_left() -> None:
    seen = meet_in_pairs(1)
    grid = seen.grids[0]
    other = grid.components["other"].copy()
    other[:, 1, 2:] -= 150_000
    caught = run_grid({"other": other}, group=PAIRS_THEN_ALL)
    blame = spread_blame(observe_grids([caught]))
    assert blame.caused_ns[0].tolist() == [0, 0, 0, LATE_NS + SLOWER_NS - 150_000, 0]


def test_who_comes_late_out_of_a_transfer_is_to_blame_for_that() -> None:
    exit_ns = np.zeros((1, 1, 4), np.int64)
    exit_ns[:, :, 2] = 30_000
    blame = spread_blame(observe_grids([run_grid({"other": np.full((5, 3, 4), WAY_NS)}, exit_ns=exit_ns)]))
    assert blame.caused_ns[:, [0, 1, 3, 4]].sum() == 0
    assert blame.caused_ns[0, 2] == (5 * 3 - 1) * 30_000


def test_every_wait_is_charged_once_and_moves_with_the_names_of_the_ranks() -> None:
    random = np.random.default_rng(0)
    other = random.integers(50_000, 900_000, (30, 6, 4))
    group = np.array([PAIRS_THEN_ALL[0], PAIRS_THEN_ALL[1]] * 3)
    grid = run_grid({"other": other}, group=group)
    blame = spread_blame(observe_grids([grid]))
    waits = grid.wait.sum(axis=(0, 1))
    for charged in (blame.last_ns, blame.caused_ns):
        np.testing.assert_array_equal(charged.sum(axis=1), waits)
    assert (blame.caused_ns >= 0).all()
    assert blame.caused_ns.diagonal().sum() == 0
    np.testing.assert_array_equal(blame.by_step.sum(axis=0), blame.caused_ns[:, :-1].sum(axis=0))
    order = np.array([2, 3, 1, 0])
    moved = spread_blame(observe_grids([run_grid({"other": other[:, :, order]}, group=group[:, order])]))
    np.testing.assert_array_equal(moved.caused_ns[:, :-1], blame.caused_ns[np.ix_(order, order)])


def test_of_a_meeting_at_another_place_of_the_step_nobody_known_is_charged() -> None:
    other = np.full((6, 2, 2), WAY_NS)
    other[:, 0, 1] += LATE_NS
    grid = run_grid({"other": other})
    blame = spread_blame(observe_grids([replace(grid, group=np.array([[0, 1], [1, 0]]))]))
    assert blame.caused_ns[0].tolist() == [0, 0, 6 * LATE_NS]
    assert blame.by_step.sum() == 0


def test_steps_of_several_kinds_are_told_by_their_place_in_time() -> None:
    def run(late: int, start_ns: int, n_steps: int) -> Any:
        way: Array = np.full((n_steps, 1, 3), WAY_NS)
        way[:, :, late] += LATE_NS
        return run_grid({"other": way}, start_ns=start_ns)

    first = run(0, 10**12, 4)
    second = run(2, int(first.end_ns[-1]), 3)
    later = replace(second, number=second.number + 4)
    blame = spread_blame(observe_grids([first, later]))
    assert blame.by_step.argmax(axis=1).tolist() == [0, 0, 0, 0, 2, 2, 2]


def test_even_ranks_share_what_blame_there_is() -> None:
    blame = spread_blame(observe_steps(200, noise=0.01))
    share = blame.by_step.sum(axis=0) / blame.by_step.sum()
    assert share.max() < 2 / 8
