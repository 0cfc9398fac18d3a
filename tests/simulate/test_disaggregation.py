from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dprankdiag.model.schema import ABSENT_NS
from dprankdiag.simulate.base import Request
from dprankdiag.simulate.disaggregation import DecodeRules, PrefillRules
from dprankdiag.simulate.engine import serve
from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.workers import Worker
from dprankdiag.simulate.world_tables import MODES, Outcome
from tests.simulate.worlds import PlainCosts, RoundRobin, ask

RANKS, TRANSFER_NS = 2, 5_000_000


def _serve(requests: list[Request], capacity: int = 100_000) -> Outcome:
    prefill = PrefillRules(SglangRules(100_000), TRANSFER_NS)
    decode = DecodeRules(SglangRules(capacity, share_prefixes=False))
    front, back = (Worker((rules,) * RANKS, RoundRobin(RANKS), PlainCosts()) for rules in (prefill, decode))
    return serve(requests, [front], decoders=[back])


def test_prompts_are_computed_on_one_engine_and_decoded_on_the_other_after_the_transfer() -> None:
    outcome = _serve([ask(0, 1_000, 10)])
    steps = outcome.rank_steps
    assert (steps["mode"][steps["prompt_tokens"] > 0] == MODES.index("extend")).all()
    assert (steps["worker"][steps["prompt_tokens"] > 0] == 0).all()
    assert (steps["worker"][steps["decode_rows"] > 0] == 1).all()
    prompt = outcome.steps["worker"] == 0
    end_ns = (outcome.steps["start_ns"] + outcome.steps["total_ns"])[prompt][0]
    assert outcome.requests["first_ns"][0] == end_ns + 5_000_000


def test_a_decode_rank_without_running_requests_still_shows_the_queue_that_waits_for_pages() -> None:
    requests = [ask(0, 3_000, 400, rank=0), ask(1, 3_000, 400, at_ns=1, rank=0), ask(2, 10, 2, at_ns=2_000_000, rank=1)]
    outcome = _serve(requests, capacity=4_000)
    decode = (outcome.publishes["worker"] == 1) & (outcome.publishes["rank"] == 0)
    assert (outcome.publishes["waiting"][decode] > 0).any()
    assert outcome.requests["output_tokens"].tolist() == [400, 400, 2]
    assert outcome.requests["first_ns"][1] > outcome.requests["end_ns"][0]


def test_each_waiting_request_is_in_one_queue_of_its_role() -> None:
    requests = [ask(0, 3_000, 400, rank=0), ask(1, 3_000, 400, at_ns=1, rank=0), ask(2, 10, 2, at_ns=2_000_000, rank=1)]
    outcome = _serve(requests, capacity=4_000)
    for rows in (outcome.rank_steps, outcome.publishes):
        front, back = rows["worker"] == 0, rows["worker"] == 1
        parts = rows["prealloc"] + rows["transfer"] + rows["retracted"]
        assert (rows["waiting"][back] == parts[back]).all()
        assert (rows["bootstrap"][front] <= rows["waiting"][front]).all()
        assert not (rows["bootstrap"] + rows["inflight"])[back].any()
        assert not parts[front].any()
    assert outcome.publishes["bootstrap"].max() == outcome.publishes["prealloc"].max() == 1


def test_a_request_gets_its_pages_before_its_prompt_is_computed_and_its_kv_before_its_first_token() -> None:
    requests = [ask(0, 3_000, 400, rank=0), ask(1, 3_000, 400, at_ns=1, rank=0)]
    told = _serve(requests, capacity=4_000).requests
    assert (told["placed_ns"] <= told["reserved_ns"]).all()
    assert (told["reserved_ns"] < told["transferred_ns"] - TRANSFER_NS).all()
    assert (told["transferred_ns"] <= told["first_ns"]).all()
    assert told["reserved_ns"][1] >= told["end_ns"][0]


def test_an_engine_that_does_both_reserves_nothing() -> None:
    worker = Worker((SglangRules(100_000),) * RANKS, RoundRobin(RANKS), PlainCosts())
    told = serve([ask(0, 1_000, 10)], [worker]).requests
    assert told["reserved_ns"].tolist() == told["transferred_ns"].tolist() == [ABSENT_NS]


def test_a_pass_that_takes_in_finished_transfers_leaves_the_rank_without_rows() -> None:
    requests = [ask(0, 100, 200, rank=0), ask(1, 9, 300, rank=1), ask(2, 100, 200, at_ns=20_000_000, rank=0)]
    outcome = _serve(requests)
    steps = outcome.rank_steps
    decode = (steps["worker"] == 1) & (steps["rank"] == 0)
    idle_amid = (steps["mode"] == MODES.index("idle")) & decode & (steps["running"] > 0)
    assert idle_amid.sum() >= 1


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40_000_000), st.integers(1, 300), st.integers(1, 60)), min_size=1, max_size=20),
    st.sampled_from([500, 900, 10_000]),
)
def test_every_request_ends_with_its_output(drawn: list[tuple[int, int, int]], capacity: int) -> None:
    requests = [ask(n, prompt, output, at) for n, (at, prompt, output) in enumerate(sorted(drawn))]
    outcome = _serve(requests, capacity)
    assert outcome.requests["output_tokens"].tolist() == [r.output_tokens for r in requests]
    assert outcome.rank_steps["prompt_tokens"].sum() == sum(r.prompt_tokens for r in requests)
    decode = outcome.rank_steps["worker"] == 1
    assert (outcome.rank_steps["used_tokens"][decode] <= capacity).all()
