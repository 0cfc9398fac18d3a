"""What another policy would have made of a load: verdicts, ties, what is not told, and the sums behind it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.errors import InputError, UsageError
from dprankdiag.model.ledgers import Ledger
from dprankdiag.model.whatif import WhatIf
from dprankdiag.pipelines.stored import Span
from dprankdiag.pipelines.stored_span import StoredQuestion, read_servers
from dprankdiag.pipelines.whatif import conclude, price_policies, read_version
from dprankdiag.pipelines.whatif_inputs import Said, ask_what_if
from dprankdiag.pipelines.whatif_ledger import deal_requests, make_ledger_log, read_log_facts
from dprankdiag.pipelines.whatif_log import make_log_case
from dprankdiag.pipelines.whatif_readings import join_readings
from dprankdiag.pipelines.whatif_windows import list_windows
from tests.pipelines.whatifs import option, result, serve_uneven, write_log
from tests.stored import START_S, SmallPrometheus


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> WhatIf:
    path = write_log(tmp_path_factory.mktemp("log") / "run.jsonl", serve_uneven())
    return ask_what_if([str(path)], Said())


def test_requests_that_crowd_one_rank_are_spread_by_a_policy(uneven: WhatIf) -> None:
    assert uneven.verdict in ("better", "tied")
    first = uneven.options[0]
    assert first.key.endswith("+unpinned")
    assert first.gain_ratio.interval is not None
    assert 0.05 < first.gain_ratio.interval[0] <= (first.gain_ratio.value or 0) <= first.gain_ratio.interval[1]


def test_a_policy_that_heeds_the_demands_saves_less(uneven: WhatIf) -> None:
    gains = {one.key: one.gain_ratio.value or 0.0 for one in uneven.options}
    assert gains["policy.total_tokens"] < gains["policy.total_tokens+unpinned"] - 0.05


def test_gains_are_in_order_and_inside_their_intervals(uneven: WhatIf) -> None:
    gains = [one.gain_ratio.value or 0.0 for one in uneven.options]
    assert gains == sorted(gains, reverse=True)
    for one in uneven.options:
        low, high = one.gain_ratio.interval or (1.0, 0.0)
        assert low <= (one.gain_ratio.value or 0.0) <= high


def test_the_run_served_again_is_as_it_was_measured(uneven: WhatIf) -> None:
    again = uneven.replayed
    assert again is not None
    for name in ("token_p50_ns", "generation_tok_s"):
        seen, told = getattr(uneven.measured, name).value, getattr(again, name).value
        assert told == pytest.approx(seen, rel=0.05)
    assert uneven.measured.imbalance_ratio.value is None


def test_what_the_log_lacks_is_said(uneven: WhatIf) -> None:
    assert [one.about for one in uneven.abstentions] == ["gateway.cache_aware"]
    assert any("one GPU a rank" in note for note in uneven.notes)


def test_a_log_without_times_gives_no_gain(tmp_path: Path) -> None:
    rows = [{key: value for key, value in row.items() if key not in ("ttft_s", "e2e_s")} for row in serve_uneven(30)]
    told = ask_what_if([str(write_log(tmp_path / "run.jsonl", rows))], Said())
    assert (told.verdict, told.options) == ("cannot_tell", ())
    assert told.abstentions[0].lacked == ("ttft_s", "e2e_s")


def test_a_log_without_ranks_gives_no_gain(tmp_path: Path) -> None:
    rows = [{key: value for key, value in row.items() if key != "rank"} for row in serve_uneven(30)]
    told = ask_what_if([str(write_log(tmp_path / "run.jsonl", rows))], Said())
    assert told.verdict == "cannot_tell"
    assert ("rank",) in [one.lacked for one in told.abstentions]


def test_an_engine_that_nobody_names_is_asked_for(tmp_path: Path) -> None:
    path = write_log(tmp_path / "run.jsonl", serve_uneven(20), engine=None)
    with pytest.raises(InputError, match="--engine"):
        ask_what_if([str(path)], Said())


def test_a_rank_beyond_those_there_are_is_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path / "run.jsonl", serve_uneven(20), ranks=2)
    with pytest.raises(InputError, match="is not among"):
        ask_what_if([str(path)], Said())


def test_a_running_engine_is_to_be_recorded_first() -> None:
    with pytest.raises(UsageError, match="record it first"):
        ask_what_if(["http://127.0.0.1:1"], Said())


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "page.prom"
    path.write_text("up 1\n")
    with pytest.raises(InputError, match="tells of no requests"):
        ask_what_if([str(path)], Said())
    with pytest.raises(UsageError, match="no such file"):
        ask_what_if([str(tmp_path / "absent")], Said())


# --- verdicts ---


def test_the_option_that_gains_most_is_the_best() -> None:
    told = conclude(result(option("b", 0.01, 0.0, 0.02), option("a", 0.2, 0.15, 0.25)))
    assert (told.verdict, told.best, [one.key for one in told.options]) == ("better", ("a",), ["a", "b"])
    assert "20 %" in told.headline


def test_options_that_are_not_told_apart_share_the_first_place() -> None:
    told = conclude(result(option("a", 0.2, 0.15, 0.25, tied_with=("b",)), option("b", 0.19, 0.1, 0.25)))
    assert (told.verdict, told.best) == ("tied", ("a", "b"))


def test_none_is_better_where_no_gain_can_matter() -> None:
    told = conclude(result(option("a", 0.004, -0.01, 0.02)))
    assert (told.verdict, told.best) == ("none_better", ())


def test_a_gain_that_may_be_large_or_nothing_is_not_told() -> None:
    told = conclude(result(option("a", 0.05, -0.02, 0.2)))
    assert (told.verdict, told.best) == ("cannot_tell", ())
    assert "20 %" in told.headline


def test_an_option_without_a_gain_comes_last() -> None:
    told = conclude(result(option("a", None), option("b", -0.1, -0.2, -0.05)))
    assert [one.key for one in told.options] == ["b", "a"]


def test_two_readings_that_agree_give_the_middle() -> None:
    told = join_readings(result(option("a", 0.2, 0.18, 0.22)), result(option("a", 0.24, 0.2, 0.27)))
    figure = told.options[0].gain_ratio
    assert figure.value == pytest.approx(0.22)
    assert figure.interval == (0.18, 0.27)


def test_two_readings_that_differ_give_bounds_and_say_why() -> None:
    told = join_readings(result(option("a", 0.02, 0.01, 0.03)), result(option("a", 0.24, 0.2, 0.27)))
    one = told.options[0]
    assert (one.gain_ratio.value, one.gain_ratio.interval) == (None, (0.01, 0.27))
    assert "if one was long" in one.reasons[0]


def test_a_reading_that_does_not_fit_is_dropped_and_said() -> None:
    told = join_readings(result(), result(option("a", 0.24, 0.2, 0.27)))
    assert [one.key for one in told.options] == ["a"]
    assert "would not have taken the observed time" in told.notes[0]


@pytest.mark.parametrize(
    "text, numbers", [("0.5.13.post1", (0, 5, 13)), ("v0.33.0", (0, 33, 0)), (None, None), ("x", None)]
)
def test_releases_are_read_as_numbers(text: str | None, numbers: tuple[int, ...] | None) -> None:
    assert read_version(text) == numbers


def test_the_policy_in_use_gains_nothing_and_is_never_the_first_choice() -> None:
    told = conclude(result(option("a", 0.0, 0.0, 0.0, is_current=True), option("b", -0.1, -0.2, -0.05)))
    assert (told.verdict, told.best) == ("none_better", ())
    told = conclude(result(option("a", 0.0, 0.0, 0.0, is_current=True), option("b", 0.1, 0.05, 0.2)))
    assert (told.verdict, told.best) == ("better", ("b",))


def test_the_policy_that_a_log_names_is_in_use(tmp_path: Path) -> None:
    path = write_log(tmp_path / "run.jsonl", serve_uneven(64), policy="round_robin")
    told = ask_what_if([str(path)], Said())
    (current,) = [one for one in told.options if one.is_current]
    assert (current.key, current.gain_ratio.value, current.gain_ratio.interval) == ("policy.round_robin", 0.0, (0, 0))
    assert current.key not in told.best
    assert all(current.key not in one.tied_with for one in told.options)


def test_a_rule_that_chose_otherwise_than_it_is_known_to_leaves_those_that_need_no_loads(tmp_path: Path) -> None:
    """Most requests were on rank 0, by a rule that is known to deal evenly: the log tells all but the rule."""
    rows = [{**row, "pinned": False} for row in serve_uneven()]
    told = ask_what_if([str(write_log(tmp_path / "log.jsonl", rows, policy="total_requests"))], Said())
    keys = {one.key for one in told.options}
    assert keys == {"policy.total_requests", "policy.round_robin", "policy.remaining_pairs"}
    assert any("does not choose as this release is known to" in note for note in told.notes)
    assert told.best
    assert "policy.total_requests" not in told.best


def test_an_engine_beside_a_log_tells_the_policy_in_use() -> None:
    facts = {"load_balance_method": "total_requests", "chunked_prefill_size": 4096, "version": "0.5.23"}
    told = read_log_facts([replace(counted(), facts=facts)])
    assert (told.policy, told.chunk_tokens) == ("total_requests", 4096)
    assert read_log_facts([replace(counted(), facts={"chunked_prefill_size": -1})]).chunk_tokens is None


def test_counters_do_not_tell_of_policies_where_caches_save_much() -> None:
    told = counted()
    values = {**told.values, "cached_tokens": np.array([[0, 0], [200, 0], [200, 0], [200, 0]], float)}
    log = make_ledger_log([replace(told, values=values)], "alike", "run.dprec")
    priced = price_policies(make_log_case(log, (), "recording"))
    assert priced.verdict == "cannot_tell"
    assert "prompts begin alike" in priced.headline


# --- requests and steps from counters ---

NAN = float("nan")


def ledger(**values: list[list[float]]) -> Ledger:
    arrays = {name: np.array(rows, float) for name, rows in values.items()}
    moments, ranks = next(iter(arrays.values())).shape
    return Ledger(
        "engine",
        "sglang",
        "m",
        None,
        tuple(range(ranks)),
        np.arange(moments, dtype=float),
        0,
        arrays,
        np.zeros((moments, ranks), bool),
    )


def counted() -> Ledger:
    """Two requests come to rank 0 in the first second, and end after two; one to rank 1, which goes on."""
    return ledger(
        admitted_requests=[[NAN, 0], [2, 1], [2, 1], [2, 1]],
        prompt_tokens=[[0, 0], [300, 50], [300, 50], [300, 50]],
        cached_tokens=[[0, 0], [0, 0], [0, 0], [0, 0]],
        decode_tokens=[[0, 0], [40, 20], [100, 60], [100, 100]],
        running_requests=[[0, 0], [2, 1], [0, 1], [0, 1]],
        waiting_requests=[[0, 0], [0, 0], [0, 0], [0, 0]],
    )


def test_requests_are_dealt_so_that_sums_are_kept() -> None:
    requests = deal_requests(counted(), 0, "alike")
    assert [(one.rank, one.prompt_tokens, one.output_tokens) for one in requests] == [
        (0, 150, 51),
        (1, 50, 101),
        (0, 150, 51),
    ]


def test_one_of_those_that_came_between_two_looks_may_be_long() -> None:
    requests = [one for one in deal_requests(counted(), 0, "one_long") if one.rank == 0]
    assert sum(one.prompt_tokens for one in requests) == 300
    assert max(one.prompt_tokens for one in requests) > 200


def test_a_chunk_that_is_counted_later_belongs_to_the_last_that_came() -> None:
    told = counted()
    values = {**told.values, "prompt_tokens": np.array([[0, 0], [300, 50], [300, 90], [300, 90]], float)}
    requests = deal_requests(replace(told, values=values), 0, "alike")
    assert [one.prompt_tokens for one in requests if one.rank == 1] == [90]


def test_a_long_prompt_is_of_the_request_that_is_counted_after_its_last_chunk() -> None:
    told = counted()
    values = {
        **told.values,
        "admitted_requests": np.array([[NAN, 0], [NAN, 1], [1, 1], [1, 1]], float),
        "prompt_tokens": np.array([[0, 0], [300, 50], [500, 50], [500, 50]], float),
        "running_requests": np.array([[0, 0], [0, 1], [1, 1], [0, 1]], float),
        "waiting_requests": np.array([[0, 0], [1, 0], [0, 0], [0, 0]], float),
    }
    (one,) = [each for each in deal_requests(replace(told, values=values), 0, "alike") if each.rank == 0]
    assert (one.prompt_tokens, one.arrival_ns) == (500, 500_000_000)


def test_first_tokens_that_an_engine_counts_are_not_counted_twice() -> None:
    told = replace(counted(), engine="vllm")
    assert [one.output_tokens for one in deal_requests(told, 0, "alike") if one.rank == 1] == [100]


def test_requests_came_as_long_before_their_first_tokens_as_these_took() -> None:
    told = replace(counted(), engine="vllm")
    values = {name: rows for name, rows in told.values.items() if name != "admitted_requests"}
    values["first_tokens"] = told.values["admitted_requests"]
    values["first_token_s"] = np.array([[0, 0], [0.5, 0.125], [0.5, 0.125], [0.5, 0.125]])
    assert [one.arrival_ns for one in deal_requests(replace(told, values=values), 0, "alike")] == [
        0,
        375_000_000,
        500_000_000,
    ]


def test_counters_without_arrivals_or_lengths_are_refused_by_name() -> None:
    told = counted()
    for name in ("admitted_requests", "prompt_tokens", "decode_tokens"):
        values = {key: rows for key, rows in told.values.items() if key != name}
        with pytest.raises(InputError, match=name):
            deal_requests(replace(told, values=values), 0, "alike")


def test_engines_that_hand_requests_on_are_refused() -> None:
    with pytest.raises(InputError, match="hand requests on"):
        make_ledger_log([replace(counted(), role="prefill")], "alike", "run.dprec")


def test_the_policy_in_use_is_taken_from_the_engine() -> None:
    told = replace(counted(), facts={"load_balance_method": "auto", "version": "0.5.23", "num_accelerators": 2})
    facts = make_ledger_log([told], "alike", "run.dprec").facts
    assert (facts.policy, facts.version, facts.gpus, facts.ranks) == ("round_robin", "0.5.23", 4, 2)


def test_steps_are_taken_from_the_rank_that_counted_most() -> None:
    told = ledger(
        load_decode_steps=[[10, 10], [60, 20], [110, 30]],
        load_decode_step_s=[[1.0, 1.0], [2.0, 1.2], [3.5, 1.4]],
        load_stamp_s=[[0.5, 0.6], [1.5, 1.6], [2.5, 2.6]],
    )
    windows = list_windows(told, 0, 0, lockstep=True)
    assert [(one.place, one.begin_ns, one.end_ns, one.count) for one in windows] == [
        (0, 500_000_000, 1_500_000_000, 50.0),
        (0, 1_500_000_000, 2_500_000_000, 50.0),
    ]
    assert [one.total_ns for one in windows] == pytest.approx([1e9, 1.5e9])


def test_a_counter_that_fell_begins_anew() -> None:
    told = ledger(token_gaps=[[50.0], [10.0], [60.0]], token_gap_s=[[2.0], [0.3], [1.3]])
    assert [one.count for one in list_windows(told, 0, 0, lockstep=True)] == [50.0]


# --- a range of Prometheus ---

LOOKS = 24
GROWTH = {
    "prompt_tokens_total": (2_000, 500),
    "generation_tokens_total": (100, 50),
    "time_to_first_token_seconds_count": (2, 1),
    "time_to_first_token_seconds_sum": (0.1, 0.05),
    "inter_token_latency_seconds_count": (98, 49),
    "inter_token_latency_seconds_sum": (0.98, 0.49),
}
"""What two vLLM ranks count in a second: twice the requests on the first, 10 ms from token to token."""


def write_page(at: int) -> str:
    """Write what the engine shows after so many seconds."""
    shown = {**GROWTH, "num_requests_running": (0, 0), "num_requests_waiting": (0, 0)}
    return "\n".join(
        f'vllm:{name}{{engine="{rank}",model_name="m"}} {round(each * at, 6)}'
        for name, growth in shown.items()
        for rank, each in enumerate(growth)
    )


def test_a_range_of_prometheus_is_dealt_and_served_again() -> None:
    server = SmallPrometheus(now_s=START_S + LOOKS)
    for at in range(LOOKS + 1):
        server.scrape(write_page(at), START_S + at, instance="h:1")
    question = StoredQuestion(("prometheus+http://127.0.0.1:9090",), Span(since_s=LOOKS + 1))
    stored = read_servers(question, transport=server.transport(), clock=lambda: round(server.now_s * 1e9))
    told = ask_what_if([], Said(version="0.33.0"), stored)
    assert (told.source.kind, told.source.engine, told.source.ranks) == ("prometheus", "vllm", 2)
    assert told.source.requests == 3 * LOOKS
    assert told.source.paths == ("prometheus+http://127.0.0.1:9090",)
    assert told.fit is not None
    assert told.fit.observed.startswith("the steps that engines counted")
