"""Gateways in front of whole engines, and what they remember of prompts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.errors import UsageError
from dprankdiag.simulate.base import Part
from dprankdiag.simulate.decisions import judge_decisions
from dprankdiag.simulate.routers.gateway import EARLIER_CACHE, POLL_NS, CacheAware, Gateway
from dprankdiag.simulate.routers.prefixes import PrefixMemory, name_prefixes
from tests.simulate.routers.builders import MS, ask, show

SYSTEM = Part(1, 900)


def test_round_robin_counts_requests_that_come_back_but_does_not_look_at_them() -> None:
    gateway = Gateway(3, "round_robin")
    assert [gateway.place(0, ask(number)) for number in range(4)] == [0, 1, 2, 0]
    gateway.release(1, ask(0), 0)
    assert gateway.inflight == [1, 1, 1]
    assert gateway.measure is None


def test_two_random_choices_spread_better_than_one() -> None:
    # 2,000 requests to 20 workers. One random choice leaves the busiest about sqrt(2 · 100 · ln 20) ≈ 24 above the mean
    # of 100; of two, the surplus is about ln ln 20 / ln 2 ≈ 1.6.
    gateway = Gateway(20, "power_of_two", seed=3)
    picks = Counter(gateway.place(0, ask(number)) for number in range(2_000))
    assert max(picks.values()) <= 104


def test_polled_loads_take_the_place_of_its_own_counts_until_the_next_poll() -> None:
    # Of two workers, one shows 900 tokens and the other 1,000: for ten seconds every request goes to the first.
    gateway = Gateway(2, "power_of_two", poll_ns=POLL_NS)
    gateway.observe(0, [show(total=900, stamp=0), show(total=1_000, stamp=0)])
    for number in range(50):
        now_ns = number * 100 * MS
        gateway.observe(now_ns, [show(total=90_000, stamp=now_ns), show(total=0, stamp=now_ns)])
        assert gateway.place(now_ns, ask(number)) == 0
    gateway.observe(POLL_NS, [show(total=90_000, stamp=POLL_NS), show(total=0, stamp=POLL_NS)])
    assert gateway.place(POLL_NS, ask(50)) == 1
    last = judge_decisions("gateway", gateway.decisions[49:50], [[show(total=90_000), show()]], gateway.measure)[0]
    assert last.age_ns == (4_900 * MS, 4_900 * MS)
    assert (last.tokens_error, last.better_rank, last.regret) == ((-89_100, 1_000), 1, 90_000.0)


def test_workers_that_do_not_answer_are_judged_by_its_own_counts() -> None:
    gateway = Gateway(2, "power_of_two", poll_ns=POLL_NS)
    gateway.observe(0, [None, None])
    picks = Counter(gateway.place(number, ask(number)) for number in range(40))
    assert picks == {0: 20, 1: 20}
    assert gateway.decisions[2].requests == (1, 1)


def test_a_single_worker_is_no_choice() -> None:
    assert Gateway(1, "power_of_two").place(0, ask()) == 0


def test_a_prompt_goes_where_its_beginning_was_seen() -> None:
    gateway = Gateway(3, "cache_aware")
    first = gateway.place(0, ask(0, parts=(SYSTEM, Part(10, 100))))
    second = gateway.place(0, ask(1, parts=(Part(2, 900), Part(11, 100))))
    assert (first, second) == (0, 1)
    assert gateway.place(0, ask(2, parts=(SYSTEM, Part(12, 100)))) == 0
    assert gateway.place(0, ask(3, parts=(Part(3, 500), SYSTEM))) == 2


def test_a_beginning_that_is_too_little_of_the_prompt_does_not_count() -> None:
    # Half of the second prompt has been seen: enough by today's default, not by the earlier one.
    def place(cache: CacheAware) -> int:
        gateway = Gateway(2, "cache_aware", cache=cache)
        assert gateway.place(0, ask(0, parts=(SYSTEM,))) == 0
        return gateway.place(0, ask(1, parts=(SYSTEM, Part(12, 900))))

    assert place(CacheAware()) == 0
    assert place(EARLIER_CACHE) == 1


def test_prompts_that_begin_alike_share_a_worker_until_it_is_overloaded() -> None:
    # The first 256 tokens count, wherever parts end. One prefix alone would fill one of four workers: it is passed over
    # when it has more than 1.25 times the mean, so it never gets far from its share.
    gateway = Gateway(4, "prefix_hash")
    home = gateway.place(0, ask(0, parts=(Part(1, 200), Part(2, 100))))
    gateway.release(0, ask(0), home)
    assert gateway.place(0, ask(1, parts=(Part(1, 200), Part(2, 56), Part(3, 10)))) == home
    gateway.release(0, ask(1), home)
    for number in range(2, 402):
        gateway.place(0, ask(number, parts=(Part(1, 200), Part(2, 100), Part(number, 50))))
    assert gateway.inflight[home] == max(gateway.inflight)
    assert 100 < max(gateway.inflight) <= 126


def test_different_beginnings_are_spread_over_workers() -> None:
    gateway = Gateway(4, "prefix_hash")
    for number in range(400):
        worker = gateway.place(0, ask(number, parts=(Part(number, 300),)))
        gateway.release(0, ask(number), worker)
    homes = Counter(decision.rank for decision in gateway.decisions)
    # 100 each with a deviation of 8.7.
    assert all(65 <= count <= 135 for count in homes.values())
    assert len(homes) == 4


def test_the_cache_is_preferred_until_loads_are_too_uneven() -> None:
    # Requests of one prefix pile up on worker 0 until it has 3 more than the idlest: the next goes there.
    gateway = Gateway(2, "cache_aware", cache=CacheAware(unbalanced_requests=2, unbalanced_ratio=1.5))
    picks = [gateway.place(0, ask(number, parts=(SYSTEM, Part(100 + number, 10)))) for number in range(5)]
    assert picks == [0, 0, 0, 1, 0]


def test_a_gateway_believes_its_own_counts_which_have_no_age() -> None:
    # It has sent three requests; the worker has 40 more that others sent.
    gateway = Gateway(2, "power_of_two")
    for number in range(4):
        gateway.place(0, ask(number))
    (error,) = judge_decisions("gateway", gateway.decisions[3:], [[show(42), show(1)]], gateway.measure)
    believed = gateway.decisions[3].requests
    assert believed is not None
    assert sum(count or 0 for count in believed) == 3
    assert error.age_ns == (None, None)
    assert error.requests_error == ((believed[0] or 0) - 42, (believed[1] or 0) - 1)
    assert gateway.believed() == [None, None]


def test_a_demanded_worker_is_taken_or_refused() -> None:
    gateway = Gateway(2, "cache_aware")
    assert gateway.place(0, ask(pin=1)) == 1
    with pytest.raises(UsageError, match="demanded"):
        gateway.place(0, ask(pin=2))


def test_a_memory_that_is_full_forgets_leaves_before_their_roots() -> None:
    memory = PrefixMemory(max_tokens=1_100)
    memory.insert(name_prefixes(ask(parts=(SYSTEM, Part(10, 100)))))
    memory.insert(name_prefixes(ask(parts=(SYSTEM, Part(11, 150)))))
    assert memory.tokens == 1_050
    assert memory.match(name_prefixes(ask(parts=(SYSTEM, Part(10, 100))))) == 900
    assert memory.match(name_prefixes(ask(parts=(SYSTEM, Part(11, 150))))) == 1_050


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=5), min_size=1, max_size=30), st.integers(50, 2_000))
def test_a_memory_never_holds_more_than_it_may_and_never_matches_more_than_the_prompt(
    prompts: list[list[int]], limit: int
) -> None:
    memory = PrefixMemory(max_tokens=limit)
    for keys in prompts:
        request = ask(parts=tuple(Part(key, 10 * key) for key in keys))
        assert memory.match(name_prefixes(request)) <= request.prompt_tokens
        memory.insert(name_prefixes(request))
        assert memory.tokens <= limit
        if request.prompt_tokens <= limit:
            assert memory.match(name_prefixes(request)) == request.prompt_tokens
