"""Two real captures of four processes: in steps 30 to 69 rank 2 computes 4 ms longer, in 80, 90, 100 rank 1 stalls."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dprankdiag.model.diagnosis import Diagnosis, Finding
from dprankdiag.pipelines.diagnose import diagnose
from tests.proof.verdicts import value_of, waits_of

MS = 1_000_000
NAMED = "real-nvtx-4proc-2022.4.2"
CUT = "real-nvtx-4proc-comm15-2022.4.2"
HEAVY = range(30, 70)
STALLED = (80, 90, 100)

_FOUND: dict[str, Diagnosis] = {}


@pytest.fixture(params=[NAMED, CUT])
def capture(request: pytest.FixtureRequest, captures: Path) -> Path:
    return captures / f"{request.param}.sqlite"


def diagnose_once(path: Path) -> Diagnosis:
    if path.stem not in _FOUND:
        _FOUND[path.stem] = diagnose([path]).diagnosis
    return _FOUND[path.stem]


@pytest.fixture
def diagnosis(capture: Path) -> Diagnosis:
    return diagnose_once(capture)


def read_truth(capture: Path) -> dict[str, dict[tuple[int, int], int]]:
    """Read what the workers measured themselves: column to (rank, step) to nanoseconds."""
    with capture.with_suffix(".truth.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = ("compute_ns", "stall_ns", "gather_ns")
    return {name: {(int(row["rank"]), int(row["step"])): int(row[name]) for row in rows} for name in columns}


def step_at(capture: Path, moment_ns: int) -> int:
    """Find the step whose range, by its own payload, begins nearest to a moment."""
    query = (
        "SELECT int64Value, min(start) FROM NVTX_EVENTS AS event JOIN StringIds ON id = textId"
        " WHERE value = 'decode_step' GROUP BY int64Value"
    )
    with closing(sqlite3.connect(f"file:{capture}?mode=ro", uri=True)) as database:
        starts = database.execute(query).fetchall()
    return int(min(starts, key=lambda item: abs(item[1] - moment_ns))[0])


def load_of(diagnosis: Diagnosis) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.cause.startswith("load."))


def stall_of(diagnosis: Diagnosis) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.cause == "single_point.host")


def test_the_truth_is_what_the_workers_measured(capture: Path) -> None:
    truth = read_truth(capture)
    stalls = {key for key, stall in truth["stall_ns"].items() if stall > 10 * MS}
    assert stalls == {(1, step) for step in STALLED}
    assert {step for (rank, step), ns in truth["compute_ns"].items() if rank == 2 and ns > 6 * MS} >= set(HEAVY)


def test_both_faults_are_found_and_nothing_else(diagnosis: Diagnosis) -> None:
    assert diagnosis.status == "findings"
    assert len(diagnosis.findings) == 2
    load, stall = load_of(diagnosis), stall_of(diagnosis)
    assert load.cause in ("load.unknown", "load.context")
    assert (load.ranks, load.who, load.severity) == ((2,), "one", "critical")
    assert (stall.ranks, stall.who, stall.when) == ((1,), "one", "burst")


def test_the_load_finding_covers_steps_30_to_69(capture: Path, diagnosis: Diagnosis) -> None:
    window = load_of(diagnosis).window
    assert abs(step_at(capture, window.start_ns) - HEAVY.start) <= 1
    assert abs(step_at(capture, window.end_ns) - HEAVY.stop) <= 1
    assert load_of(diagnosis).onset_ns is not None
    assert abs(step_at(capture, load_of(diagnosis).onset_ns or 0) - HEAVY.start) <= 1


def test_the_stalls_lie_in_steps_80_to_100(capture: Path, diagnosis: Diagnosis) -> None:
    window = stall_of(diagnosis).window
    assert abs(step_at(capture, window.start_ns) - STALLED[0]) <= 1
    assert abs(step_at(capture, window.end_ns) - (STALLED[-1] + 1)) <= 1
    assert value_of(stall_of(diagnosis), "stalls") == len(STALLED)


def test_a_quarter_of_the_excess_would_stay_if_it_were_shared(diagnosis: Diagnosis) -> None:
    load = load_of(diagnosis)
    assert (load.lost_ns or 0) / len(HEAVY) == pytest.approx(2.9 * MS, rel=0.05)
    assert value_of(load, "attention_excess_ns") == pytest.approx(4.0 * MS, rel=0.05)
    assert value_of(load, "post_gather_ratio") == pytest.approx(1.0, abs=0.05)


def test_the_others_wait_and_the_culprit_does_not(capture: Path, diagnosis: Diagnosis) -> None:
    load = load_of(diagnosis)
    gathers = read_truth(capture)["gather_ns"]
    measured = sorted(gathers[rank, step] for rank in (0, 1, 3) for step in HEAVY)[len(HEAVY) * 3 // 2]
    assert measured == pytest.approx(4.2 * MS, rel=0.08)
    assert value_of(load, "peers_wait_ns_per_step") == pytest.approx(4.2 * MS, rel=0.08)
    assert value_of(load, "wait_ns_per_step") < 0.25 * MS
    waits = waits_of(diagnosis)
    assert min(waits, key=lambda rank: waits[rank]) == 2


def test_each_stall_costs_its_20_ms(diagnosis: Diagnosis) -> None:
    stall = stall_of(diagnosis)
    assert value_of(stall, "stall_ns") == pytest.approx(20 * MS, rel=0.05)
    assert (stall.lost_ns or 0) / len(STALLED) == pytest.approx(20 * MS, rel=0.05)


def test_without_the_fault_the_replay_predicts_the_other_steps(diagnosis: Diagnosis) -> None:
    assert abs(value_of(load_of(diagnosis), "onset_error_ratio")) <= 0.05
    assert (diagnosis.time.replay_error_ratio or 0) <= 0.03


def test_lost_time_is_accounted_for_once(diagnosis: Diagnosis) -> None:
    lost = diagnosis.lost
    assert lost.total_ns is not None
    assert lost.unexplained_ns is not None
    assert sum(finding.lost_ns or 0 for finding in diagnosis.findings) + lost.unexplained_ns == lost.total_ns
    assert abs(lost.unexplained_ns) < 0.03 * lost.total_ns


def test_thread_names_make_the_ranks_sure(captures: Path) -> None:
    diagnosis = diagnose_once(captures / f"{NAMED}.sqlite")
    assert [(rank.rank, rank.pid, rank.grade) for rank in diagnosis.ranks] == [
        (number, 26 + number, "sure") for number in range(4)
    ]


def test_names_cut_at_15_bytes_leave_the_ranks_assumed_and_the_processes_named(captures: Path) -> None:
    diagnosis = diagnose_once(captures / f"{CUT}.sqlite")
    assert [(rank.rank, rank.pid, rank.grade) for rank in diagnosis.ranks] == [
        (number, 26 + number, "assumed") for number in range(4)
    ]
    for finding, process in ((load_of(diagnosis), "28"), (stall_of(diagnosis), "27")):
        assert f"process {process}" in finding.summary
        assert "assumed" in finding.summary
        assert finding.confidence <= 0.9
