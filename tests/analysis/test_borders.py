"""Hosts that meet between steps show in when the GPUs go on."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.analysis.borders import find_border
from tests.analysis.builders import Array

STEPS = 60


def draw(n_ranks: int, meets: bool, seed: int, late: dict[int, int] | None = None) -> tuple[Array, Array, Array]:
    """Draw when ranks leave a step, are done with it and go on: together if the hosts meet, else each by itself."""
    random = np.random.default_rng(seed)
    left = np.arange(STEPS)[:, None] * 10_000_000 + random.integers(0, 1_000, (STEPS, n_ranks))
    done = left + 70_000 + random.integers(0, 4_000, (STEPS, n_ranks))
    for rank, late_ns in (late or {}).items():
        done[:, rank] += late_ns
    from_ns = np.broadcast_to(done.max(axis=1, keepdims=True), done.shape) if meets else done
    common = random.integers(0, 20_000, (STEPS, 1))
    return left, done, from_ns + 200_000 + common + random.integers(0, 3_000, (STEPS, n_ranks))


@pytest.mark.parametrize("n_ranks", [2, 8])
@pytest.mark.parametrize("seed", range(4))
def test_hosts_that_meet_are_told_from_those_that_do_not(n_ranks: int, seed: int) -> None:
    border = find_border(*draw(n_ranks, True, seed))
    assert border is not None
    assert (border.slack.min(axis=1) == 0).all()
    assert find_border(*draw(n_ranks, False, seed)) is None


def test_what_the_slack_is_follows_who_is_late() -> None:
    border = find_border(*draw(8, True, 5, {3: 50_000}))
    assert border is not None
    slack = np.median(border.slack, axis=0)
    assert slack[3] == 0
    assert (np.delete(slack, 3) > 45_000).all()


def test_one_long_stall_hides_no_meeting() -> None:
    left, done, until = draw(4, True, 6)
    until[20, 2] += 5_000_000
    assert find_border(left, done, until) is not None


def test_ranks_that_are_always_done_at_the_same_moment_tell_nothing() -> None:
    left, done, until = draw(4, True, 7)
    assert find_border(left, np.broadcast_to(done[:, :1], done.shape), until) is None


def test_a_gap_after_the_meeting_that_lost_rows_leave_is_not_taken_for_the_hosts() -> None:
    left, done, until = draw(8, True, 8)
    whole = find_border(left, done, until)
    lost = np.random.default_rng(8).random(done.shape) < 0.2
    lost[lost.sum(axis=1) > 3] = False
    seen = find_border(left, np.where(lost, until + 10_000, done), np.where(lost, until + 60_000, until))
    assert whole is not None
    assert seen is not None
    assert seen.slack.max() <= 2 * whole.slack.max()
    assert np.median(np.abs(seen.slack - whole.slack)[~lost]) < 1_000
