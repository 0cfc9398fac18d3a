"""The controller of SGLang: what its own code did, and what follows from that."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.errors import UsageError
from dprankdiag.simulate.routers.sglang import (
    REFRESH_EVERY_DISPATCH,
    SINCE_0_5_8,
    SglangController,
    worst_age_ns,
)
from tests.simulate.routers.builders import MS, ask, show


def read_cases(payloads: Path) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(
        (payloads / "sglang-0.5.23" / "dp-budget" / "cases.json").read_text("utf-8")
    )
    return cases


def test_the_budget_picks_what_the_engines_own_code_picked(payloads: Path) -> None:
    cases = [case for case in read_cases(payloads) if "method" in case]
    for case in cases:
        router = SglangController(len(case["loads"]), case["method"])
        router.observe(
            0,
            [
                show(load["num_running_reqs"], load["num_waiting_reqs"], load["num_total_tokens"], stamp=1)
                for load in case["loads"]
            ],
        )
        picks = [router.place(number, ask(number, prompt)) for number, prompt in enumerate(case["prompt_tokens"])]
        assert picks == case["picks"]
        assert router.requests == case["after_requests"]
        assert router.tokens == case["after_tokens"]
    assert len(cases) == 4


def test_a_snapshot_read_before_keeps_the_picks_and_a_new_one_forgets_them(payloads: Path) -> None:
    case = read_cases(payloads)[4]
    router = SglangController(2, "total_requests")
    board = [show(3, stamp=1), show(1, stamp=1)]
    router.observe(0, board)
    assert [router.place(0, ask(number)) for number in range(3)] == case["picks"]
    assert router.requests == case["before"]
    # A pinned request makes the controller read the board and is not counted itself.
    router.place(30 * MS, ask(3, pin=0))
    assert router.requests == case["after_same_timestamp"]
    router.observe(40 * MS, [board[0], show(1, stamp=2)])
    router.place(60 * MS, ask(4, pin=0))
    assert router.requests == case["after_new_timestamp_for_rank1"]


def test_the_board_is_read_at_most_every_twenty_milliseconds() -> None:
    router = SglangController(2, "total_requests")
    router.observe(0, [show(5, stamp=1), show(9, stamp=1)])
    router.place(0, ask())
    router.observe(5 * MS, [show(50, stamp=2), show(0, stamp=2)])
    assert router.place(20 * MS - 1, ask()) == 0
    assert router.place(20 * MS, ask()) == 1


def place_burst(router: SglangController) -> Counter[int]:
    """Send twenty requests in twenty milliseconds to ranks that show 4, 3, 4 and 4 requests and publish nothing new."""
    router.observe(0, [show(4, stamp=1), show(3, stamp=1), show(4, stamp=1), show(4, stamp=1)])
    return Counter(router.place(number * MS, ask(number, 500)) for number in range(20))


def test_a_burst_is_spread_by_counting_and_piled_up_by_reading_each_time() -> None:
    # Counting: 15 + 20 requests over four ranks end as 9, 9, 9 and 8; rank 1 has room for one more than the others,
    # and the surplus of three goes to the lowest ranks: 5, 6, 5 and 4 of the twenty.
    assert place_burst(SglangController(4, "total_requests")) == {0: 5, 1: 6, 2: 5, 3: 4}
    # Reading at each dispatch: rank 1 shows 3 requests every time.
    assert place_burst(SglangController(4, "total_requests", budget=REFRESH_EVERY_DISPATCH)) == {1: 20}


def test_before_lengths_were_counted_a_burst_by_tokens_went_to_one_rank() -> None:
    def burst(router: SglangController) -> Counter[int]:
        router.observe(0, [show(2, total=900, stamp=1), show(2, total=1_000, stamp=1)])
        return Counter(router.place(number, ask(number, 500)) for number in range(10))

    assert burst(SglangController(2, "total_tokens", budget=SINCE_0_5_8)) == {0: 10}
    # 900 + 500 a and 1000 + 500 b stay within 500 of each other, beginning with rank 0.
    assert burst(SglangController(2, "total_tokens")) == {0: 5, 1: 5}


def test_a_long_prompt_is_counted_whole_though_most_of_it_is_cached() -> None:
    # The prompt has 100,000 tokens of which the rank holds 90 %: the ledger says 100,000, the work is 10,000.
    router = SglangController(2, "total_tokens")
    router.observe(0, [show(stamp=1), show(stamp=1)])
    assert router.place(0, ask(0, 100_000)) == 0
    assert router.tokens == [100_000, 0]
    # So the next 99 prompts of 1,000 tokens all go to the other rank: 99,000 tokens of work against 10,000.
    picks = Counter(router.place(number, ask(number, 1_000)) for number in range(1, 100))
    assert picks == {1: 99}


def test_by_tokens_the_rank_of_the_long_request_starves_and_the_others_get_the_short_ones() -> None:
    # One request of 64,000 tokens on rank 0, seven ranks with nothing. 630 requests of 700 tokens: each of the seven
    # gets 90 (63,000 tokens), and rank 0 none. A decode step then has 1 row there and 90 rows elsewhere.
    router = SglangController(8, "total_tokens")
    router.observe(0, [show(1, total=64_000, stamp=1), *[show(stamp=1)] * 7])
    picks = Counter(router.place(number, ask(number, 700)) for number in range(630))
    assert picks == dict.fromkeys(range(1, 8), 90)


def test_round_robin_goes_over_active_ranks_and_health_checks_have_their_own_turn() -> None:
    router = SglangController(4, "round_robin", active=[True, False, True, True])
    picks = [router.place(0, ask(number, probe=number % 2 == 1)) for number in range(8)]
    assert picks[::2] == [0, 2, 3, 0]
    assert picks[1::2] == [0, 2, 3, 0]
    assert {decision.reason for decision in router.decisions} == {"policy", "probe"}


def test_the_budget_does_not_know_which_ranks_are_active() -> None:
    router = SglangController(2, "total_requests", active=[True, False])
    router.observe(0, [show(3, stamp=1), None])
    assert router.place(0, ask()) == 1


def test_a_health_check_is_no_load() -> None:
    router = SglangController(2, "total_requests")
    router.place(0, ask(probe=True))
    assert router.requests == [0, 0]


def test_rooms_go_modulo_all_slots_also_to_one_that_is_not_active() -> None:
    router = SglangController(4, "follow_bootstrap_room", active=[True, True, False, True])
    assert [router.place(0, ask(room=room)) for room in (0, 5, 6, 1_000_003)] == [0, 1, 2, 3]


def test_auto_means_rooms_for_prefill_and_turns_for_the_rest() -> None:
    assert SglangController(2, role="prefill").policy == "follow_bootstrap_room"
    assert SglangController(2, role="decode").policy == "round_robin"
    assert SglangController(2).policy == "round_robin"


@pytest.mark.parametrize("rank", [-1, 2, 7])
def test_a_demanded_rank_out_of_range_is_refused(rank: int) -> None:
    with pytest.raises(UsageError, match="demanded"):
        SglangController(2).place(0, ask(pin=rank))


def test_a_demanded_rank_overrides_the_policy_and_is_not_counted() -> None:
    router = SglangController(3, "total_tokens")
    router.observe(0, [show(9, total=9_000, stamp=1), show(stamp=1), show(stamp=1)])
    assert router.place(0, ask(0, 50, pin=0)) == 0
    assert router.tokens == [9_000, 0, 0]


def test_a_request_without_a_room_is_refused_where_rooms_decide() -> None:
    with pytest.raises(UsageError, match="no room"):
        SglangController(2, "follow_bootstrap_room").place(0, ask())


def test_with_no_active_rank_a_request_is_refused() -> None:
    with pytest.raises(UsageError, match="no rank is active"):
        SglangController(2, "round_robin", active=[False, False]).place(0, ask())


def test_the_ledger_shows_picks_as_waiting_requests_and_nothing_of_ranks_that_never_published() -> None:
    router = SglangController(2, "total_tokens")
    router.observe(0, [show(3, 1, 700, stamp=5), None])
    assert router.place(0, ask(0, 40)) == 1
    assert router.place(0, ask(1, 1_000)) == 1
    assert router.place(0, ask(2, 10)) == 0
    assert router.believed() == [show(3, 2, 710, stamp=5, used=700), None]


def test_the_ledger_shown_is_the_one_that_the_next_request_is_placed_by() -> None:
    router = SglangController(2, "total_requests")
    router.observe(0, [show(1, stamp=1), show(2, stamp=1)])
    assert router.believed() == [show(1, stamp=1), show(2, stamp=1)]
    router.place(0, ask())
    router.observe(19 * MS, [show(7, stamp=2), show(8, stamp=2)])
    assert router.believed() == [show(1, 1, stamp=1), show(2, stamp=1)]
    router.observe(20 * MS, [show(7, stamp=2), show(8, stamp=2)])
    assert router.believed() == [show(7, stamp=2), show(8, stamp=2)]
    # Looking does not count as reading: the throttle still runs from the last dispatch.
    assert router.requests == [2, 2]


@given(
    publish_ms=st.integers(1, 500),
    gaps_ms=st.lists(st.integers(0, 60), min_size=1, max_size=200),
)
def test_no_belief_is_older_than_publishing_and_throttling_allow_while_requests_come(
    publish_ms: int, gaps_ms: list[int]
) -> None:
    # Where requests stop coming for longer than the throttle, the first one after it refreshes: the bound holds.
    router = SglangController(1, "total_requests")
    now_ms = 0
    for number, gap_ms in enumerate(gaps_ms):
        now_ms += gap_ms
        router.observe(now_ms * MS, [show(stamp=now_ms // publish_ms * publish_ms * MS)])
        router.place(now_ms * MS, ask(number))
    ages = [decision.at_ns - (decision.stamps_ns[0] or 0) for decision in router.decisions]
    assert max(ages) <= worst_age_ns(publish_ms * MS)
