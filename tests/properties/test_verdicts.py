"""What must not change a verdict: names of ranks, clocks, speed, the order of files, and rows lost by the profiler."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.harness.faults import Fault
from dprankdiag.harness.sampling import sample_healthy
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.world import Communication
from dprankdiag.harness.worlds import World
from dprankdiag.model.diagnosis import Diagnosis
from tests.properties.worlds import (
    EVEN,
    FAULTS,
    LONG,
    change,
    few,
    judge,
    lose_rows,
    move_times,
    permute,
    rename_ranks,
    verdict,
    worlds,
)

HOSTS: dict[str, Any] = {"files": "rank", "ranks_per_node": 1}
"""Every rank has a host, a recording and a clock of its own."""


def judge_world(world: World, *statements: str, times: str = "") -> Diagnosis:
    """Write a world, change its files, and diagnose them."""
    with tempfile.TemporaryDirectory() as folder:
        paths = write_world(world, Path(folder))
        change(paths, *statements)
        if times:
            move_times(paths, times)
        return judge(paths)


def judge_files(world: World, changes: Sequence[str], order: Sequence[int]) -> Diagnosis:
    """Write a world of several files, change the times of each in its own way, and give them in some order."""
    with tempfile.TemporaryDirectory() as folder:
        paths = write_world(world, Path(folder))
        for path, times in zip(paths, changes, strict=True):
            move_times([path], times)
        return judge([paths[number] for number in order])


@few
@given(worlds)
def test_a_fault_is_found_before_anything_is_changed(world: World) -> None:
    status, named = verdict(judge_world(world))
    (fault,) = world.faults
    assert status == "findings"
    assert {(cause.split(".")[0], ranks) for cause, ranks in named} == {(fault.cause.split(".")[0], fault.ranks)}


@few
@given(worlds, st.permutations(range(4)))
def test_permuting_the_ranks_permutes_the_verdict(world: World, order: list[int]) -> None:
    before, after = (verdict(judge_world(item)) for item in (world, permute(world, order)))
    assert after == rename_ranks(before, dict(enumerate(order)))


@few
@given(worlds, st.integers(-(10**12), 10**15))
def test_a_clock_that_starts_elsewhere_changes_nothing(world: World, offset_ns: int) -> None:
    before, after = (judge_world(world, times=times) for times in ("", f"{{t}} + {offset_ns}"))
    assert verdict(after) == verdict(before)
    assert after.lost == before.lost
    assert [item.summary for item in after.findings] == [item.summary for item in before.findings]


@few
@given(worlds)
def test_everything_twice_as_slow_has_the_same_cause_and_costs_the_same_share(world: World) -> None:
    before, after = (judge_world(world, times=times) for times in ("", "2 * {t}"))
    assert verdict(after) == verdict(before)
    assert before.lost.ratio is not None
    assert after.lost.ratio is not None
    assert abs(after.lost.ratio - before.lost.ratio) < 0.01


@few
@given(worlds, st.permutations(range(4)))
def test_the_order_of_files_is_irrelevant(world: World, order: list[int]) -> None:
    split = replace(world, **HOSTS, host_clock_ns=1_000_000)
    first, second = (judge_files(split, ["{t}"] * 4, item) for item in (range(4), order))
    assert verdict(first) == verdict(second)
    assert first.lost.ratio == pytest.approx(second.lost.ratio, rel=0.02)


shifts = st.lists(st.integers(-1_000_000_000, 1_000_000_000), min_size=4, max_size=4)
drifts = st.lists(st.integers(-50, 50), min_size=4, max_size=4)


@few
@given(worlds, shifts, drifts)
def test_clocks_a_second_apart_that_drift_keep_the_verdict(
    world: World, offsets_ns: list[int], drift_ppm: list[int]
) -> None:
    split = replace(world, **HOSTS)
    moved = [f"{{t}} + {{t}} * {ppm} / 1000000 + {off}" for off, ppm in zip(offsets_ns, drift_ppm, strict=True)]
    before, after = (judge_files(split, changes, range(4)) for changes in (["{t}"] * 4, moved))
    assert verdict(after) == verdict(before)


def judge_with_losses(world: World, share: float, seed: int, *, of_meetings: bool) -> Diagnosis:
    """Write a world, lose rows of its recording, and diagnose the rest."""
    with tempfile.TemporaryDirectory() as folder:
        (path,) = write_world(world, Path(folder))
        lose_rows(path, share, seed, of_meetings=of_meetings)
        return judge([path])


losses = pytest.mark.parametrize("seed", range(3))
each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.kind))


@losses
@each_fault
@pytest.mark.parametrize("base", [EVEN, LONG], ids=["short", "long"])
def test_one_collective_row_in_a_hundred_lost_keeps_the_verdict(base: World, fault: Fault, seed: int) -> None:
    world = replace(base, seed=seed, faults=(fault,))
    assert verdict(judge_with_losses(world, 0.01, seed, of_meetings=True)) == verdict(judge_world(world))


@losses
@each_fault
def test_three_other_rows_in_ten_lost_keep_the_verdict(fault: Fault, seed: int) -> None:
    world = replace(LONG, seed=seed, faults=(fault,))
    # Two kernels of experts a layer are too few to bear such a loss.
    share = 0.1 if fault.kind == "hot_expert" else 0.3
    assert verdict(judge_with_losses(world, share, seed, of_meetings=False)) == verdict(judge_world(world))


@losses
@each_fault
@pytest.mark.parametrize("share,of_meetings", [(0.05, True), (0.5, False)], ids=["meetings", "work"])
def test_lost_rows_never_accuse_the_innocent_nor_declare_health(
    fault: Fault, seed: int, share: float, of_meetings: bool
) -> None:
    world = replace(EVEN, seed=seed, faults=(fault,))
    status, named = verdict(judge_with_losses(world, share, seed, of_meetings=of_meetings))
    assert status != "healthy"
    assert {rank for _, ranks in named for rank in ranks} <= set(fault.ranks)


def check_sums(diagnosis: Diagnosis) -> None:
    """Check that every account of time closes."""
    lost = diagnosis.lost
    if lost.total_ns is not None and lost.unexplained_ns is not None:
        assert sum(item.lost_ns or 0 for item in lost.by_cause) + lost.unexplained_ns == lost.total_ns
        found = [item for item in diagnosis.findings if item.lost_ns is not None]
        assert sum(item.lost_ns or 0 for item in found) == sum(item.lost_ns or 0 for item in lost.by_cause)
    spent = [
        sum(time or 0 for time in (rank.work_ns, rank.wait_ns, rank.transfer_ns, rank.idle_ns))
        for rank in diagnosis.ranks
        if rank.work_ns is not None
    ]
    if spent and diagnosis.time.start_ns is not None and diagnosis.time.end_ns is not None:
        assert max(spent) <= 1.01 * (diagnosis.time.end_ns - diagnosis.time.start_ns)
        assert max(spent) - min(spent) <= 0.02 * max(spent)


@few
@given(worlds, st.sampled_from(["nccl", "deepep"]), st.integers(1, 2))
def test_sums_close(world: World, communication: Communication, attention_tp: int) -> None:
    check_sums(judge_world(replace(world, communication=communication, attention_tp=attention_tp)))


def test_healthy_worlds_raise_no_alarm() -> None:
    alarms = {}
    for name, world in sample_healthy(10, seed=77, kernels=20_000).items():
        found = judge_world(world)
        check_sums(found)
        if named := verdict(found)[1]:
            alarms[name] = named
    assert alarms == {}
