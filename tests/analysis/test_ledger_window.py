"""Growth and levels of a window: restarts, gaps and absent numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.analysis.ledger_window import FEWEST_TO_MEND, LedgerWindow
from dprankdiag.model.ledgers import FloatArray, Ledger

NAN = float("nan")
counters = st.lists(st.integers(0, 1000), min_size=2, max_size=20)


def window(seconds: Sequence[float] | None = None, **rows: Sequence[Sequence[float]] | Sequence[float]) -> LedgerWindow:
    """Make a window of all moments; a flat row is of one rank."""
    values = {name: np.atleast_2d(np.array(table, np.float64).T).T for name, table in rows.items()}
    size, n_ranks = next(iter(values.values())).shape
    restarted = np.zeros((size, n_ranks), bool)
    for table in values.values():
        restarted[1:] |= np.diff(table, axis=0) < 0
    axis = None if seconds is None else np.array(seconds, np.float64)
    ledger = Ledger("x", "sglang", None, None, tuple(range(n_ranks)), axis, None, values, restarted)
    return LedgerWindow(ledger, 0, size - 1)


def grown(*counts: float) -> float:
    growth = window(decode_tokens=counts).growth("decode_tokens")
    return NAN if growth is None else float(growth[0])


@given(counters)
def test_a_counter_that_only_grows_grew_by_its_last_less_its_first(steps: list[int]) -> None:
    counts = np.cumsum(steps)
    assert grown(*counts) == counts[-1] - counts[0]


@given(counters, st.integers(0, 10**6))
def test_where_a_counter_began_does_not_matter(steps: list[int], start: int) -> None:
    counts = np.cumsum(steps)
    assert grown(*counts) == grown(*(counts + start))


@given(st.lists(st.integers(0, 100), min_size=FEWEST_TO_MEND + 2, max_size=30), st.data())
def test_after_a_restart_no_more_is_counted_than_was_done_and_little_less(
    steps: list[int], data: st.DataObject
) -> None:
    counts = np.cumsum([0, *steps])
    place = data.draw(st.integers(2, len(counts) - 2))
    told = counts.copy()
    told[place:] -= counts[place - 1]
    lost = counts[-1] - counts[0] - grown(*told)
    assert 0 <= lost + told[place] <= max(steps) + told[place]


def test_of_a_few_moments_a_restart_leaves_the_growth_unknown() -> None:
    assert np.isnan(grown(100, 3))
    assert np.isnan(grown(90, 100, 3, 8))
    assert grown(*range(90, 100), 1, 2, 3) == 9 + 3


def test_gaps_are_bridged_and_ranks_with_one_moment_or_none_do_not_tell() -> None:
    table = [[1.0, 1.0, NAN, NAN], [NAN, 5.0, NAN, 7.0], [9.0, 9.0, NAN, NAN]]
    growth = window(decode_tokens=table).growth("decode_tokens")
    assert growth is not None
    assert np.array_equal(growth, [8.0, 8.0, NAN, NAN], equal_nan=True)


def test_nothing_grows_in_one_moment_or_where_nothing_is_told() -> None:
    assert window(decode_tokens=[[1.0, 2.0]]).growth("decode_tokens") is None
    assert window(decode_tokens=[[NAN], [NAN]]).growth("decode_tokens") is None
    assert window(decode_tokens=[1.0, 2.0]).growth("prefill_tokens") is None


def test_a_sum_of_fields_needs_all_of_them() -> None:
    both = window(active_steps=[0.0, 5.0], idle_steps=[0.0, 3.0])
    assert both.growth("active_steps", "idle_steps") == pytest.approx([8.0])
    assert both.growth("active_steps", "sync_waits") is None


def test_a_level_is_the_later_of_two_moments_and_the_mean_of_more() -> None:
    assert window(running_requests=[4.0, 10.0]).level("running_requests") == pytest.approx([10.0])
    assert window(running_requests=[4.0, 10.0, 1.0]).level("running_requests") == pytest.approx([5.0])
    assert window(running_requests=[4.0, NAN]).level("running_requests") == pytest.approx([4.0])
    assert window(running_requests=[4.0, NAN, 8.0]).level("running_requests") == pytest.approx([6.0])


def test_the_first_gauge_told_is_taken() -> None:
    told = window(load_running_requests=[[NAN], [NAN]], running_requests=[1.0, 2.0])
    assert told.level("load_running_requests", "running_requests") == pytest.approx([2.0])
    assert told.level("load_used_tokens") is None


def test_a_gauge_is_held_where_it_is_told_at_all_moments_and_never_moves() -> None:
    table = [[1.0, 1.0, NAN], [1.0, 2.0, NAN], [1.0, 1.0, NAN]]
    assert window(running_requests=table).held("running_requests").tolist() == [True, False, False]
    assert not window(running_requests=[[5.0]]).held("running_requests").any()


def test_seconds_are_those_of_the_clock_else_of_the_schedulers_account() -> None:
    assert window([0.0, 15.0], decode_tokens=[1.0, 2.0]).elapsed_s == 15.0
    assert window(stages_s=[10.0, 22.0]).elapsed_s == 12.0
    assert window(decode_tokens=[1.0, 2.0]).elapsed_s is None
    assert window(decode_tokens=[1.0, 2.0]).span_ns is None
    assert window([0.0, 15.0], decode_tokens=[1.0, 2.0]).span_ns == (0, 15 * 10**9)


def test_steps_are_those_of_the_rank_that_counted_most_of_them() -> None:
    assert window(active_steps=[[0.0, 0.0], [30.0, 50.0]], idle_steps=[[0.0, 0.0], [20.0, 0.0]]).steps == 50.0
    assert window(sync_waits=[0.0, 40.0]).steps == 40.0
    assert window(active_steps=[0.0, 0.0], idle_steps=[0.0, 0.0], sync_waits=[0.0, 7.0]).steps == 7.0
    assert window(decode_tokens=[0.0, 7.0]).steps is None
    assert window(active_steps=[np.nan, np.nan], sync_waits=[0.0, 7.0]).steps == 7.0


def test_a_part_of_a_ledger_is_read_alone() -> None:
    whole = window(
        range(6), decode_tokens=[0.0, 1.0, 3.0, 6.0, 10.0, 15.0], running_requests=[9.0, 1.0, 2.0, 3.0, 9.0, 9.0]
    )
    part = LedgerWindow(whole.ledger, 1, 3)
    growth: FloatArray | None = part.growth("decode_tokens")
    assert growth == pytest.approx([5.0])
    assert part.level("running_requests") == pytest.approx([2.0])
    assert part.elapsed_s == 2.0
