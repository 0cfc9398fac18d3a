"""Steps drawn anew are the same steps, laid end to end."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.analysis.batches import tabulate_requests
from dprankdiag.analysis.observations import order_steps
from dprankdiag.analysis.resampling import draw_in_order, take_steps
from dprankdiag.analysis.statistics import block_length
from tests.analysis.builders import GRAPH_STEPS, announce, observe_lost_graphs, observe_steps

N = 40
SEEN = announce(observe_steps(N), np.arange(N)[:, None] * 10.0 + np.arange(8)[None, :])


@given(st.integers(1, 300), st.integers(0, 5))
def test_draws_keep_their_length_their_blocks_and_the_order_of_time(n: int, seed: int) -> None:
    drawn = draw_in_order(n, 3, seed=seed)
    assert drawn.shape == (3, n)
    assert drawn.min() >= 0
    assert drawn.max() < n
    first = drawn[:, :: block_length(n)]
    assert (np.diff(first, axis=1) >= 0).all()
    within = np.arange(n - 1) % block_length(n) != block_length(n) - 1
    assert (np.diff(drawn, axis=1)[:, within] == 1).all()


def test_one_seed_gives_one_draw() -> None:
    np.testing.assert_array_equal(draw_in_order(N, 5), draw_in_order(N, 5))
    assert not np.array_equal(draw_in_order(N, 1), draw_in_order(N, 1, seed=1))


@given(st.lists(st.integers(0, N - 1), min_size=5, max_size=60))
def test_every_step_drawn_is_what_it_was(index: list[int]) -> None:
    chosen = np.array(index)
    drawn = take_steps(SEEN, chosen)
    assert drawn.n_steps == len(chosen)
    np.testing.assert_array_equal(drawn.duration_ns, SEEN.duration_ns[chosen])
    np.testing.assert_array_equal(drawn.start_ns[1:], drawn.end_ns[:-1])
    for name, values in SEEN.sums.items():
        np.testing.assert_array_equal(drawn.sums[name], values[chosen])
    work = order_steps(drawn, [grid.components["attention"].sum(axis=1) for grid in drawn.grids])
    np.testing.assert_array_equal(work, SEEN.sums["attention"][chosen])
    np.testing.assert_array_equal(tabulate_requests(drawn), tabulate_requests(SEEN)[chosen])


def test_all_steps_in_order_are_the_recording() -> None:
    same = take_steps(SEEN, np.arange(N))
    np.testing.assert_array_equal(same.start_ns, SEEN.start_ns)
    np.testing.assert_array_equal(same.grids[0].segment, SEEN.grids[0].segment)


def test_steps_of_several_kinds_stay_what_they_are_and_rare_kinds_are_left_out() -> None:
    seen = observe_lost_graphs()
    index = np.array([3, 4, 5, GRAPH_STEPS, GRAPH_STEPS + 1, GRAPH_STEPS + 1])
    drawn = take_steps(seen, index)
    np.testing.assert_array_equal(drawn.grid_of, seen.grid_of[index])
    for name in ("host", "attention"):
        work = order_steps(drawn, [grid.components[name].sum(axis=1) for grid in drawn.grids])
        np.testing.assert_array_equal(work, seen.sums[name][index])
    few = take_steps(seen, index[:5])
    assert len(few.grids) == 1
    assert few.n_steps == 3


def test_a_draw_may_hold_fewer_steps_than_the_recording_from_all_over_it() -> None:
    drawn = draw_in_order(1000, 4, 250)
    assert drawn.shape == (4, 250)
    assert drawn.min() < 250
    assert drawn.max() >= 750
