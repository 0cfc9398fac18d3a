"""The controllers of SGLang before 0.5.8."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.errors import UsageError
from dprankdiag.simulate.routers.sglang_older import MinimumTokens, ShortestQueue, fill_queues
from tests.simulate.routers.builders import ask, show


def test_shorter_queues_are_filled_to_the_longest_and_then_all_take_turns() -> None:
    # 1, 3 and 4 requests: rank 0 gets 2 to reach 3, then ranks 0 and 1 one each to reach 4; then round robin from 0.
    router = ShortestQueue(3)
    router.observe(0, [show(1, stamp=1), show(2, 1, stamp=1), show(4, stamp=1)])
    assert [router.place(0, ask(number)) for number in range(7)] == [0, 0, 0, 1, 0, 1, 2]


def test_a_report_throws_away_what_is_left_of_the_list() -> None:
    router = ShortestQueue(2)
    router.observe(0, [show(0, stamp=1), show(3, stamp=1)])
    assert router.place(0, ask(0)) == 0
    router.observe(1, [show(5, stamp=2), show(3, stamp=2)])
    assert [router.place(1, ask(number)) for number in range(1, 3)] == [1, 1]


def test_the_same_report_shown_again_does_not_bring_its_turns_back() -> None:
    router = ShortestQueue(2)
    report = [show(0, stamp=1), show(1, stamp=1)]
    router.observe(0, report)
    assert router.place(0, ask(0)) == 0
    router.observe(1, report)
    assert [router.place(1, ask(number)) for number in range(1, 3)] == [0, 1]


def test_where_rooms_decide_they_do_when_the_list_is_used_up() -> None:
    router = ShortestQueue(4, role="decode")
    assert router.place(0, ask(room=7)) == 3


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_filling_ends_with_all_queues_as_long_as_the_longest(counts: list[int]) -> None:
    turns = fill_queues(dict(enumerate(counts)))
    assert [count + turns.count(rank) for rank, count in enumerate(counts)] == [max(counts)] * len(counts)


def test_minimum_tokens_piles_up_between_two_reports_unless_what_was_sent_is_counted() -> None:
    def place(counts_sent: bool) -> list[int]:
        router = MinimumTokens(2, counts_sent=counts_sent)
        router.observe(0, [show(total=100, stamp=1), show(total=150, stamp=1)])
        return [router.place(0, ask(number, 60)) for number in range(4)]

    assert place(False) == [0, 0, 0, 0]
    assert place(True) == [0, 1, 0, 1]


@pytest.mark.parametrize("router", [ShortestQueue(2), MinimumTokens(2, counts_sent=False)])
def test_older_controllers_take_a_demanded_rank_and_refuse_one_out_of_range(
    router: ShortestQueue | MinimumTokens,
) -> None:
    assert router.place(0, ask(pin=1)) == 1
    assert router.decisions[-1].reason == "pinned"
    with pytest.raises(UsageError, match="demanded"):
        router.place(0, ask(pin=2))


def test_what_older_controllers_believe_includes_what_they_sent() -> None:
    shortest, minimum = ShortestQueue(1), MinimumTokens(1, counts_sent=True)
    for router in (shortest, minimum):
        assert router.believed() == [None]
        router.observe(0, [show(2, 1, 50, stamp=1)])
        router.place(0, ask(0, 7))
    assert shortest.believed() == [show(2, 2, 50, stamp=1)]
    assert minimum.believed() == [show(2, 1, 57, stamp=1, used=50)]
