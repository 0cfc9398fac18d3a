"""From files to one diagnosis."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dprankdiag.errors import DamagedInput, UsageError
from dprankdiag.harness.events import FileClock
from dprankdiag.harness.faults import load_context, slow_gpu
from dprankdiag.harness.nsys_writer import write_export
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.worlds import World, simulate_world
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.pipelines.diagnose import Options, diagnose, list_kernels

EVEN = World(seed=31, ranks=4, steps=40, layers=3)
HEAVY = replace(EVEN, faults=(load_context(2, 2.5),))
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(EVEN, tmp_path_factory.mktemp("even"))[0]


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_world(HEAVY, tmp_path_factory.mktemp("heavy"))[0]


def warned(diagnosis: Diagnosis) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(item.engine, item.cause, item.ranks) for item in diagnosis.findings if item.severity != "info"]


def test_even_ranks_are_healthy_and_uneven_ones_are_not(even: Path, heavy: Path) -> None:
    assert diagnose([even]).diagnosis.status == "healthy"
    found = diagnose([heavy]).diagnosis
    assert (found.status, warned(found)) == ("findings", [("default", "load.context", (2,))])


def test_the_same_input_gives_the_same_diagnosis(heavy: Path) -> None:
    assert diagnose([heavy]).diagnosis == diagnose([heavy]).diagnosis


def test_progress_names_the_stages(even: Path) -> None:
    told: list[str] = []
    diagnose([even], progress=lambda text, share: told.append(text))
    assert told[-2:] == ["matching collectives", "judging"]


def test_recordings_of_different_times_are_judged_apart_and_told_together(tmp_path: Path, heavy: Path) -> None:
    later = tmp_path / "later.sqlite"
    other = replace(EVEN, seed=32, faults=(slow_gpu(1, 1.4),))
    clock = FileClock(session_start_ns=-3_600_000_000_000)
    write_export(simulate_world(other), later, clock=clock)
    with closing(sqlite3.connect(later)) as database:
        database.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + 86400000000000")
        database.commit()
    found = diagnose([heavy, later]).diagnosis
    assert {(engine, cause, named) for engine, cause, named in warned(found)} == {
        (heavy.parent.name, "load.context", (2,)),
        (tmp_path.name, "single_point.gpu", (1,)),
    }
    assert len({(rank.engine, rank.rank) for rank in found.ranks}) == 8
    assert [item.id for item in found.findings] == [f"f{k}" for k in range(1, len(found.findings) + 1)]
    assert any("judged apart" in note for note in found.notes)
    assert found.time.steps == sum(diagnose([path]).diagnosis.time.steps for path in (heavy, later))


def test_a_window_is_judged_by_itself(heavy: Path) -> None:
    whole = diagnose([heavy]).diagnosis
    assert whole.time.start_ns is not None
    assert whole.time.end_ns is not None
    half = (whole.time.end_ns - whole.time.start_ns) / 2e9
    found = diagnose([heavy], Options(window=(0.0, half))).diagnosis
    assert warned(found) == warned(whole)
    assert 15 <= found.time.steps < 25


@pytest.mark.parametrize("window", [(50.0, 60.0), (0.0, 1e-9)])
def test_a_window_without_events_is_refused_with_the_range_that_has_some(
    heavy: Path, window: tuple[float, float]
) -> None:
    with pytest.raises(UsageError, match="holds no events") as raised:
        diagnose([heavy], Options(window=window))
    assert raised.value.where == "--window"
    assert "between 0 and" in raised.value.mend


def test_an_input_read_in_part_is_never_healthy(tmp_path: Path, even: Path) -> None:
    path = tmp_path / "damaged.sqlite"
    content = even.read_bytes()
    page_bytes = int.from_bytes(content[16:18], "big")
    partial = 0
    for page in range(len(content) // page_bytes // 2, len(content) // page_bytes, 25):
        path.write_bytes(content[: page * page_bytes] + bytes(page_bytes) + content[(page + 1) * page_bytes :])
        try:
            found = diagnose([path]).diagnosis
        except DamagedInput:
            continue
        if found.inputs[0].status == "partial":
            partial += 1
            assert found.status == "inconclusive"
            assert found.inputs[0].warnings
    assert partial


@pytest.mark.parametrize("lost", [0, 2, 3])
def test_while_a_rank_is_missing_nobody_is_named(tmp_path: Path, lost: int) -> None:
    paths = write_world(replace(HEAVY, files="rank"), tmp_path)
    found = diagnose([path for number, path in enumerate(paths) if number != lost]).diagnosis
    assert found.status == "inconclusive"
    assert found.findings == ()
    assert any(f"rank {lost} was not recorded" in note for note in found.notes)


def test_expected_ranks_that_are_not_there_are_missing(heavy: Path) -> None:
    found = diagnose([heavy], Options(expect_ranks=5)).diagnosis
    assert (found.status, found.findings) == ("inconclusive", ())
    assert any("rank 4 was not recorded" in note for note in found.notes)


def test_a_damaged_file_beside_a_good_one_is_reported(tmp_path: Path, heavy: Path) -> None:
    shutil.copy(heavy, tmp_path / "good.sqlite")
    content = heavy.read_bytes()
    (tmp_path / "bad.sqlite").write_bytes(content[: len(content) // 2])
    found = diagnose([tmp_path]).diagnosis
    assert {Path(item.path).name: item.status for item in found.inputs} == {
        "good.sqlite": "used",
        "bad.sqlite": "unused",
    }
    assert warned(found) == [("default", "load.context", (2,))]


def test_kernels_are_listed_by_time_with_their_families_and_shares(heavy: Path) -> None:
    rows = list_kernels(heavy)
    times = [row.total_ns for row in rows]
    assert times == sorted(times, reverse=True)
    assert sum(row.share_ratio for row in rows) == pytest.approx(1)
    assert {"attention", "moe_expert", "collective", "gemm"} <= {row.family for row in rows}
    assert {row.operation for row in rows if row.family == "collective"} >= {"all_gather", "reduce_scatter"}
    with closing(sqlite3.connect(heavy)) as database:
        ((count, total),) = database.execute(f'SELECT count(*), sum("end" - start) FROM {KERNELS}')
    assert (sum(row.calls for row in rows), sum(times)) == (count, total)
    assert all(row.ranks == (0, 1, 2, 3) for row in rows if row.family == "attention")


def test_patterns_name_what_nobody_knows(tmp_path: Path) -> None:
    (path,) = write_world(replace(HEAVY, names="invented"), tmp_path / "world")
    patterns = tmp_path / "patterns.toml"
    patterns.write_text('[[rule]]\nfamily = "attention"\npattern = "zz::ctx_mix"\n', encoding="utf-8")
    assert "attention" not in {row.family for row in list_kernels(path)}
    assert "attention" in {row.family for row in list_kernels(path, patterns)}


def test_tables_for_a_bundle_hold_a_row_a_step_and_rank(heavy: Path) -> None:
    outcome = diagnose([heavy])
    steps = outcome.diagnosis.time.steps
    assert len(outcome.tables["steps"]["step"]) == steps
    assert len(outcome.tables["rank_steps"]["rank"]) == 4 * steps
