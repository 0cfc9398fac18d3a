"""The replay is the measured run when nothing is undone, and what is won back is shared without remainder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest

from dprankdiag.analysis.grid import StepGrid
from dprankdiag.model.claims import Claim, Undo
from dprankdiag.model.results import COMPONENTS
from dprankdiag.simulate.counterfactual import (
    EXACT_CLAIMS,
    measure_hidden,
    measure_replay_error,
    replay,
    replay_with,
    run_steps,
    share_losses,
)
from tests.analysis.builders import Array, draw_components, on, run_grid

N, RANKS = 20, 8
PAIRS = np.array([0, 0, 1, 1, 2, 2, 3, 3])


def late_exits(ns: int = 9_000, rank: int = 5) -> Array:
    exits = np.zeros((1, 1, RANKS), np.int64)
    exits[:, :, rank] = ns
    return exits


def draw_grid() -> StepGrid:
    """Draw uneven steps: attention on rank 3, experts on rank 1, a late exit of rank 5."""
    factor = {"attention": on(3, 2.0), "expert": on(1, 1.4)}
    return run_grid(draw_components(N, RANKS, factor=factor, noise=0.05), exit_ns=late_exits())


def team_grid(seed: int = 0) -> StepGrid:
    """Draw steps in which pairs of ranks meet before everybody does."""
    group = np.stack([PAIRS if k % 3 == 0 else np.full(RANKS, 9) for k in range(6)])
    factor = {"attention": on(3, 2.0), "expert": on(1, 1.4)}
    parts = draw_components(N, RANKS, factor=factor, noise=0.05, seed=seed)
    return run_grid(parts, group=group, exit_ns=late_exits())


def undo(component: str, rank: int, factor: float, grids: int = 1) -> Undo:
    return Undo(component, tuple(on(rank, factor) for _ in range(grids)))


def claim(*undos: Undo, n_steps: int = N) -> Claim:
    return Claim("load.context", (0,), np.ones(n_steps, bool), "one", "steady", "", (), (), undos, 1.0)


def many_claims(count: int) -> list[Claim]:
    names = [*COMPONENTS, "exit", "transfer"]
    return [claim(undo(names[k % len(names)], k % RANKS, 0.5)) for k in range(count)]


def simulate(grid: StepGrid, factor: dict[str, Array]) -> list[int]:
    """Play the meetings one by one, rank by rank."""
    walls = []
    n_steps, n_positions, n_ranks = grid.segment.shape
    scale = {name: np.broadcast_to(value, grid.segment.shape) for name, value in factor.items()}
    for step in range(n_steps):
        left = [float(grid.entry[step, rank]) for rank in range(n_ranks)]
        end = [0.0] * n_ranks
        for position in range(n_positions):
            came = {}
            for rank in range(n_ranks):
                work = 0.0
                for name in COMPONENTS:
                    by = scale[name][step, position, rank] if name in scale else 1.0
                    work += float(grid.components[name][step, position, rank]) * by
                came[rank] = left[rank] + work
            for rank in range(n_ranks):
                own = [k for k in range(n_ranks) if grid.group[position, k] == grid.group[position, rank]]
                end[rank] = max(came[k] for k in own) + float(grid.transfer[step, position, rank])
            left = [end[rank] + float(grid.exit[step, position, rank]) for rank in range(n_ranks)]
        walls.append(round(max(end)))
    return walls


@pytest.mark.parametrize("grid", [draw_grid(), team_grid()], ids=["all together", "pairs, then all"])
def test_a_replay_reproduces_the_measured_walls(grid: StepGrid) -> None:
    np.testing.assert_array_equal(replay(grid, []), grid.duration_ns)


def test_calls_that_do_not_wait_are_replayed_as_they_were() -> None:
    waits = np.ones((1, 1, RANKS), bool)
    waits[:, :, 7] = False
    grid = run_grid(draw_components(N, RANKS), waits=waits)
    np.testing.assert_array_equal(replay(grid, []), grid.duration_ns)


@pytest.mark.parametrize("component", [*COMPONENTS, "exit", "transfer"])
def test_undoing_nothing_changes_nothing(component: str) -> None:
    grid = draw_grid()
    np.testing.assert_array_equal(replay(grid, [(component, np.ones(grid.segment.shape))]), replay(grid, []))


def test_two_undos_of_one_component_multiply() -> None:
    grid = draw_grid()
    twice = replay(grid, [("attention", on(3, 0.8)), ("attention", on(3, 0.5))])
    np.testing.assert_allclose(twice, replay(grid, [("attention", on(3, 0.4))]))


def test_undoing_the_last_to_arrive_wins_back_what_it_was_later_than_the_next() -> None:
    parts = {"attention": np.full((N, 1, 3), 100) + np.array([0, 0, 50])}
    grid = run_grid(parts)
    assert (replay(grid, []) - replay(grid, [("attention", on(2, 2 / 3, 3))]) == 50).all()
    assert (replay(grid, []) - replay(grid, [("attention", on(0, 0.5, 3))]) == 0).all()


def test_a_late_exit_undone_is_undone_out_of_the_step_before_as_well() -> None:
    parts = {"attention": np.full((N, 2, 3), 1_000)}
    grid = run_grid(parts, exit_ns=np.array([0, 0, 70]))
    gone = replay(grid, [("exit", on(2, 0.0, 3))])
    assert (grid.duration_ns[1:] == 2 * (1_000 + 70 + 16_000)).all()
    assert (gone == 2 * (1_000 + 16_000)).all()


@pytest.mark.parametrize("seed", range(3))
def test_meetings_of_pairs_and_of_all_agree_with_a_step_by_step_simulation(seed: int) -> None:
    grid = team_grid(seed)
    factor = {"attention": on(3, 0.5), "expert": on(1, 0.7)}
    assert np.round(replay(grid, [])).astype(int).tolist() == simulate(grid, {})
    assert np.round(replay(grid, list(factor.items()))).astype(int).tolist() == simulate(grid, factor)


def test_lateness_within_a_pair_reaches_the_others_at_the_next_meeting_of_all() -> None:
    parts = {"attention": np.full((N, 2, 4), 1_000)}
    parts["attention"][:, 0, 1] = 5_000
    grid = run_grid(parts, group=np.array([[0, 0, 1, 1], [9, 9, 9, 9]]), transfer=10)
    assert (replay(grid, []) == 5_000 + 10 + 1_000 + 10).all()
    assert (replay(grid, [("attention", on(1, 0.2, 4))]) == 2_020).all()


@pytest.mark.parametrize("count", [0, 1, 3, EXACT_CLAIMS, EXACT_CLAIMS + 3])
def test_shares_add_up_to_what_is_won_back_whether_exact_or_sampled(count: int) -> None:
    shares = share_losses([draw_grid()], many_claims(count))
    assert shares.lost.shape == (count, N)
    np.testing.assert_allclose(shares.lost.sum(axis=0), shares.measured - shares.balanced, rtol=1e-9, atol=1e-3)


def test_the_order_of_claims_does_not_matter() -> None:
    claims = many_claims(3)
    grid = draw_grid()
    first = share_losses([grid], claims).lost
    for order in permutations(range(3)):
        other = share_losses([grid], [claims[k] for k in order]).lost
        np.testing.assert_allclose(other, first[list(order)], atol=1e-6)


def test_two_claims_of_the_same_thing_share_it_equally() -> None:
    same = claim(undo("attention", 3, 0.5))
    lost = share_losses([draw_grid()], [same, same]).lost
    np.testing.assert_allclose(lost[0], lost[1])


def test_a_claim_that_undoes_nothing_costs_nothing() -> None:
    lost = share_losses([draw_grid()], [claim(undo("attention", 3, 0.5)), claim(undo("attention", 3, 1.0))]).lost
    assert not lost[1].any()


def test_steps_of_all_kinds_are_shared_in_the_order_of_the_grids() -> None:
    grids = [draw_grid(), team_grid()]
    both = claim(Undo("attention", (on(3, 0.5), on(3, 1.0))))
    lost = share_losses(grids, [both]).lost
    assert lost.shape == (1, 2 * N)
    assert (lost[0, :N] > 0).all()
    assert not lost[0, N:].any()
    np.testing.assert_array_equal(replay_with(grids, both.undo)[:N], replay(grids[0], [("attention", on(3, 0.5))]))


def test_noise_costs_what_steps_at_their_mean_would_not_take() -> None:
    even = share_losses([run_grid(draw_components(N, RANKS, noise=0.0))], [])
    noisy = share_losses([run_grid(draw_components(N, RANKS, noise=0.1))], [])
    assert np.allclose(even.even, even.balanced)
    assert noisy.even.sum() < noisy.balanced.sum()


def test_claims_on_one_component_add_no_noise_to_steps_that_are_all_alike() -> None:
    grid = run_grid({"attention": np.full((N, 2, 3), 1_000) + np.array([0, 0, 3_000])})
    shares = share_losses([grid], [claim(Undo("attention", (on(2, 0.7, 3),))) for _ in range(2)])
    np.testing.assert_allclose(shares.even, shares.balanced)


def test_differences_left_among_ranks_are_hidden_until_they_are_undone() -> None:
    grid = run_grid({"attention": np.full((N, 1, 4), 1_000) + np.array([0, 0, 0, 400])})
    assert measure_hidden([grid], []) == pytest.approx(300 * N)
    assert measure_hidden([grid], [Undo("attention", (on(3, 1_000 / 1_400, 4),))]) == pytest.approx(0)


@pytest.mark.parametrize("late", [(5,), (4, 5, 6, 7)])
def test_late_exits_that_nobody_claims_are_hidden_loss(late: tuple[int, ...]) -> None:
    exits = sum(late_exits(rank=rank) for rank in late)
    grid = run_grid(draw_components(N, RANKS, noise=0.0), exit_ns=np.asarray(exits))
    cost = 9_000 * grid.segment.shape[1] * N
    assert measure_hidden([grid], []) == pytest.approx(cost, rel=0.2)
    undone = np.where(np.isin(np.arange(RANKS), late), 0.0, 1.0)
    assert measure_hidden([grid], [Undo("exit", (undone,))]) == pytest.approx(0, abs=0.05 * cost)


def test_a_run_of_no_work_takes_the_transfers() -> None:
    grid = draw_grid()
    nothing = np.zeros(grid.segment.shape)
    wall = run_steps(grid, nothing, nothing + 5.0, nothing, np.zeros((N, RANKS)))
    assert (wall == 5.0 * grid.segment.shape[1]).all()


def events(*steps: int) -> Sequence[Array]:
    mask = np.zeros(N, bool)
    mask[list(steps)] = True
    return [mask]


def test_steps_like_their_neighbours_are_foretold() -> None:
    grid = run_grid(draw_components(N, RANKS, noise=0.002))
    error = measure_replay_error([grid], events())
    assert error is not None
    assert error < 0.005


def test_a_stall_is_not_held_against_the_replay() -> None:
    parts = draw_components(N, RANKS, noise=0.002)
    parts["host"][[6, 12], 0, 2] += 9_000_000
    error = measure_replay_error([run_grid(parts)], events(6, 12))
    assert error is not None
    assert error < 0.005


def test_six_steps_are_too_few_to_hold_any_out() -> None:
    assert measure_replay_error([draw_grid().take(np.arange(6))], [np.zeros(6, bool)]) is None
