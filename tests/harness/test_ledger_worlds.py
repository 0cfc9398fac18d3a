"""Simulated deployments behave as their physics says and hold the truth that they are named for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.harness.ledger_engine import LedgerState
from dprankdiag.harness.ledger_sampling import sample_ledger
from dprankdiag.harness.ledger_steps import broadcast_tree
from dprankdiag.harness.ledger_worlds import (
    LEDGER_WORLDS,
    LedgerFault,
    LedgerWorld,
    Restart,
    day_world,
    faulty_day,
    ledger_truths,
    measure_growth,
    simulate_ledger,
    write_ledger_world,
)

FREE = ("stale", "kv_pressure")
"""Troubles that cost their own rank's requests, and not everybody's step."""


def run(world: LedgerWorld) -> LedgerState:
    """Run a world; give what it shows at its end."""
    state = list(simulate_ledger(world))[-1].state
    assert state is not None
    return state


def per_step(state: LedgerState, name: str) -> np.ndarray:
    """Give a counter per gather."""
    return np.asarray(state.counts.by_rank[name] / state.counts.by_rank["gathers"])


@pytest.mark.parametrize("name", [name for name, world in LEDGER_WORLDS.items() if world.faults])
def test_each_named_fault_is_true_and_costs_something(name: str) -> None:
    world = LEDGER_WORLDS[name]
    (true,) = ledger_truths(world)
    assert true.cause.split(".")[1].startswith(world.faults[0].kind.split("_")[0]) or true.cause == "uniform.slow"
    assert not true.accepted or true.accepted[0].split(".")[0] == true.cause.split(".")[0]
    if world.faults[0].kind not in FREE:
        settled_s = 120.0 if world.faults[0].kind == "speculation" else world.faults[0].start_s + 60.0
        assert measure_growth(replace(world, seconds=settled_s)) > 0.04


@pytest.mark.parametrize("name", [name for name, world in LEDGER_WORLDS.items() if not world.faults])
def test_healthy_worlds_have_no_truth_to_find(name: str) -> None:
    assert name.split("_")[0] == "healthy" or name.split("_")[1] in ("healthy", "several")
    assert ledger_truths(LEDGER_WORLDS[name]) == ()


def test_the_same_world_writes_the_same_pages() -> None:
    world = replace(LEDGER_WORLDS["requests"], seconds=10.0)
    once, again = ([tick.pages for tick in simulate_ledger(world)] for _ in range(2))
    assert once == again


def test_own_work_and_lag_behind_the_busiest_add_up_to_the_same_on_every_rank() -> None:
    counts = run(replace(LEDGER_WORLDS["requests"], seconds=20.0)).counts.by_rank
    for own, lag in (("tokens", "lag_tokens"), ("pairs", "lag_pairs")):
        assert np.allclose(counts[own] + counts[lag], (counts[own] + counts[lag])[0])
    assert np.ptp(counts["own_steps"] + counts["kept_steps"]) == 0


def test_time_is_spent_once() -> None:
    world = replace(LEDGER_WORLDS["healthy_small_counts"], seconds=60.0)
    counts = run(world).counts.by_rank
    stages = sum(counts[name] for name in ("control_s", "choose_s", "launch_s", "result_s", "idle_s"))
    assert np.allclose(stages, world.seconds, rtol=0.01)


def test_tokens_are_counted_where_they_are_made() -> None:
    state = run(replace(LEDGER_WORLDS["healthy"], seconds=30.0))
    counts = state.counts.by_rank
    assert np.allclose(counts["tokens"], counts["computed"] + counts["gaps"])
    assert np.allclose(counts["generated"], counts["gaps"])
    assert np.allclose(state.counts.together[2].sum(axis=0), counts["generated"])


def test_the_late_host_waits_least_when_both_waits_are_added() -> None:
    state = run(replace(LEDGER_WORLDS["host"], seconds=30.0))
    assert int(np.argmin(per_step(state, "gather_s") + per_step(state, "control_s"))) == 6


def test_the_rank_behind_the_late_one_in_the_tree_waits_as_little_in_the_gather() -> None:
    gather_s = per_step(run(replace(LEDGER_WORLDS["host"], seconds=30.0)), "gather_s")
    assert set(np.argsort(gather_s)[:2].tolist()) == {2, 6}
    assert np.sort(gather_s)[2] > 10 * np.sort(gather_s)[1]


def test_a_late_first_rank_does_not_show_in_the_gather() -> None:
    state = run(replace(LEDGER_WORLDS["host_first"], seconds=30.0))
    assert per_step(state, "gather_s").max() < 0.001
    assert per_step(state, "control_s")[1:].min() > 0.007


def test_a_slow_gpu_does_not_show_in_the_waits() -> None:
    sick, well = (run(replace(LEDGER_WORLDS["gpu"], seconds=30.0, faults=faults)) for faults in
                  (LEDGER_WORLDS["gpu"].faults, ()))  # fmt: skip
    waits = [per_step(state, "gather_s") + per_step(state, "control_s") for state in (sick, well)]
    assert np.abs(waits[0] - waits[1]).max() < 1e-4


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 16, 20])
def test_everybody_but_the_first_hears_the_broadcast_once(ranks: int) -> None:
    heard, known = [], {0}
    for receivers, senders in broadcast_tree(ranks):
        assert set(senders) <= known
        heard += receivers
        known |= set(receivers)
    assert sorted(heard) == list(range(1, ranks))


def test_an_idle_rank_keeps_its_last_gauges_and_publishes_on() -> None:
    fault = LedgerFault("idle", (2,), 1.0, start_s=20.0)
    world = replace(LEDGER_WORLDS["healthy"], rate_s=6.0, seconds=120.0, faults=(fault,))
    state = run(world)
    idle = np.arange(8) != 2
    assert (state.running[idle] == 0).all()
    assert (state.shown.gauges["running"][idle] > 0).any()
    assert (state.shown.snapshot["running"][idle] == 0).all()
    assert (120.0 - state.shown.snapshot["stamp_s"] < 3.0).all()


def test_a_stale_snapshot_ages_alone() -> None:
    age_s = 120.0 - run(LEDGER_WORLDS["stale"]).shown.snapshot["stamp_s"]
    assert age_s[4] > 55
    assert np.delete(age_s, 4).max() < 3


def test_a_restart_silences_the_pages_and_starts_the_counters_anew() -> None:
    world = replace(LEDGER_WORLDS["healthy"], seconds=90.0, restarts=(Restart(30.0, 10.0, ranks=4),))
    ticks = list(simulate_ledger(world))
    down = [tick.seconds for tick in ticks if not tick.pages]
    assert (min(down), max(down)) == (31.0, 40.0)
    (before,) = [tick.state for tick in ticks if tick.seconds == 30.0]
    (after,) = [tick.state for tick in ticks if tick.seconds == 41.0]
    assert before is not None
    assert after is not None
    assert (before.ranks, after.ranks) == (8, 4)
    assert after.counts.by_rank["own_steps"].max() < before.counts.by_rank["own_steps"].max() / 10


def test_ranks_with_pages_of_their_own_come_back_one_by_one() -> None:
    world = replace(
        LEDGER_WORLDS["vllm_requests_external"], seconds=60.0, restarts=(Restart(10.0, 10.0, stagger_s=3.0),)
    )
    shown = {tick.seconds: len(tick.pages) for tick in simulate_ledger(world)}
    assert (shown[9.0], shown[15.0], shown[22.0], shown[60.0]) == (8, 0, 1, 8)


def test_a_full_pool_sends_requests_back_on_its_rank_alone() -> None:
    counts = run(replace(LEDGER_WORLDS["kv_pressure"], seconds=90.0)).counts.by_rank
    assert counts["retracted"][4] > 0
    assert np.delete(counts["retracted"], 4).sum() == 0


def test_written_moments_are_inputs_of_the_command(tmp_path: Path) -> None:
    inputs = write_ledger_world(
        replace(LEDGER_WORLDS["healthy"], seconds=20.0), tmp_path, name="lab", seconds=(5.0, 20.0)
    )
    assert [text.partition("=")[0] for text in inputs] == ["lab@5", "lab@5", "lab@20", "lab@20"]
    assert all(Path(text.partition("=")[2]).stat().st_size > 1000 for text in inputs)


def test_drawn_worlds_can_be_run_and_are_of_many_kinds() -> None:
    worlds = [sample_ledger(seed) for seed in range(60)]
    kinds = {fault.kind for world in worlds for fault in world.faults}
    assert len(kinds) >= 9
    assert {world.engine for world in worlds} == {"sglang", "vllm"}
    for world in worlds[::12]:
        assert run(replace(world, seconds=5.0)).ranks == world.ranks


def test_a_day_holds_a_dead_night_and_a_change_of_size() -> None:
    world = day_world(1)
    assert {restart.ranks for restart in world.restarts} - {0}
    busy_s = [tick.state.counts.by_rank["idle_s"].min() for tick in simulate_ledger(
        replace(world, seconds=1800.0, start_hour=2.0, restarts=())) if tick.state]  # fmt: skip
    assert busy_s[-1] > 1000


def test_the_faults_of_a_day_do_not_overlap() -> None:
    truths = ledger_truths(faulty_day(5))
    assert all(before.end_s < after.start_s for before, after in pairwise(truths))
    assert truths[-1].end_s < 86_400
