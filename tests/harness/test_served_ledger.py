"""The ledger of a served world tells what its tables hold, at any moment."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.harness.ledger_engine import REPORT_STEPS
from dprankdiag.harness.ledger_sglang import write_metrics
from dprankdiag.harness.served_engine import ServedEngine, describe_worker
from dprankdiag.harness.served_ledger import LAP_PAUSE_NS, NS_PER_S, ServedLedger
from dprankdiag.model.schema import Columns
from dprankdiag.simulate.engine import serve
from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.vllm_scheduler import VllmRules
from dprankdiag.simulate.world_tables import MODES, Outcome
from tests.harness.served_worlds import (
    RANKS,
    serve_dense,
    serve_sglang,
    serve_tight,
    serve_tight_vllm,
    serve_vllm,
    sglang_worker,
)
from tests.simulate.worlds import ask, run_one

END_NS = 10_000 * NS_PER_S
STAMPS = ("arrival_ns", "placed_ns", "first_ns", "end_ns")
WORLDS = [lambda: serve_sglang(long=True), serve_vllm, serve_dense]


@pytest.mark.parametrize("world", WORLDS)
def test_at_its_end_every_token_and_request_of_the_world_is_counted(world) -> None:  # type: ignore[no-untyped-def]
    outcome, engine = world()
    counts = ServedLedger(outcome, engine).advance(END_NS).counts.by_rank
    requests = outcome.requests
    assert counts["generated"].sum() == (requests["output_tokens"] - 1).sum()
    assert counts["computed"].sum() + counts["cached"].sum() == requests["prompt_tokens"].sum()
    assert counts["firsts"].sum() == counts["done"].sum() == len(requests["request"])
    np.testing.assert_array_equal(counts["done"], np.bincount(requests["rank"], minlength=RANKS))


@pytest.mark.parametrize("world", WORLDS)
def test_counting_in_small_steps_or_at_once_comes_to_the_same(world) -> None:  # type: ignore[no-untyped-def]
    outcome, engine = world()
    slow, fast = ServedLedger(outcome, engine), ServedLedger(outcome, engine)
    for second in range(21):
        state = slow.advance(second * NS_PER_S)
    once = fast.advance(20 * NS_PER_S)
    for name, values in once.counts.by_rank.items():
        np.testing.assert_allclose(state.counts.by_rank[name], values, err_msg=name)
    for name, values in once.shown.gauges.items():
        np.testing.assert_array_equal(state.shown.gauges[name], values)
    np.testing.assert_allclose(state.counts.together, once.counts.together)


def test_retractions_are_counted_in_the_steps_that_lengthen_the_queue() -> None:
    requests = [ask(number, 40, 150, rank=0) for number in range(12)]
    rules = SglangRules(400, new_token_ratio=0.1, least_ratio=0.1)
    outcome = run_one(requests, [rules])
    engine = replace(describe_worker(sglang_worker()), capacity_tokens=(400,), accept_by_rank=(1.0,))
    ledger = ServedLedger(outcome, engine)
    rows, steps = outcome.rank_steps, outcome.steps
    grows = np.flatnonzero((np.diff(rows["waiting"], prepend=12) > 0) & (rows["prompt_tokens"] == 0))
    ends = steps["start_ns"] + steps["total_ns"]
    told = [ledger.advance(int(at)).counts.by_rank["retracted"][0] for at in ends]
    assert set(np.flatnonzero(np.diff(told, prepend=0))) == set(grows)
    assert told[-1] == outcome.requests["retractions"].sum() > 1


def test_retractions_that_no_step_accounts_for_lie_between_first_and_last_token() -> None:
    outcome, engine = serve_tight()
    nothing = np.zeros(len(outcome.rank_steps["step"]), np.int64)
    blind = replace(outcome, rank_steps={**outcome.rank_steps, "waiting": nothing})
    ledger = ServedLedger(blind, engine)
    retracted = outcome.requests["retractions"] > 0
    first_ns = int(outcome.requests["first_ns"][retracted].min())
    assert ledger.advance(first_ns).counts.by_rank["retracted"].sum() == 0
    assert ledger.advance(END_NS).counts.by_rank["retracted"].sum() == outcome.requests["retractions"].sum() > 0


def test_gauges_are_written_with_prompts_and_every_fortieth_decode_step_only() -> None:
    outcome, engine = serve_sglang(long=False)
    ledger = ServedLedger(outcome, engine)
    rows = {name: values[outcome.rank_steps["rank"] == 2] for name, values in outcome.rank_steps.items()}
    ends = (outcome.steps["start_ns"] + outcome.steps["total_ns"])[rows["step"]]
    decodes = np.cumsum(rows["mode"] == MODES.index("decode"))
    writes = (rows["prompt_tokens"] > 0) | ((rows["mode"] == MODES.index("decode")) & (decodes % REPORT_STEPS == 0))
    for at_ns in (3 * NS_PER_S, 11 * NS_PER_S, 29 * NS_PER_S):
        last = np.flatnonzero(writes & (ends <= at_ns))[-1]
        assert ledger.advance(at_ns).shown.gauges["running"][2] == rows["running"][last]


def test_a_rank_that_turns_idle_beside_others_keeps_its_gauges_and_all_lose_them_when_the_engine_rests() -> None:
    requests = [ask(0, 100, 100, rank=0), ask(1, 100, 90, at_ns=1, rank=0), ask(2, 50, 4_000, at_ns=2, rank=1)]
    outcome = run_one(requests, [SglangRules(100_000)] * 2)
    engine = replace(describe_worker(sglang_worker()), capacity_tokens=(100_000,) * 2, accept_by_rank=(1.0,) * 2)
    ledger = ServedLedger(outcome, engine)
    late_ns = ledger.last_ns - 1
    state = ledger.advance(late_ns)
    assert state.running[0] == 0
    assert state.shown.gauges["running"][0] == 2
    assert state.shown.snapshot["running"][0] == 0
    assert ledger.advance(ledger.last_ns + 29 * NS_PER_S).shown.gauges["running"][0] == 2
    assert ledger.advance(ledger.last_ns + 31 * NS_PER_S).shown.gauges["running"].tolist() == [0, 0]


def test_snapshots_are_those_the_world_published_and_idle_ranks_renew_theirs() -> None:
    outcome, engine = serve_sglang(long=True)
    ledger = ServedLedger(outcome, engine)
    at_ns = 15 * NS_PER_S
    shown = ledger.advance(at_ns).shown.snapshot
    for rank in range(RANKS):
        mine = (outcome.publishes["rank"] == rank) & (outcome.publishes["time_ns"] <= at_ns)
        last = np.flatnonzero(mine)[-1]
        assert shown["stamp_s"][rank] == outcome.publishes["time_ns"][last] / NS_PER_S
        assert shown["used"][rank] == outcome.publishes["used_tokens"][last]
    rested = ledger.advance(ledger.last_ns + NS_PER_S)
    np.testing.assert_allclose(rested.shown.snapshot["stamp_s"], rested.seconds)


def test_a_faster_clock_shortens_every_time_and_changes_no_count() -> None:
    outcome, engine = serve_sglang(long=False)
    usual, fast = (ServedLedger(outcome, engine, pace).advance(20 * NS_PER_S) for pace in (1.0, 10.0))
    for name, values in usual.counts.by_rank.items():
        shrink = 10.0 if name.endswith("_s") else 1.0
        np.testing.assert_allclose(fast.counts.by_rank[name] * shrink, values, rtol=1e-9, err_msg=name)
    np.testing.assert_allclose(fast.shown.snapshot["stamp_s"] * 10, usual.shown.snapshot["stamp_s"])


def test_an_engine_that_never_got_a_request_is_idle() -> None:
    worker = sglang_worker()
    state = ServedLedger(serve([], [worker]), describe_worker(worker)).advance(5 * NS_PER_S)
    assert all(values.sum() == 0 for name, values in state.counts.by_rank.items() if name not in ("idle_s", "cpu_s"))
    assert state.counts.by_rank["idle_s"].tolist() == [5.0] * RANKS
    assert state.shown.snapshot["stamp_s"].tolist() == [5.0] * RANKS
    assert np.isnan(state.shown.gauges["running"]).all()


def test_a_world_that_loops_counts_on_and_shows_the_same_again() -> None:
    outcome, engine = serve_sglang(long=True)
    looping = ServedLedger(outcome, engine, loop=True)
    lap_ns, at_ns = looping.last_ns + LAP_PAUSE_NS, 9 * NS_PER_S
    once, again = ServedLedger(outcome, engine).advance(at_ns), looping.advance(2 * lap_ns + at_ns)
    whole = ServedLedger(outcome, engine).advance(lap_ns)
    for name, values in once.counts.by_rank.items():
        expected = values + 2 * whole.counts.by_rank[name]
        np.testing.assert_allclose(again.counts.by_rank[name], expected, err_msg=name)
    np.testing.assert_array_equal(again.running, once.running)
    for name, values in once.shown.gauges.items():
        np.testing.assert_array_equal(again.shown.gauges[name], values)
    ages = [state.seconds - state.shown.snapshot["stamp_s"] for state in (once, again)]
    np.testing.assert_allclose(ages[1], ages[0], atol=1e-6)
    sums = again.shown.snapshot["computed"] - once.shown.snapshot["computed"]
    np.testing.assert_array_equal(sums, 2 * whole.shown.snapshot["computed"])


def test_in_its_second_lap_a_world_shows_old_gauges_until_new_ones_are_written() -> None:
    outcome, engine = serve_sglang(long=True)
    ledger = ServedLedger(outcome, engine, loop=True)
    lap_ns = ledger.last_ns + LAP_PAUSE_NS
    before = ledger.advance(lap_ns - 1).shown.gauges
    after = ledger.advance(lap_ns + 1).shown.gauges
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values)
    assert not np.isnan(before["running"]).any()


def test_the_moment_of_a_ledger_never_goes_back() -> None:
    ledger = ServedLedger(*serve_sglang(long=False))
    later = ledger.advance(9 * NS_PER_S)
    assert ledger.advance(5 * NS_PER_S).seconds == later.seconds == 9


def test_vllm_gauges_are_of_the_last_step_with_work() -> None:
    outcome, engine = serve_vllm()
    ledger = ServedLedger(outcome, engine)
    running = ledger.advance(12 * NS_PER_S).running
    assert running.min() > 0
    rested = ledger.advance(END_NS)
    assert rested.running.tolist() == rested.waiting.tolist() == [0] * RANKS


def repeat(outcome: Outcome, times: int, every_ns: int) -> Outcome:
    """Let a world happen again and again."""
    count = len(outcome.steps["step"])

    def tile(table: Columns) -> Columns:
        parts = []
        for turn in range(times):
            shifts = {name: turn * every_ns for name in table if name in ("start_ns", "time_ns", *STAMPS)}
            shifts |= {"step": turn * count} if "step" in table else {}
            parts.append({name: values + shifts.get(name, 0) for name, values in table.items()})
        return {name: np.concatenate([part[name] for part in parts]) for name in table}

    names = ("steps", "rank_steps", "requests", "publishes")
    return replace(outcome, **{name: tile(getattr(outcome, name)) for name in names})


def test_vllm_tells_every_generated_token_also_of_requests_that_were_preempted() -> None:
    outcome, engine = serve_tight_vllm()
    counts = ServedLedger(outcome, engine).advance(END_NS).counts.by_rank
    assert counts["retracted"].sum() == outcome.requests["retractions"].sum() > 0
    made = np.bincount(outcome.requests["rank"], weights=outcome.requests["output_tokens"])
    np.testing.assert_allclose(counts["generated"] + counts["firsts"], made)


def test_vllm_counts_no_iteration_of_a_step_that_only_began_a_prompt() -> None:
    long, short = (
        ServedLedger(run_one([ask(0, tokens, 5, rank=0)], [VllmRules(10_000, budget_tokens=1_024)]), one_engine())
        for tokens in (5_000, 500)
    )
    assert long.count_steps() == short.count_steps() + 4
    assert [ledger.advance(END_NS).counts.by_rank["iterations"][0] for ledger in (long, short)] == [5, 5]


def one_engine() -> ServedEngine:
    return ServedEngine((10_000,), (1.0,), name="vllm", version="0.33.0")


def test_a_page_a_second_of_ten_minutes_costs_far_less_than_a_second() -> None:
    outcome, engine = serve_sglang(long=False)
    every_ns = ServedLedger(outcome, engine).last_ns + NS_PER_S
    ledger = ServedLedger(repeat(outcome, 600 * NS_PER_S // every_ns + 1, every_ns), engine)
    assert ledger.last_ns > 600 * NS_PER_S
    ledger.advance(540 * NS_PER_S)
    began = time.process_time()
    for second in range(541, 561):
        write_metrics(engine, ledger.advance(second * NS_PER_S), range(RANKS))
    assert (time.process_time() - began) / 20 < 0.25
