"""What the classifiers say in the same words: factors that undo, and patterns over ranks and steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dprankdiag.analysis.standouts import Standout
from dprankdiag.classifiers.base import (
    count_ranks,
    even_out,
    host_evidence,
    lift_off,
    name_numbers,
    period_of,
    ranks_of,
    scale,
    times,
    unseen_member,
    waiting_evidence,
    when_of,
    who_of,
)
from tests.analysis.builders import Array, observe_steps, on

N, RANKS = 60, 8


def standout(ranks: list[int], steps: Array | slice = slice(None), **changes: Any) -> Standout:
    marks = np.zeros((N, RANKS), bool)
    covered = np.arange(N)[steps]
    mask = np.isin(np.arange(RANKS), ranks)
    marks[covered] = mask
    known = Standout(int(covered[0]), int(covered[-1]) + 1, mask, np.where(mask, 1.5, 1.0), 1.0, marks)
    return replace(known, **changes)


def work(seed: int = 0) -> Array:
    drawn = np.random.default_rng(seed).uniform(90, 110, (N, RANKS))
    drawn[:, 3] *= 2
    return drawn


def test_evening_out_a_run_of_steps_conserves_its_work_and_leaves_each_rank_its_noise() -> None:
    values, found = work(), standout([3], slice(10, 50))
    factor = even_out(values, found)
    evened = values * factor
    assert evened[10:50].sum() == pytest.approx(values[10:50].sum())
    others = np.arange(RANKS) != 3
    before, after = values[10:50].mean(axis=0), evened[10:50].mean(axis=0)
    np.testing.assert_allclose(after[others] / after[others].mean(), before[others] / before[others].mean())
    assert after[3] == pytest.approx(after[others].mean())
    assert np.ptp(factor[10:50], axis=0).max() == pytest.approx(0)
    assert (factor[:10] == 1).all()
    assert (factor[50:] == 1).all()


def test_ranks_that_do_next_to_nothing_are_brought_to_the_mean() -> None:
    values, found = np.full((N, RANKS), 1.0), standout([3], slice(0, N))
    values[:, 3] = 100.0
    np.testing.assert_allclose(values * even_out(values, found), values.mean())


def test_evening_out_single_steps_conserves_the_work_of_each() -> None:
    values, found = work(), standout([3], np.array([5, 20]), is_burst=True)
    evened = values * even_out(values, found)
    np.testing.assert_allclose(evened.sum(axis=1), values.sum(axis=1))
    assert np.ptp(evened[5]) == pytest.approx(0)
    np.testing.assert_array_equal(evened[6], values[6])


def test_evening_out_leaves_ranks_without_work_alone() -> None:
    values = work()
    values[:, 0] = 0
    assert np.isfinite(even_out(values, standout([3]))).all()


def test_lifting_off_brings_the_named_ranks_to_the_others_and_touches_nobody_else() -> None:
    values, found = work(), standout([3], slice(10, 50))
    lifted = values * lift_off(values, found)
    rest = np.median(np.delete(np.median(values[10:50], axis=0), 3))
    assert np.median(lifted[10:50, 3]) == pytest.approx(rest)
    np.testing.assert_array_equal(np.delete(lifted, 3, axis=1), np.delete(values, 3, axis=1))
    np.testing.assert_array_equal(lifted[50:], values[50:])


def test_lifting_off_never_adds_work() -> None:
    values = work()
    assert (lift_off(values, standout([0])) <= 1).all()


def test_a_factor_is_spread_over_the_grids() -> None:
    seen = observe_steps(N)
    made = scale(seen, "attention", np.full((N, RANKS), 0.5))
    assert made.component == "attention"
    assert [factor.shape for factor in made.factors] == [(N, 1, RANKS)]


@pytest.mark.parametrize(
    "steps,when",
    [
        (slice(None), "steady"),
        (slice(30, 60), "onset"),
        (slice(0, 30), "onset"),
        (slice(50, 60), "steady"),
        (slice(5, 60), "steady"),
    ],
)
def test_an_onset_has_twenty_steps_on_each_side(steps: slice, when: str) -> None:
    assert when_of(observe_steps(N), standout([3], steps)) == when


def test_single_steps_are_a_burst_or_periodic() -> None:
    seen = observe_steps(N)
    regular = standout([3], np.arange(4, 60, 8), is_burst=True)
    random = standout([3], np.array([4, 5, 31, 33, 58]), is_burst=True)
    assert (when_of(seen, regular), when_of(seen, random)) == ("periodic", "burst")
    assert period_of(seen, regular) == pytest.approx(8 * seen.median_step_ns, rel=0.02)
    assert period_of(seen, random) is None
    assert period_of(seen, standout([3])) is None


@pytest.mark.parametrize(
    "ranks,in_turn,who,named",
    [
        ([3], False, "one", (3,)),
        ([3, 5], False, "group", (3, 5)),
        ([3, 5], True, "rotating", (3, 5)),
        (list(range(RANKS)), True, "all", ()),
    ],
)
def test_where_all_take_turns_nobody_is_named(
    ranks: list[int], in_turn: bool, who: str, named: tuple[int, ...]
) -> None:
    found = standout(ranks, in_turn=in_turn)
    assert (who_of(found), ranks_of(found)) == (who, named)


def test_the_late_rank_is_shown_to_wait_least() -> None:
    seen = observe_steps(N, factor={"attention": on(3, 2.0)})
    values = {item.name: item.value or 0.0 for item in waiting_evidence(seen, [3], np.ones(N, bool))}
    assert values["wait_ns_per_step"] < 0.2 * values["peers_wait_ns_per_step"]


def test_a_member_that_was_not_recorded_is_named() -> None:
    seen = observe_steps(N)
    assert unseen_member(seen) is None
    missing = replace(seen, abilities=replace(seen.abilities, missing_ranks=(8, 9)))
    assert "ranks 8, 9 were not recorded" in (unseen_member(missing) or "")


@pytest.mark.parametrize(
    "ranks, text",
    [
        ((3,), "rank 3"),
        ((1, 2), "ranks 1, 2"),
        ((2, 1, 0, 7), "ranks 0-2, 7"),
        ((*range(12), 14, 15, 16), "ranks 0-11, 14-16"),
    ],
)
def test_runs_of_rank_numbers_are_joined(ranks: tuple[int, ...], text: str) -> None:
    assert name_numbers(ranks) == text


def test_one_rank_is_named_and_several_are_counted() -> None:
    assert (count_ranks((3,)), count_ranks((1, 2, 3))) == ("rank 3", "3 ranks")


@pytest.mark.parametrize(
    "ratio, text", [(2.449, "2.45 ×"), (4210.9, "4211 ×"), (2.1e9, "2.1e+09 ×"), (0.918, "0.918 ×")]
)
def test_factors_stay_readable_over_all_orders(ratio: float, text: str) -> None:
    assert times(ratio) == text


@pytest.mark.parametrize(
    "hosts,ranks,named",
    [
        ("aaaabbbb", [4, 5, 6, 7], ["all 4 ranks of host b, and no other rank"]),
        ("aabbccdd", [0, 1, 4, 5], ["all 4 ranks of hosts a, c, and no other rank"]),
        ("aaaabbbb", [4, 5, 6], []),
        ("aaaabbbb", [3, 4, 5, 6, 7], []),
        ("aaaaaaaa", [0, 1, 2, 3, 4, 5, 6, 7], []),
        ("abcdefgh", [3], []),
        ("aaaa????", [0, 1, 2, 3], []),
    ],
    ids=["one-host", "two-hosts", "part", "more", "only-host", "host-of-one", "unknown"],
)
def test_hosts_are_named_where_the_ranks_are_all_they_have(hosts: str, ranks: list[int], named: list[str]) -> None:
    seen = observe_steps(N)
    homes = [None if host == "?" else host for host in hosts]
    at_home = tuple(replace(rank, host=host) for rank, host in zip(seen.ranks, homes, strict=True))
    assert [item.text for item in host_evidence(replace(seen, ranks=at_home), ranks)] == named
