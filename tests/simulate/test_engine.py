from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprankdiag.model.schema import ABSENT_ID
from dprankdiag.simulate.base import Part, Request
from dprankdiag.simulate.engine import serve
from dprankdiag.simulate.ranks import Acceptance
from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.workers import Publishing, Worker
from dprankdiag.simulate.world_tables import MODES, Outcome
from tests.simulate.worlds import ROOMY, PlainCosts, RoundRobin, ask, by_rank, run_one, same_bytes


def test_a_lone_request_takes_a_prompt_step_and_a_step_for_each_further_token() -> None:
    outcome = run_one([ask(0, 100, 4)], [ROOMY])
    assert [MODES[mode] for mode in outcome.rank_steps["mode"]] == ["extend", "decode", "decode", "decode"]
    assert outcome.rank_steps["kv_tokens"].tolist() == [0, 101, 102, 103]
    assert outcome.rank_steps["prompt_pairs"].tolist() == [5050, 0, 0, 0]
    assert outcome.requests["end_ns"][0] == outcome.steps["total_ns"].sum()


def test_three_short_and_one_long_make_seven_times_the_pairs() -> None:
    """3 × 8K and 1 × 200K on one rank against 4 × 8K: 229,376 : 32,768, 196,608 missing on every other rank."""
    lengths = [(8_191, 0)] * 3 + [(204_799, 0)] + [(8_191, 1)] * 4
    outcome = run_one([ask(n, prompt, 2, rank=rank) for n, (prompt, rank) in enumerate(lengths)], [ROOMY] * 2)
    decodes = by_rank(outcome, "mode", 2) == MODES.index("decode")
    pairs = by_rank(outcome, "decode_pairs", 2)
    long, short = pairs[decodes[:, 0], 0], pairs[decodes[:, 1], 1]
    assert long.tolist() == [229_376]
    assert short.tolist() == [32_768]
    assert long[0] / short[0] == 7.0
    assert (long[0] - short[0]) * 78 == 15_335_424


def test_a_million_tokens_of_prompt_hold_seven_decoders_for_128_steps() -> None:
    decoders = [ask(n, 10, 1_000, rank=n) for n in range(7)]
    prompt = ask(7, 2**20, 1, at_ns=20_000_000, rank=7)
    outcome = run_one([*decoders, prompt], [SglangRules(2_000_000)] * 8)
    extends = by_rank(outcome, "mode", 8)[:, 7] == MODES.index("extend")
    assert extends.sum() == 128
    assert (by_rank(outcome, "mode", 8)[extends][:, :7] == MODES.index("decode")).all()
    waits = by_rank(outcome, "waiting_ns", 8)[extends]
    assert (waits[:, :7] > 0).all()
    assert (waits[:, 7] == 0).all()
    assert not outcome.steps["graph"][extends].any()


def test_retraction_keeps_the_total_and_the_request_ends_whole() -> None:
    rules = SglangRules(400, new_token_ratio=0.1, least_ratio=0.1)
    outcome = run_one([ask(n, 100, 120) for n in range(3)], [rules])
    assert outcome.requests["retractions"].sum() > 0
    assert outcome.requests["output_tokens"].tolist() == [120] * 3
    used, total = outcome.rank_steps["used_tokens"], outcome.rank_steps["total_tokens"]
    falls = np.flatnonzero(np.diff(used) < -60)
    lost = [fall for fall in falls if outcome.rank_steps["waiting"][fall + 1] > outcome.rank_steps["waiting"][fall]]
    assert lost
    assert all(total[fall + 1] >= total[fall] for fall in lost)


def test_the_longest_as_victim_recomputes_more_than_the_newest() -> None:
    requests = [ask(0, 300, 300), *(ask(n, 20, 60, at_ns=n * 8_000_000) for n in range(1, 60))]
    costs = {}
    for victim in ("newest", "longest"):
        rules = SglangRules(700, new_token_ratio=0.05, least_ratio=0.05, victim=victim)
        costs[victim] = run_one(requests, [rules]).requests["recomputed_tokens"].sum()
    assert 0 < costs["newest"] < costs["longest"]


def test_a_later_turn_computes_only_what_is_new() -> None:
    system, turn = Part(1, 1_000), Part(2, 50)
    first = Request(0, 0, (system, turn), 11, output_key=3)
    second = Request(1, 1_000_000_000, (system, turn, Part(3, 10), Part(4, 21)), 5)
    outcome = run_one([first, second], [ROOMY])
    assert outcome.requests["cached_tokens"].tolist() == [0, 1_060]
    assert outcome.rank_steps["prompt_tokens"].sum() == 1_050 + 21


def test_a_request_that_no_pool_can_hold_is_refused_and_the_rest_is_served() -> None:
    outcome = run_one([ask(0, 5_000, 10), ask(1, 50, 10)], [SglangRules(1_000)])
    assert outcome.requests["refused"].tolist() == [1, 0]
    assert outcome.requests["output_tokens"].tolist() == [0, 10]


def test_a_busy_rank_publishes_every_fifteenth_step_and_its_idle_peer_too() -> None:
    outcome = run_one([ask(0, 10, 61)], [ROOMY] * 2)
    for rank in (0, 1):
        own = outcome.publishes["time_ns"][outcome.publishes["rank"] == rank]
        ends = outcome.steps["start_ns"] + outcome.steps["total_ns"]
        steps = np.searchsorted(ends, own) + 1
        assert steps.tolist() == ([1, 16, 31, 46, 61, 61] if rank == 0 else [15, 30, 45, 60, 61])


def test_a_router_believes_what_was_published_before_the_delay() -> None:
    requests = [ask(0, 10, 200, rank=0), ask(1, 10, 5, at_ns=50_000_000, rank=0)]
    outcome = run_one(requests, [ROOMY], publishing=Publishing(delay_ns=10_000_000))
    late = outcome.beliefs["decision"] == 1
    assert outcome.beliefs["age_ns"][late][0] >= 10_000_000
    assert outcome.beliefs["believed_running"][late].tolist() == [1]


def test_ranks_without_lockstep_do_not_wait_for_each_other() -> None:
    requests = [ask(0, 100_000, 3, rank=0), ask(1, 10, 3, rank=1)]
    apart = run_one(requests, [ROOMY] * 2, lockstep=False).requests["end_ns"]
    together = run_one(requests, [ROOMY] * 2).requests["end_ns"]
    assert apart[1] < together[1]


def test_several_workers_without_a_gateway_are_an_error() -> None:
    with pytest.raises(ValueError, match="gateway"):
        serve([], [Worker((ROOMY,), RoundRobin(1), PlainCosts())] * 2)


def test_a_gateway_chooses_the_worker_and_the_workers_router_the_rank() -> None:
    workers = [Worker((ROOMY,) * 2, RoundRobin(2), PlainCosts()) for _ in range(2)]
    outcome = serve([ask(n, 10, 30, at_ns=n) for n in range(8)], workers, RoundRobin(2))
    assert outcome.requests["worker"].tolist() == [0, 1] * 4
    assert outcome.requests["rank"].tolist() == [0, 0, 1, 1] * 2
    gateway = outcome.decisions["rank"] == ABSENT_ID
    assert gateway.sum() == 8
    choices = outcome.beliefs["decision"]
    assert (np.bincount(choices) == 2).all()


def test_speculation_gains_as_many_tokens_a_step_as_the_rank_accepts() -> None:
    outcome = run_one([ask(0, 100, 261)], [SglangRules(10_000, acceptance=Acceptance(4, 2.6))])
    verify = outcome.rank_steps["mode"] == MODES.index("verify")
    assert verify.sum() == 100
    assert (outcome.rank_steps["decode_rows"][verify] == 4).all()
    first = outcome.rank_steps["decode_pairs"][verify][0]
    assert first == 101 + 102 + 103 + 104
    assert outcome.rank_steps["kv_tokens"][verify][0] == 104


def test_ranks_that_accept_less_keep_their_requests_longer() -> None:
    requests = [ask(n, 100, 201, rank=n) for n in range(2)]
    rules = [SglangRules(10_000, acceptance=Acceptance(4, mean)) for mean in (3.0, 1.5)]
    ends = run_one(requests, rules).requests["end_ns"]
    assert ends[1] > 1.5 * ends[0]


_requests = st.lists(
    st.tuples(st.integers(0, 40_000_000), st.integers(1, 300), st.integers(1, 60)), min_size=1, max_size=25
)
_rules = st.builds(
    SglangRules,
    capacity_tokens=st.sampled_from([400, 600, 5_000]),
    page_tokens=st.sampled_from([1, 4, 16]),
    chunk_tokens=st.sampled_from([32, 128, 8_192]),
    mixed=st.booleans(),
    share_prefixes=st.booleans(),
    new_token_ratio=st.just(0.3),
    victim=st.sampled_from(["newest", "longest"]),
    acceptance=st.sampled_from([Acceptance(), Acceptance(4, 2.6)]),
)


def _list_requests(drawn: list[tuple[int, int, int]]) -> list[Request]:
    return [
        Request(n, at, (Part(prompt % 3, 7), Part(100 + prompt, prompt)), output, output_key=1_000 + n)
        for n, (at, prompt, output) in enumerate(sorted(drawn))
    ]


@settings(max_examples=40, deadline=None)
@given(_requests, _rules)
def test_tokens_and_time_are_conserved(drawn: list[tuple[int, int, int]], rules: SglangRules) -> None:
    requests = _list_requests(drawn)
    outcome = run_one(requests, [rules] * 3)
    table, steps = outcome.requests, outcome.rank_steps
    assert table["output_tokens"].tolist() == [r.output_tokens for r in requests]
    assert (steps["used_tokens"] <= rules.capacity_tokens).all()
    assert steps["used_tokens"].min() >= 0
    computed = table["prompt_tokens"] - table["cached_tokens"] + table["recomputed_tokens"]
    assert steps["prompt_tokens"].sum() == computed.sum()
    if rules.acceptance.width == 1:
        # A request gains its tokens in decode steps, but for one at the end of each prompt that it computed.
        prompts = len(requests) + table["retractions"].sum()
        assert table["output_tokens"].sum() - prompts <= steps["decode_rows"].sum() <= table["output_tokens"].sum()
        if not table["retractions"].any():
            assert steps["decode_rows"].sum() == table["output_tokens"].sum() - prompts
    parts = steps["own_ns"] + steps["shared_ns"] + steps["waiting_ns"]
    whole = (outcome.steps["total_ns"] - outcome.steps["common_ns"])[steps["step"]]
    assert (parts == whole).all()
    assert (np.diff(outcome.steps["start_ns"]) >= outcome.steps["total_ns"][:-1]).all()


@settings(max_examples=20, deadline=None)
@given(_requests, _rules)
def test_equal_worlds_leave_equal_bytes(drawn: list[tuple[int, int, int]], rules: SglangRules) -> None:
    requests = _list_requests(drawn)
    assert same_bytes(run_one(requests, [rules] * 2), run_one(requests, [rules] * 2))


@settings(max_examples=20, deadline=None)
@given(_requests, st.permutations(range(3)))
def test_renumbered_ranks_give_renumbered_results(drawn: list[tuple[int, int, int]], order: list[int]) -> None:
    pinned = [
        Request(r.number, r.arrival_ns, r.parts, r.output_tokens, pinned_rank=r.number % 3)
        for r in _list_requests(drawn)
    ]
    moved = [Request(r.number, r.arrival_ns, r.parts, r.output_tokens, pinned_rank=order[r.number % 3]) for r in pinned]
    one, other = run_one(pinned, [ROOMY] * 3), run_one(moved, [ROOMY] * 3)
    _assert_permuted(one, other, order)


@settings(max_examples=20, deadline=None)
@given(_requests, _rules, st.permutations(range(3)))
def test_a_router_that_counts_its_turn_from_another_rank_permutes_results(
    drawn: list[tuple[int, int, int]], rules: SglangRules, order: list[int]
) -> None:
    class Turned(RoundRobin):
        def place(self, now_ns: int, request: Request) -> int:
            return order[super().place(now_ns, request)]

    requests = _list_requests(drawn)
    one = run_one(requests, [rules] * 3)
    other = serve(requests, [Worker((rules,) * 3, Turned(3), PlainCosts())])
    _assert_permuted(one, other, order)


def _assert_permuted(one: Outcome, other: Outcome, order: list[int]) -> None:
    for column in ("own_ns", "running", "used_tokens", "waiting_ns"):
        assert (by_rank(one, column, 3) == by_rank(other, column, 3)[:, order]).all()
    assert one.requests["end_ns"].tolist() == other.requests["end_ns"].tolist()
