from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.traffic import (
    SECOND_NS,
    Agents,
    Fixed,
    LogNormal,
    Pareto,
    Recorded,
    come_at_random,
    come_in_bursts,
    repeat_log,
)
from tests.simulate.worlds import run_one


def test_equal_seeds_give_equal_lists_and_others_do_not() -> None:
    drawn = [come_at_random(50, 10, LogNormal(500, 1.0, 9_000), Pareto(20, 1.5, 2_000), seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_random_arrivals_come_at_their_rate_with_as_much_spread_as_mean() -> None:
    times = np.array([r.arrival_ns for r in come_at_random(20_000, 50, Fixed(1), Fixed(1), 3)])
    gaps = np.diff(times) / SECOND_NS
    assert abs(gaps.mean() * 50 - 1) < 0.03
    assert abs(gaps.std() * 50 - 1) < 0.05


def test_bursts_come_within_their_span_in_order() -> None:
    requests = come_in_bursts(3, 20, 1_000, SECOND_NS, Fixed(10), Fixed(5), 1)
    times = np.array([r.arrival_ns for r in requests]).reshape(3, 20)
    assert (times - np.arange(3)[:, None] * SECOND_NS < 1_000).all()
    assert (np.diff(times.ravel()) >= 0).all()


def test_long_tails_are_long_and_cut() -> None:
    lengths = Pareto(100, 1.2, 50_000).draw(np.random.default_rng(0), 50_000)
    assert lengths.min() >= 100
    assert lengths.max() == 50_000
    share = np.mean(lengths > 400) / np.mean(lengths > 200)
    assert abs(share - 2**-1.2) < 0.05


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 99))
def test_each_turn_repeats_all_that_was_said_before(sessions: int, turns: int, seed: int) -> None:
    agents = Agents(sessions, turns, 5.0, SECOND_NS, 300, LogNormal(50, 1, 999), LogNormal(30, 1, 99))
    requests = agents.list_requests(seed)
    assert [r.number for r in requests] == list(range(sessions * turns))
    for session in range(1, sessions + 1):
        own = [r for r in requests if r.session == session]
        for earlier, later in pairwise(own):
            assert later.parts[: len(earlier.parts)] == earlier.parts
            assert later.parts[len(earlier.parts)].key == earlier.output_key
            said = earlier.prompt_tokens + earlier.output_tokens
            assert later.prompt_tokens > said


def test_agents_that_stay_on_their_rank_compute_only_what_is_new() -> None:
    agents = Agents(1, 4, 1.0, 50 * SECOND_NS, 300, Fixed(50), Fixed(30))
    outcome = run_one(agents.list_requests(0), [SglangRules(100_000)])
    assert outcome.requests["cached_tokens"].tolist() == [0, 379, 459, 539]


def test_agents_that_await_answers_ask_after_them_however_slow_the_world() -> None:
    agents = Agents(3, 4, 1.0, SECOND_NS, 300, Fixed(50), Fixed(30), await_answers=True)
    outcome = run_one(agents.list_requests(0), [SglangRules(100_000)] * 2)
    requests = agents.list_requests(0)
    ends, arrivals = (
        {r: int(t) for r, t in zip(outcome.requests["request"], outcome.requests[name], strict=True)}
        for name in ("end_ns", "arrival_ns")
    )
    followers = [r for r in requests if r.follows is not None]
    assert len(followers) == 9
    assert all(arrivals[r.number] == ends[r.follows] + r.think_ns for r in followers)
    assert len({r.think_ns for r in followers}) == 9


def test_a_recorded_log_begins_at_zero_and_shares_equal_blocks() -> None:
    rows = [Recorded(5_000, 1_100, 10, (7, 8, 9)), Recorded(9_000, 1_024, 0, (7, 8))]
    first, second = repeat_log(rows)
    assert (first.arrival_ns, second.arrival_ns) == (0, 4_000)
    assert (first.prompt_tokens, second.prompt_tokens) == (1_100, 1_024)
    assert first.parts[:2] == second.parts
    assert second.output_tokens == 1


def test_without_prefix_ids_no_two_prompts_share_anything() -> None:
    first, second = repeat_log([Recorded(0, 10, 1), Recorded(0, 10, 1)])
    assert first.parts[0].key != second.parts[0].key
