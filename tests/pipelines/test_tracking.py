"""Findings that last: raised after two moments, cleared after 16 of 20, and told by how they came."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.model.diagnosis import Finding
from dprankdiag.model.ledgers import BoolArray, Ledger
from dprankdiag.pipelines.tracking import (
    CLEAR_LAST,
    FEWEST_MOMENTS,
    LEAVE_LAST,
    RAISE_LAST,
    SHORT_SHARE,
    WINDOW_S,
    Tracker,
    find_episodes,
    is_series,
    judge_moment,
)
from dprankdiag.units import NS_PER_S
from tests.builders import finding
from tests.ledgers import build_ledger


def found(*ranks: int, cause: str = "load.requests", **more: Any) -> Finding:
    return replace(finding(), cause=cause, ranks=ranks, who="one" if len(ranks) == 1 else "group", **more)


def follow(moments: Iterable[Sequence[Finding]]) -> list[dict[str, tuple[int, ...]]]:
    """Return the ranks named by cause after each moment, one a second."""
    tracker = Tracker()
    return [
        {one.cause: one.ranks for one in tracker.observe(float(at), findings)} for at, findings in enumerate(moments)
    ]


def named(hits: str) -> list[bool]:
    """Tell at which moments a rank is named that is found where the text has an x."""
    return [bool(now) for now in follow([found(3)] if mark == "x" else [] for mark in hits)]


def test_a_rank_is_named_at_the_second_moment_in_a_row() -> None:
    assert named("xxx") == [False, True, True]
    assert not any(named("x.x.x.x.x"))


def test_a_named_rank_stays_until_16_of_20_moments_do_not_show_it() -> None:
    shown = named("xxx" + "." * 24)
    assert shown[: 3 + 15] == [False] + [True] * 17
    assert not any(shown[3 + 15 :])


def test_one_window_that_shows_nothing_ends_no_verdict() -> None:
    assert all(named("xx" * 8 + "." * 10 + "xx" * 8)[1:])


def test_who_is_meant_changes_within_ten_seconds_where_a_cause_goes_on_without_a_rank() -> None:
    both, one = [found(3, 5)], [found(3)]
    shown = [names["load.requests"] for names in follow([both] * 8 + [one] * 8)[1:]]
    assert shown[: 7 + LEAVE_LAST - 1] == [(3, 5)] * (7 + LEAVE_LAST - 1)
    assert shown[7 + LEAVE_LAST - 1 :] == [(3,)] * (8 - LEAVE_LAST + 1)
    assert SHORT_SHARE * WINDOW_S + LEAVE_LAST <= 10
    now_and_then = follow([both] * 3 + [one, one, both] * 4)
    assert all(names["load.requests"] == (3, 5) for names in now_and_then[1:])


def test_a_rank_that_is_told_for_another_cause_of_the_class_leaves_the_first_one_as_soon() -> None:
    first, then = [found(3, cause="load.context")], [found(3, cause="load.prefill")]
    shown = follow([first] * 6 + [then] * 8)
    assert shown[6 + LEAVE_LAST - 2] == {"load.context": (3,), "load.prefill": (3,)}
    assert shown[6 + LEAVE_LAST - 1] == {"load.prefill": (3,)}
    of_other_class = follow([first] * 6 + [[found(3, cause="single_point.host")]] * 8)
    assert set(of_other_class[-1]) == {"load.context", "single_point.host"}


@given(st.text("x.", min_size=20, max_size=60))
def test_at_a_threshold_nothing_flickers(hits: str) -> None:
    """Between two changes of a verdict lie so many moments as it takes to raise or to clear it."""
    shown = named(hits)
    changes = [at for at, (one, other) in enumerate(itertools.pairwise(shown)) if one != other]
    assert all(later - earlier >= RAISE_LAST for earlier, later in itertools.pairwise(changes))
    for at, now in enumerate(shown):
        if now and not shown[at - 1]:
            assert hits[at - RAISE_LAST + 1 : at + 1] == "x" * RAISE_LAST


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_a_rank_found_at_random_moments_is_either_named_or_not_for_long(share: float) -> None:
    draws = np.random.default_rng(5).random(2000) < share
    shown = named("".join("x" if hit else "." for hit in draws))
    flips = sum(one != other for one, other in itertools.pairwise(shown))
    assert flips < sum(one != other for one, other in itertools.pairwise(draws)) / 4


def test_the_onset_is_the_first_of_the_moments_that_raised_it() -> None:
    tracker = Tracker()
    for at in range(20):
        shown = tracker.observe(float(at), [found(3)] if at >= 10 else [])
    (one,) = shown
    assert one.onset_ns == 10 * NS_PER_S


def test_ranks_of_a_finding_come_and_go_one_by_one() -> None:
    sets = [(1, 2)] * 3 + [(2, 3)] * 12
    shown = follow([found(*ranks)] for ranks in sets)
    assert shown[2] == {"load.requests": (1, 2)}
    assert shown[5] == {"load.requests": (1, 2, 3)}
    assert shown[-1] == {"load.requests": (2, 3)}


def test_a_rank_that_is_left_alone_is_one_and_no_group() -> None:
    tracker = Tracker()
    for at in range(20):
        shown = tracker.observe(float(at), [found(1, 2) if at < 4 else found(2)])
    assert [(one.ranks, one.who) for one in shown] == [((2,), "one")]


def test_two_causes_at_once_are_followed_apart() -> None:
    both = [found(3), found(6, cause="single_point.host")]
    shown = follow([both] * 5 + [[found(3)]] * 24)
    assert shown[4] == {"load.requests": (3,), "single_point.host": (6,)}
    assert shown[-1] == {"load.requests": (3,)}


def test_engines_are_followed_apart() -> None:
    tracker = Tracker()
    for at in range(4):
        shown = tracker.observe(float(at), [found(3, engine="a"), found(3, engine="b")])
    assert {one.engine for one in shown} == {"a", "b"}


def test_a_finding_without_ranks_lasts_too() -> None:
    stale = replace(found(cause="ledger.stale"), who="all")
    assert follow([[stale]] * 3)[-1] == {"ledger.stale": ()}


def test_the_gravest_goes_first() -> None:
    tracker = Tracker()
    for at in range(3):
        shown = tracker.observe(
            float(at), [found(1, severity="info"), found(2, cause="load.context", severity="critical")]
        )
    assert [one.severity for one in shown] == ["critical", "info"]


@given(st.lists(st.lists(st.integers(0, 4), max_size=3, unique=True), min_size=1, max_size=40))
def test_other_numbers_for_the_ranks_change_only_names(sets: list[list[int]]) -> None:
    plain = follow([found(*sorted(ranks))] if ranks else [] for ranks in sets)
    turned = follow([found(*sorted(4 - rank for rank in ranks))] if ranks else [] for ranks in sets)
    assert [
        {cause: tuple(sorted(4 - rank for rank in ranks)) for cause, ranks in now.items()} for now in plain
    ] == turned


def day(skewed: BoolArray, rank: int = 3) -> Ledger:
    """Make a ledger of one moment a second in which a rank holds four times as much at some moments."""
    ledger = build_ledger({"moments": len(skewed), "seconds": float(len(skewed) - 1)})
    factor = np.ones((len(skewed), 8))
    factor[skewed, rank] = 4.0
    values = dict(ledger.values)
    for name in ("load_running_requests", "load_used_tokens"):
        values[name] = values[name] * factor
    for name in ("scheduled_tokens", "scheduled_pairs", "decode_tokens"):
        values[name] = np.cumsum(np.diff(values[name], axis=0, prepend=0.0) * factor, axis=0)
    return replace(ledger, values=values)


def at(seconds: int, *spans: tuple[int, int]) -> BoolArray:
    mask = np.zeros(seconds, bool)
    for first, stop in spans:
        mask[first:stop] = True
    return mask


def test_a_few_moments_are_no_series() -> None:
    assert not is_series(build_ledger({}))
    assert not is_series(build_ledger({"moments": 60, "seconds": None}))
    assert not is_series(build_ledger({"moments": FEWEST_MOMENTS, "seconds": 5.0}))
    assert is_series(build_ledger({"moments": 60, "seconds": 60.0}))


def test_what_lasts_all_the_time_is_steady() -> None:
    (one,) = find_episodes(day(at(120, (0, 120))))
    assert (one.cause, one.ranks, one.when, one.onset_ns) == ("load.requests", (3,), "steady", None)


@pytest.mark.parametrize("onset_s", [40, 75])
def test_what_begins_and_stays_has_an_onset_near_its_begin(onset_s: int) -> None:
    (one,) = find_episodes(day(at(150, (onset_s, 150))))
    assert (one.cause, one.when) == ("load.requests", "onset")
    assert one.onset_ns is not None
    assert onset_s <= one.onset_ns / NS_PER_S <= onset_s + 10


def test_what_ends_again_is_a_burst_within_its_window() -> None:
    (one,) = find_episodes(day(at(200, (80, 110))))
    assert (one.when, one.onset_ns) == ("burst", None)
    assert 80 <= one.window.start_ns / NS_PER_S <= 90
    assert 110 <= one.window.end_ns / NS_PER_S <= 125


def test_what_returns_again_and_again_is_periodic_with_its_period() -> None:
    (one,) = find_episodes(day(at(420, *((start, start + 20) for start in range(20, 420, 60)))))
    assert one.when == "periodic"
    assert one.period_ns is not None
    assert one.period_ns / NS_PER_S == pytest.approx(60, abs=3)


def test_even_days_have_no_episodes() -> None:
    assert find_episodes(day(at(120))) == []


def test_a_single_moment_of_skew_is_no_episode() -> None:
    assert find_episodes(day(at(120, (60, 61)))) == []


def test_windows_count_from_the_start_of_the_ledger_in_utc() -> None:
    ledger = replace(day(at(200, (80, 110))), start_ns=1_764_000_000 * NS_PER_S)
    (one,) = find_episodes(ledger)
    assert one.window.start_ns >= 1_764_000_080 * NS_PER_S


def test_a_moment_is_judged_by_the_seconds_before_it() -> None:
    ledger = day(at(60, (30, 60)))
    assert judge_moment(ledger, 20)[1] == []
    assert [one.ranks for one in judge_moment(ledger, 45)[1]] == [(3,)]
    assert judge_moment(replace(ledger, seconds=None), 45)[0].window.first == 45


def test_hits_are_forgotten_after_as_many_moments_as_are_looked_at() -> None:
    assert CLEAR_LAST >= RAISE_LAST
    assert not any(named("x" + "." * CLEAR_LAST + "x"))
