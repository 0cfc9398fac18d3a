"""Reports of traces whose time misleads: late windows, unaligned hosts, coarse ticks, step marks inside other words."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dprankdiag.harness.events import FileClock
from dprankdiag.harness.faults import load_context, slow_gpu
from dprankdiag.harness.nsys_writer import write_export
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.worlds import World, simulate_world
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.pipelines.diagnose import Options, diagnose
from tests.proof.command import run_here
from tests.proof.filler import KERNEL, Range, fill, mark_ranges
from tests.proof.scenario import Scenario, attention_of, play
from tests.proof.verdicts import blamed, class_of, verdict, warned

LATE_BY_NS = 60_112_000_000
"""B06: the profiled process ran for a minute before its first kernel."""


@pytest.fixture(scope="module")
def late_start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("late") / "late.sqlite"
    world = World(seed=61, ranks=4, layers=4, faults=(load_context(3, 2.5),))
    write_export(simulate_world(world), path, clock=FileClock(session_start_ns=-LATE_BY_NS))
    return path


def test_a_window_counts_from_the_first_event_not_from_the_session(late_start: Path) -> None:
    whole = diagnose([late_start]).diagnosis
    windowed = diagnose([late_start], Options(window=(0.0, 1.0))).diagnosis
    assert whole.time.start_ns is not None
    assert whole.time.start_ns > LATE_BY_NS
    assert verdict(whole) == verdict(windowed)
    assert blamed(windowed) == {3}


def test_an_empty_window_exits_2_and_says_where_the_events_are(late_start: Path) -> None:
    answer = run_here("analyze", late_start, "--window", "60:61")
    assert (answer.code, answer.stdout) == (2, "")
    assert answer.stderr.count("\n") == 1
    with closing(sqlite3.connect(f"file:{late_start}?mode=ro", uri=True)) as database:
        first, last = database.execute(f'SELECT min(start), max("end") FROM {KERNEL}').fetchone()
    told = float(answer.stderr.split("between 0 and ")[1].split()[0])
    assert told == pytest.approx((last - first) / 1e9, rel=0.01)


def test_a_window_is_judged_by_itself(late_start: Path) -> None:
    answer = run_here("analyze", late_start, "--window", "0:1", "--format", "json")
    assert answer.code == 0
    assert json.loads(answer.stdout)["findings"][0]["ranks"] == [3]


def test_no_rank_waits_or_works_longer_than_the_wall_clock_ran(late_start: Path) -> None:
    diagnosis = diagnose([late_start]).diagnosis
    assert diagnosis.time.start_ns is not None
    assert diagnosis.time.end_ns is not None
    wall = diagnosis.time.end_ns - diagnosis.time.start_ns
    for rank in diagnosis.ranks:
        parts = (rank.work_ns, rank.wait_ns, rank.transfer_ns, rank.idle_ns)
        assert 0 < sum(part or 0 for part in parts) <= 1.01 * wall


@pytest.mark.parametrize("clock_ns", [300_000, 3_000_000])
def test_hosts_whose_clocks_differ_are_no_slow_network(tmp_path: Path, clock_ns: int) -> None:
    """B10: transfers of 30 µs on two hosts looked like 10 ms."""
    world = World(
        seed=62, ranks=4, layers=4, files="node", ranks_per_node=2, host_clock_ns=clock_ns, transfer_ns=30_000
    )
    paths = write_world(world, tmp_path / "even")
    assert len(paths) == 2
    even = diagnose(paths).diagnosis
    assert (even.status, warned(even)) == ("healthy", [])
    assert "communication" not in {class_of(finding) for finding in even.findings}
    ill = diagnose(write_world(replace(world, faults=(load_context(3, 2.5),)), tmp_path / "ill")).diagnosis
    assert {(class_of(finding), finding.ranks) for finding in warned(ill)} == {("load", (3,))}


def test_a_single_step_on_two_hosts_blames_nobody(tmp_path: Path) -> None:
    world = World(seed=63, ranks=4, steps=1, layers=4, files="node", ranks_per_node=2, host_clock_ns=500_000)
    diagnosis = diagnose(write_world(world, tmp_path)).diagnosis
    assert (diagnosis.status, warned(diagnosis)) == ("inconclusive", [])


TICKED_WORLDS = {
    "healthy": World(seed=64, ranks=4, layers=4),
    "load": World(seed=65, ranks=4, layers=4, faults=(load_context(1, 2.5),)),
    "gpu": World(seed=66, ranks=4, layers=4, faults=(slow_gpu(2, 1.25),)),
}


@pytest.mark.parametrize("tick_ns", [1_000, 1_024])
@pytest.mark.parametrize("name", TICKED_WORLDS)
def test_a_gpu_timer_of_one_megahertz_gives_the_same_verdict(tmp_path: Path, name: str, tick_ns: int) -> None:
    """B19: GPUs before H100 stamp by microseconds."""
    (path,) = write_world(TICKED_WORLDS[name], tmp_path)
    fine = diagnose([path]).diagnosis
    round_stamps(path, tick_ns)
    coarse = diagnose([path]).diagnosis
    assert verdict(coarse) == verdict(fine)
    assert fine.status == ("healthy" if name == "healthy" else "findings")


def round_stamps(path: Path, tick_ns: int) -> None:
    """Cut the stamps of everything that ran on a GPU to whole ticks."""
    with closing(sqlite3.connect(path)) as database:
        for table in (KERNEL, "CUPTI_ACTIVITY_KIND_MEMCPY"):
            database.execute(f'UPDATE {table} SET start = start / ?1 * ?1, "end" = "end" / ?1 * ?1', (tick_ns,))
        database.commit()


def with_lookalikes(ranges: Iterable[Range]) -> list[Range]:
    """Add to every step ranges whose names hold the word step, each far shorter than one."""
    found = list(ranges)
    for rank, text, start, end in list(found):
        if text == "step":
            found += [
                (rank, "optimizer_step_pre", start + 50, start + 700),
                (rank, "optimizer_step_post", end - 900, end - 100),
                (rank, "stepping_stone", start + 800, start + 1_500),
                (rank, "footsteps", end - 2_000, end - 1_200),
            ]
    return sorted(found, key=lambda item: (item[2], -item[3]))


def mark_steps(factor_of_rank_2: float) -> list[Range]:
    events = play(Scenario(factor=attention_of(2, factor_of_rank_2)))
    return [
        (rank, "step" if text == "decode_step" else text, start - 2_000, end + 2_000)
        if text == "decode_step"
        else (rank, text, start, end)
        for rank, text, start, end in mark_ranges(events)
    ]


@pytest.mark.parametrize("with_kernels", [False, True])
def test_a_step_mark_inside_another_word_is_no_step(tmp_path: Path, with_kernels: bool) -> None:
    """B21: matched as a substring, the median step fell to noise and real steps stood out by 390,703 %."""

    def judge(name: str, ranges: list[Range]) -> Diagnosis:
        events = play(Scenario(factor=attention_of(2, 2.0))) if with_kernels else []
        return diagnose([fill(tmp_path / f"{name}.sqlite", events, ranges)]).diagnosis

    plain = judge("plain", mark_steps(2.0))
    misleading = judge("misleading", with_lookalikes(mark_steps(2.0)))
    assert plain.step.median_ns is not None
    assert plain.step.median_ns > 400_000
    assert misleading.step.median_ns == pytest.approx(plain.step.median_ns, rel=0.02)
    assert misleading.time.steps == plain.time.steps
    assert verdict(misleading) == verdict(plain)
    assert {(class_of(finding), finding.ranks) for finding in misleading.findings} == {("load", (2,))}
    assert all((finding.window_lost_ratio or 0) < 1 for finding in misleading.findings)
