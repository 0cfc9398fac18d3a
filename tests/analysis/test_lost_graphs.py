"""Eager decode steps among replayed ones are found, with who kept all from replaying, where that shows."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.analysis.lost_graphs import choose_blamed, find_bucket, find_lost_graphs
from dprankdiag.analysis.observations import Observations
from tests.analysis.builders import EAGER_STEPS, GRAPH_STEPS, Array, announce, observe_lost_graphs


def mark(*ranks: int) -> Array:
    return np.tile(np.isin(np.arange(8), ranks), (EAGER_STEPS, 1))


def test_eager_steps_among_replayed_ones_are_lost() -> None:
    found = find_lost_graphs(observe_lost_graphs())
    assert found is not None
    assert np.flatnonzero(found.steps).tolist() == list(range(GRAPH_STEPS, GRAPH_STEPS + EAGER_STEPS))
    assert found.known.sum() == EAGER_STEPS
    assert found.why == ""
    assert not found.mask.any()
    assert found.eager_ns - found.graph_ns == pytest.approx(6 * 60_000, rel=0.05)


@pytest.mark.parametrize(
    "seen", [observe_lost_graphs(gap_ns=0), observe_lost_graphs(kind="mixed"), observe_lost_graphs(kind="prefill")]
)
def test_steps_that_idle_no_longer_or_hold_prompts_are_not(seen: Observations) -> None:
    assert find_lost_graphs(seen) is None


def test_a_rank_without_work_in_the_eager_steps_alone_is_to_blame() -> None:
    found = find_lost_graphs(observe_lost_graphs(empty=mark(4)))
    assert found is not None
    assert (found.why, np.flatnonzero(found.mask).tolist()) == ("idle", [4])


def test_a_rank_that_is_empty_in_replayed_steps_too_is_not() -> None:
    seen = observe_lost_graphs(empty=mark(4))
    rows = np.full((seen.n_steps, 8), 16.0)
    rows[:, 4] = 0.0
    found = find_lost_graphs(announce(seen, rows))
    assert found is not None
    assert found.why == ""


def test_a_batch_larger_than_any_that_was_replayed_is_to_blame_and_has_no_counterpart() -> None:
    seen = observe_lost_graphs()
    rows = np.full((seen.n_steps, 8), 16.0)
    rows[GRAPH_STEPS:, 2] = 40.0
    found = find_lost_graphs(announce(seen, rows))
    assert found is not None
    assert (found.why, np.flatnonzero(found.mask).tolist()) == ("rows", [2])
    assert not found.known.any()


def test_a_step_without_a_counterpart_that_meets_alike_is_not_known() -> None:
    seen = observe_lost_graphs(layers=2)
    found = find_lost_graphs(announce(seen, np.full((seen.n_steps, 8), 16.0)))
    assert found is not None
    assert found.steps.any()
    assert not found.known.any()


def test_captured_sizes_are_powers_of_two_and_then_eighths() -> None:
    assert find_bucket(np.array([1, 3, 8, 9, 16, 17])).tolist() == [1, 4, 8, 16, 16, 24]


@pytest.mark.parametrize(
    ("counts", "chosen"), [([0, 0, 0], []), ([9, 1, 0], [0]), ([9, 8, 0], [0, 1]), ([5, 5, 5], [0, 1, 2])]
)
def test_the_fewest_ranks_that_hold_most_of_the_blame_are_chosen(counts: list[int], chosen: list[int]) -> None:
    assert np.flatnonzero(choose_blamed(np.array(counts))).tolist() == chosen
