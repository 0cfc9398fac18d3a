"""Hosts launch by a clock of their own and meet between steps: the replay without a fault is the run without it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from dprankdiag.analysis.borders import Border
from dprankdiag.analysis.grid import StepGrid
from dprankdiag.simulate.counterfactual import replay
from tests.analysis.builders import Array, run_grid

STEPS, POSITIONS, RANKS = 12, 6, 4
TRANSFER = 8_000


@dataclass(frozen=True)
class Deployment:
    """What takes how long: `(STEPS, POSITIONS, RANKS)`, tail, delay and stall `(STEPS, RANKS)`.

    A host stalls before it meets the others, its GPU idle meanwhile.
    """

    work: Array
    launch: Array
    exit: Array
    tail: Array
    delay: Array
    stall: Array
    meet: bool = True


@dataclass(frozen=True)
class Run:
    """When it happens, ns: `(STEPS, POSITIONS, RANKS)`; `left` and `done` (of the step before) `(STEPS, RANKS)`."""

    begin: Array
    launched: Array
    arrival: Array
    end: Array
    left: Array
    done: Array


def draw(seed: int, launch_ns: int) -> Deployment:
    random = np.random.default_rng(seed)
    shape = (STEPS, POSITIONS, RANKS)
    return Deployment(
        random.integers(40_000, 60_000, shape),
        random.integers(launch_ns // 2, launch_ns, shape),
        np.zeros(shape, np.int64),
        random.integers(20_000, 30_000, (STEPS, RANKS)),
        random.integers(50_000, 60_000, (STEPS, RANKS)),
        np.zeros((STEPS, RANKS), np.int64),
    )


def play(it: Deployment) -> Run:
    """Play the steps one by one; the hosts go on when the last of them, or each when its own GPU, is done."""
    shape = (STEPS, POSITIONS, RANKS)
    begin, launched, arrival, end = (np.zeros(shape, np.int64) for _ in range(4))
    left, done = np.zeros((STEPS, RANKS), np.int64), np.zeros((STEPS, RANKS), np.int64)
    ready = np.full(RANKS, 1_000_000)
    for step in range(STEPS):
        left[step], done[step] = ready, ready + it.tail[step] + it.stall[step]
        resume = (done[step].max() if it.meet else done[step]) + it.delay[step]
        launched[step] = resume + np.cumsum(it.launch[step], axis=0)
        free = done[step]
        for position in range(POSITIONS):
            begin[step, position] = free
            arrival[step, position] = np.maximum(free, launched[step, position]) + it.work[step, position]
            end[step, position] = arrival[step, position].max() + TRANSFER
            free = end[step, position] + it.exit[step, position]
        ready = free
    return Run(begin, launched, arrival, end, left, done)


def observe(it: Deployment, run: Run) -> StepGrid:
    """See of a run what a recording shows, without its first step."""
    steps = slice(1, None)
    idle = np.maximum(run.launched - run.begin, 0)[steps]
    at_border = idle[:, 0].copy()
    idle[:, 0] += it.stall[steps]
    work = it.work[steps].copy()
    work[:, 0] += it.tail[steps]
    grid = run_grid({"other": work, "host": idle}, transfer=TRANSFER, exit_ns=it.exit[steps])
    shared = run.end[:-1, -1, 0]
    entry = run.left[steps] - shared[:, None]
    ahead = np.where(idle > 0, -idle, run.begin[steps] - run.launched[steps]).astype(np.int32)
    done = run.done[steps]
    tail = (it.tail + it.stall)[steps]
    border = Border(tail, done.max(axis=1, keepdims=True) - done, at_border) if it.meet else None
    wait = run.arrival.max(axis=2, keepdims=True) - run.arrival
    return replace(
        grid, start_ns=shared, end_ns=run.end[steps, -1, 0], entry=entry, wait=wait[steps], border=border, ahead=ahead
    )


def walls(run: Run) -> Array:
    return np.diff(run.end[:, -1, 0])


def late_exit(it: Deployment, ns: int) -> Deployment:
    exits = it.exit.copy()
    exits[:, :, 2] = ns
    return replace(it, exit=exits)


@pytest.mark.parametrize("meet", [True, False])
@pytest.mark.parametrize("launch_ns", [2_000, 90_000, 200_000], ids=["launches lead", "about as fast", "host bound"])
def test_the_replay_without_a_late_exit_is_the_run_without_it(launch_ns: int, meet: bool) -> None:
    well = replace(draw(3, launch_ns), meet=meet)
    ill = late_exit(well, 70_000)
    run = play(ill)
    grid = observe(ill, run)
    assert np.allclose(replay(grid, []), walls(run))
    undone = np.ones((1, 1, RANKS))
    undone[..., 2] = 0.0
    found, true = replay(grid, [("exit", undone)]).sum(), walls(play(well)).sum()
    assert abs(found - true) < 0.02 * (walls(run).sum() - true) + 1


def test_a_host_that_is_late_once_is_late_with_all_that_follows() -> None:
    well = draw(4, 60_000)
    launch = well.launch.copy()
    launch[5, 2, 1] += 2_000_000
    ill = replace(well, launch=launch)
    run = play(ill)
    grid = observe(ill, run)
    idle = grid.components["host"].astype(float)
    factor = np.ones(idle.shape)
    stall = (4, 2, 1)
    factor[stall] = (idle[stall] - 2_000_000) / idle[stall]
    assert abs(replay(grid, [("host", factor)]).sum() - walls(play(well)).sum()) < 20_000


@pytest.mark.parametrize("ranks", [(1,), (1, 3)])
def test_a_host_that_stalls_before_the_hosts_meet_holds_up_all(ranks: tuple[int, ...]) -> None:
    well = draw(4, 60_000)
    stall = well.stall.copy()
    stall[5, ranks] = 2_000_000
    ill = replace(well, stall=stall)
    run = play(ill)
    grid = observe(ill, run)
    assert np.allclose(replay(grid, []), walls(run))
    idle = grid.components["host"].astype(float)
    factor = np.ones(idle.shape)
    factor[4, 0, ranks] = (idle[4, 0, ranks] - 2_000_000) / idle[4, 0, ranks]
    assert abs(replay(grid, [("host", factor)]).sum() - walls(play(well)).sum()) < 20_000


def test_who_is_late_with_the_step_before_holds_up_the_hosts_of_all() -> None:
    well = draw(5, 2_000)
    tail = well.tail.copy()
    tail[:, 3] += 400_000
    ill = replace(well, tail=tail)
    run = play(ill)
    grid = observe(ill, run)
    assert grid.border is not None
    assert (np.delete(grid.border.slack, 3, axis=1) > 300_000).all()
    factor = np.ones(grid.segment.shape)
    factor[:, 0, 3] = well.work[1:, 0, 3] / grid.components["other"][:, 0, 3]
    assert replay(grid, [("other", factor)]).sum() < replay(grid, []).sum() - 0.7 * 400_000 * (STEPS - 1)


def test_work_that_is_launched_in_time_waits_for_no_launch_wherever_its_host_was() -> None:
    ill = draw(6, 90_000)
    launch = ill.launch.copy()
    launch[:, 1:, 1] = 20_000  # this host has less to launch: it is ahead of its GPU, though not by much
    ill = replace(ill, launch=launch)
    well = replace(ill, launch=np.concatenate([launch[:, :1], np.zeros_like(launch[:, 1:])], axis=1))
    grid, true = observe(ill, play(ill)), observe(well, play(well)).components["host"]
    idle = grid.components["host"]
    factor = np.where(idle > 0, true / np.maximum(idle, 1), 1.0)
    late = replay(grid, [("host", factor)]).sum() - walls(play(well)).sum()
    in_time = replay(grid, [("host", factor), ("launch", np.zeros((1, 1, 1)))]).sum() - walls(play(well)).sum()
    assert late > 20 * abs(in_time)
    assert abs(in_time) < 0.01 * walls(play(well)).sum()
