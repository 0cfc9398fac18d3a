"""The order of answers is that of their counters; what contradicts it is said or refused."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.analysis.ledger_order import order_answers, stamp_of
from dprankdiag.errors import UsageError
from dprankdiag.model.ledgers import LedgerAnswer
from tests.analysis.ledger_answers import answer, counting, loads

SECOND = 10**9
NOW_NS = 1_764_000_000 * SECOND


def order(*answers: LedgerAnswer, at_s: list[float | None] | None = None) -> tuple[list[str], tuple[str, ...]]:
    """Return the names in order, and the notes."""
    ordered, _, notes = order_answers(answers, at_s or [None] * len(answers))
    return [one.where for one in ordered], notes


@given(st.permutations(range(6)))
def test_counters_order_answers_whatever_their_names(names: list[int]) -> None:
    answers = [counting([10.0 * step, 5.0 * step, 0.0, step], f"{name}.prom") for step, name in enumerate(names)]
    expected = [one.where for one in answers]
    shuffled = sorted(answers, key=lambda one: one.where)
    assert order(*shuffled) == (expected, ())


def test_the_places_before_are_returned_too() -> None:
    answers = [counting(9.0, "late"), counting(1.0, "early")]
    assert order_answers(answers, [None, None])[1] == (1, 0)


def test_answers_that_tell_the_same_are_of_one_moment_and_the_note_names_both() -> None:
    names, notes = order(counting(5.0, "a"), counting(5.0, "b"), counting(7.0, "c"))
    assert names == ["a", "c"]
    assert notes == ("b is of the same moment as a: nothing has grown",)


def test_gauges_that_moved_while_counters_stand_are_two_moments() -> None:
    one = answer({"decode_tokens": 5.0, "running_requests": 1.0}, where="a")
    other = answer({"decode_tokens": 5.0, "running_requests": 2.0}, where="b")
    assert order(one, other) == (["a", "b"], ())


def test_answers_without_counters_keep_the_order_of_their_names_and_it_is_said() -> None:
    names, notes = order(answer({"running_requests": 3.0}, where="b"), answer({"running_requests": 9.0}, where="a"))
    assert names == ["a", "b"]
    assert notes == ("a and b hold no counters: taken in the order of their names",)


def test_answers_of_no_rank_are_not_said_to_have_an_order() -> None:
    names, notes = order(*(answer({}, ranks=0, where=where, unlabelled=True) for where in "ab"))
    assert (names, notes) == (["a", "b"], ())


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_that_restarted_is_outvoted_and_named(first: int) -> None:
    answers = [counting([100.0, 100.0, 100.0, 100.0], "z"), counting([150.0, 150.0, 3.0, 150.0], "a")]
    names, notes = order(*(answers if first == 0 else answers[::-1]))
    assert names == ["z", "a"]
    assert notes == ("counters of rank 2 fell: restarted between z and a",)


def test_a_restarted_rank_is_named_by_its_number_although_others_are_new() -> None:
    old = answer({"decode_tokens": [100.0, 100.0, 100.0]}, ranks=(4, 6, 7), where="a")
    new = answer({"decode_tokens": [9.0, 150.0, 3.0, 150.0]}, ranks=(2, 4, 6, 7), where="b")
    _, notes = order(old, new)
    assert notes == ("counters of rank 6 fell: restarted between a and b",)


def test_a_restarted_rank_that_has_passed_some_of_its_counters_has_no_vote() -> None:
    told = {"decode_tokens": [100.0] * 4, "prefill_tokens": [100.0] * 4}
    later = {"decode_tokens": [150.0, 150.0, 5.0, 150.0], "prefill_tokens": [150.0, 150.0, 500.0, 150.0]}
    names, _ = order(answer(later, where="a"), answer(told, where="z"))
    assert names == ["z", "a"]


def test_as_many_ranks_that_grow_as_fall_are_refused_with_the_mend() -> None:
    with pytest.raises(UsageError, match=r"grow as fall.*name them: dprankdiag analyze A=PATH B=PATH"):
        order(counting([1.0, 1.0, 9.0, 9.0]), counting([9.0, 9.0, 1.0, 1.0], "b"))


def test_counters_that_grow_and_fall_on_one_rank_are_of_two_targets() -> None:
    one = {"decode_tokens": 100.0, "prefill_tokens": 5.0}
    other = {"decode_tokens": 5.0, "prefill_tokens": 100.0}
    with pytest.raises(UsageError, match="two targets with equal labels"):
        order(answer(one), answer(other, where="b"))


def test_counters_not_told_tell_nothing() -> None:
    names, _ = order(counting([9.0, np.nan, 1.0, 1.0], "late"), counting([1.0, 50.0, np.nan, 1.0], "early"))
    assert names == ["early", "late"]


@pytest.mark.parametrize("swap", [False, True])
def test_the_users_seconds_win_over_counters(swap: bool) -> None:
    answers = [counting(1.0, "a"), counting(9.0, "b")]
    at_s: list[float | None] = [15.0, 0.0] if swap else [0.0, 15.0]
    assert order(*answers, at_s=at_s)[0] == (["b", "a"] if swap else ["a", "b"])


def test_seconds_said_of_some_only_are_refused() -> None:
    with pytest.raises(UsageError, match="its seconds are not said"):
        order(counting(1.0), counting(9.0, "b"), at_s=[0.0, None])


def test_two_answers_of_one_second_are_one_and_it_is_said() -> None:
    fuller = answer({"decode_tokens": 1.0, "running_requests": 1.0, "used_tokens": 1.0}, where="b")
    names, notes = order(counting(1.0, "a"), fuller, counting(9.0, "c"), at_s=[5.0, 5.0, 20.0])
    assert names == ["b", "c"]
    assert notes == ("a left out: b is said to be of the same second",)


@pytest.mark.parametrize("turn", list(permutations(range(3))))
def test_stamps_order_answers(turn: tuple[int, ...]) -> None:
    answers = [loads(100.0 + 5 * step, f"{step}") for step in range(3)]
    assert order(*(answers[step] for step in turn))[0] == ["0", "1", "2"]


def test_two_formats_of_the_same_snapshots_are_one_moment_and_the_fuller_is_kept() -> None:
    plain = loads(100.0, "plain", taken_ns=101 * SECOND)
    told = {"load_running_requests": 20.0, "load_stamp_s": 100.0, "load_used_tokens": 9.0}
    fuller = answer(told, where="fuller", interface="sglang-loads", model=None)
    names, _ = order(plain, fuller, loads(115.0, "next", taken_ns=116 * SECOND))
    assert names == ["fuller", "next"]


def test_the_same_snapshots_given_at_different_seconds_are_moments_at_which_nobody_published() -> None:
    answers = [loads(100.0, f"{second}", taken_ns=second * SECOND) for second in (101, 131, 161)]
    assert order(*answers[::-1]) == (["101", "131", "161"], ())


def test_the_stamp_is_that_of_the_freshest_snapshot() -> None:
    assert stamp_of(loads(0.0)) == 0.0
    told: dict[str, Any] = {"load_stamp_s": [3.0, 9.0, np.nan, 1.0]}
    assert stamp_of(answer(told)) == 9.0
    assert stamp_of(answer({"decode_tokens": 1.0}, taken_ns=NOW_NS)) == NOW_NS / SECOND
    assert stamp_of(answer({"decode_tokens": 1.0})) is None
