"""Waits, step times, ages and expert counts as a window tells them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.analysis.ledger_signals import count_experts, measure_ages, measure_steps, measure_waits
from dprankdiag.analysis.ledger_window import LedgerWindow
from tests.ledgers import build_ledger

BARE = {"only": True, "ranks": 4}


def window(**given: Any) -> LedgerWindow:
    ledger = build_ledger({**BARE, **given})
    return LedgerWindow(ledger, 0, ledger.n_moments - 1)


def waiting(gather: Any, control: Any, steps: Any = 500) -> LedgerWindow:
    return window(counters={"sync_wait_s": gather, "sync_waits": steps, "control_wait_s": control})


def test_the_gather_and_the_control_broadcast_are_waited_for_together() -> None:
    waits = measure_waits(waiting({"all": 4.0, 1: 0.5}, {"all": 0.5, 1: 0.5}))
    assert waits is not None
    assert waits.per_step_s == pytest.approx([0.009, 0.002, 0.009, 0.009])
    assert waits.has_control
    assert waits.low is not None
    assert list(np.flatnonzero(waits.low.mask)) == [1]
    assert waits.gap_s == pytest.approx(0.007)
    assert waits.cost_ratio == pytest.approx(0.007 * 500 / 15.0)


def test_a_late_rank_0_shows_in_the_control_broadcast_only() -> None:
    waits = measure_waits(waiting(0.5, {"all": 4.0, 0: 0.1}))
    assert waits is not None
    assert waits.low is not None
    assert list(np.flatnonzero(waits.low.mask)) == [0]


@pytest.mark.parametrize("control", [None, 0.0])
def test_a_control_wait_that_never_grows_is_not_told(control: float | None) -> None:
    waits = measure_waits(waiting(4.0, control))
    assert waits is not None
    assert not waits.has_control


def test_the_stage_of_the_scheduler_stands_in_for_the_gather() -> None:
    stages = {"batch_stage_s": {"all": 4.0, 2: 0.3}, "control_wait_s": 0.5, "graph_passes": 450, "eager_passes": 50}
    waits = measure_waits(window(counters=stages))
    assert waits is not None
    assert waits.low is not None
    assert list(np.flatnonzero(waits.low.mask)) == [2]


@pytest.mark.parametrize("counters", [{}, {"sync_wait_s": 4.0}, {"sync_wait_s": 0.0, "sync_waits": 0}])
def test_waits_that_are_not_told_are_none(counters: dict[str, Any]) -> None:
    assert measure_waits(window(counters=counters)) is None


def test_a_rank_without_steps_has_no_wait() -> None:
    waits = measure_waits(waiting({"all": 4.0, 3: 0.0}, 0.5, {"all": 500, 3: 0}))
    assert waits is not None
    assert np.isnan(waits.per_step_s[3])
    assert waits.low is None


@given(st.floats(0.1, 100.0))
def test_the_cost_of_waiting_is_never_above_all_of_the_time(gather: float) -> None:
    waits = measure_waits(waiting({"all": gather, 1: 0.0}, 0.001))
    assert waits is not None
    assert waits.cost_ratio is not None
    assert 0 <= waits.cost_ratio <= 1


def test_without_seconds_the_cost_is_unknown_and_the_gap_is_not() -> None:
    waits = measure_waits(
        window(seconds=None, counters={"sync_wait_s": {"all": 4.0, 1: 0.5}, "sync_waits": 500, "control_wait_s": 0.5})
    )
    assert waits is not None
    assert waits.cost_ratio is None
    assert waits.gap_s > 0


def test_step_times_are_those_of_load_answers_else_of_gaps_between_tokens() -> None:
    both = {"load_decode_step_s": 15.0, "load_decode_steps": 500, "token_gap_s": 9.0, "token_gaps": 100}
    assert measure_steps(window(counters=both)) == pytest.approx([0.03] * 4)
    assert measure_steps(window(counters={"token_gap_s": 9.0, "token_gaps": 100})) == pytest.approx([0.09] * 4)
    assert measure_steps(window(counters={"token_gap_s": 0.0, "token_gaps": 0})) is None
    steps = measure_steps(window(counters={"token_gap_s": 9.0, "token_gaps": {"all": 100, 2: 0}}))
    assert steps is not None
    assert np.isnan(steps[2])


@given(st.floats(-1e9, 1e9))
def test_ages_are_against_the_freshest_so_that_our_clock_does_not_matter(clock_s: float) -> None:
    ages = measure_ages(window(gauges={"load_stamp_s": {"all": clock_s + 20.0, 1: clock_s + 5.0, 3: None}}))
    assert ages is not None
    assert ages[:3] == pytest.approx([0.0, 15.0, 0.0], abs=1e-5)
    assert np.isnan(ages[3])


def test_snapshots_without_stamps_have_no_age() -> None:
    assert measure_ages(window()) is None
    assert measure_ages(window(gauges={"load_stamp_s": None, "load_used_tokens": 1})) is None


def test_expert_tokens_are_counted_over_the_window_or_since_the_start() -> None:
    experts = [[100.0, 200.0], [300.0, 400.0]]
    assert count_experts(window()) is None
    whole = count_experts(window(experts=experts, moments=3))
    assert whole is not None
    assert whole.tolist() == experts
    one = count_experts(window(experts=experts, moments=1))
    assert one is not None
    assert one.tolist() == [[0.0, 0.0], [0.0, 0.0]]
