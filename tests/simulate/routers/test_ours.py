"""The two policies that no engine has, against those that engines have."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.errors import UsageError
from dprankdiag.simulate.base import Part
from dprankdiag.simulate.routers.ours import RemainingPairs, UncachedTokens
from dprankdiag.simulate.routers.sglang import SglangController
from tests.simulate.routers.builders import MS, ask, show

STEP_NS = 30 * MS


def make_pairs(n_ranks: int) -> RemainingPairs:
    return RemainingPairs(n_ranks, step_ns=STEP_NS, guess_output=lambda request: request.output_tokens)


def test_a_prompt_counts_by_what_its_rank_has_not_seen() -> None:
    # 100,000 tokens of which rank 0 has 90,000: it is sent there and counts 10,000; prompts of 1,000 then go to rank 1
    # until it has 10,000 too, which is ten; after that they take turns.
    document, question = Part(1, 90_000), Part(2, 10_000)
    router = UncachedTokens(2)
    assert router.place(0, ask(0, parts=(document,))) == 0
    router.observe(1, [show(1, total=90_000, stamp=1), show(1, total=90_000, stamp=1)])
    assert router.place(2, ask(1, parts=(document, question))) == 0
    assert router.uncached == [10_000, 0]
    picks = [router.place(3, ask(number, 1_000)) for number in range(2, 13)]
    assert picks == [1] * 10 + [1]
    assert router.place(4, ask(20, 1_000)) == 0


def test_a_snapshot_does_not_forget_what_its_rank_had_not_received() -> None:
    # Sent at 10 and 30, written at 20: the rank knew of the first alone. The engine's budget forgets the second.
    router, engine = UncachedTokens(1), SglangController(1, "total_tokens")
    for at in (10, 30):
        for each in (router, engine):
            each.place(at, ask(at, 500))
    board = [show(0, 1, 500, stamp=20, uncached=500, used=0)]
    for each in (router, engine):
        each.observe(40 * MS, board)
    engine.place(40 * MS, ask(99, pin=0))
    assert router.uncached == [1_000]
    assert engine.tokens == [500]
    (load,) = router.believed()
    assert load is not None
    assert (load.waiting_uncached_tokens, load.total_tokens) == (1_000, 1_000)


def count_pairs(context: int, output: int, done: int) -> int:
    return sum(context + written for written in range(done, output))


@given(
    requests=st.lists(
        st.tuples(st.integers(0, 5_000), st.integers(1, 400), st.integers(0, 300)), min_size=1, max_size=12
    ),
    later=st.integers(0, 800),
)
def test_the_three_numbers_of_a_rank_are_the_sum_over_its_requests(
    requests: list[tuple[int, int, int]], later: int
) -> None:
    router = make_pairs(1)
    begun = sorted(requests, key=lambda request: request[2])
    for number, (prompt, output, start) in enumerate(begun):
        router.place(start * STEP_NS, ask(number, prompt, output=output))
    now = begun[-1][2] + later
    expected = sum(count_pairs(prompt, output, min(now - start, output - 1)) for prompt, output, start in begun)
    assert router.expect_pairs(now * STEP_NS) == [pytest.approx(expected, rel=1e-9, abs=1e-3)]
    for number, (prompt, output, _) in enumerate(begun):
        router.release(now * STEP_NS, ask(number, prompt, output=output), 0)
    assert router.expect_pairs(now * STEP_NS) == [pytest.approx(0.0, abs=1e-3)]


def test_a_long_answer_weighs_more_than_a_short_one_to_an_equal_prompt() -> None:
    # Rank 0 gets 1,000 tokens of prompt and 1,000 of answer: 1,499,500 pairs. Answers of 100 to the same prompt are
    # 104,950 pairs each: fourteen go to rank 1 before rank 0 has fewer to come. Counting requests, they take turns.
    router = make_pairs(2)
    assert router.place(0, ask(0, 1_000, output=1_000)) == 0
    picks = [router.place(0, ask(number, 1_000, output=100)) for number in range(1, 17)]
    assert Counter(picks[:15]) == {1: 15}
    assert picks[15] == 0
    engine = SglangController(2, "total_requests")
    assert Counter(engine.place(0, ask(number)) for number in range(16)) == {0: 8, 1: 8}


def test_demanded_ranks_are_counted_too() -> None:
    pairs, uncached = make_pairs(2), UncachedTokens(2)
    for router in (pairs, uncached):
        assert router.place(0, ask(0, 1_000, pin=1)) == 1
        assert router.place(0, ask(1, 10)) == 0
        with pytest.raises(UsageError, match="demanded"):
            router.place(0, ask(2, pin=2))
