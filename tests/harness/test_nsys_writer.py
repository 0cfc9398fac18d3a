"""Written exports have the tables, columns and quirks of real ones."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.harness.events import UTC_START_NS, FileClock
from dprankdiag.harness.faults import load_context
from dprankdiag.harness.nsys_schema import AGES, Schema, create_table, has_table
from dprankdiag.harness.nsys_writer import pack_process, write_export
from dprankdiag.harness.suites import plan_files, write_world
from dprankdiag.harness.world import Files, Names
from dprankdiag.harness.worlds import World, simulate_world

SMALL = World(seed=5, ranks=4, steps=5, layers=2, faults=(load_context(2, 2.5),))
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
FIXTURES = Path(os.environ.get("DPRANKDIAG_FIXTURES", Path(__file__).parents[3] / "shared" / "fixtures"))
DEFINITIONS: dict[Schema, tuple[str, ...]] = {
    "legacy": ("schema-legacy-no-metadata.sql",),
    "2.9": ("schema-2022.2.1.sql",),
    "3.0": ("schema-2022.4.2.sql",),
    "3.25": ("schema-2026.4-doc.sql", "schema-2026.1.1.sql", "schema-2026.2.1.sql"),
}


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database and close it again."""
    with closing(sqlite3.connect(path)) as database:
        yield database


def tables(database: sqlite3.Connection) -> set[str]:
    """List the tables."""
    return {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def one(database: sqlite3.Connection, query: str) -> Any:
    """Ask for one value."""
    return database.execute(query).fetchone()[0]


def columns(database: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    """List name, type, NOT NULL and key of a table's columns."""
    return [(row[1], row[2], row[3], row[5]) for row in database.execute(f'PRAGMA table_info("{table}")')]


@pytest.mark.parametrize("schema", AGES)
@pytest.mark.parametrize(
    "world,more",
    [
        (SMALL, set()),
        (replace(SMALL, graph_mode="graph"), {"CUPTI_ACTIVITY_KIND_GRAPH_TRACE"}),
        (replace(SMALL, clears=True), {"CUPTI_ACTIVITY_KIND_MEMSET"}),
        (replace(SMALL, graph=False, two_batch_overlap=True), {"CUPTI_ACTIVITY_KIND_CUDA_EVENT"}),
    ],
    ids=["node", "graph", "clears", "overlap"],
)
def test_tables_have_the_columns_of_real_exports(tmp_path: Path, schema: Schema, world: World, more: set[str]) -> None:
    if not (FIXTURES / "nsys").is_dir():
        pytest.skip("no table definitions of real exports: set DPRANKDIAG_FIXTURES")
    (path,) = write_world(world, tmp_path, schema=schema)
    compared = 0
    with opened(path) as mine, opened(Path(":memory:")) as real:
        for name in DEFINITIONS[schema]:
            with opened(Path(":memory:")) as one_version:
                one_version.executescript((FIXTURES / "nsys" / name).read_text())
                for (statement,) in one_version.execute(
                    "SELECT sql FROM sqlite_master WHERE type = 'table'"
                ).fetchall():
                    table = statement.split('"')[1]
                    real.execute(f'DROP TABLE IF EXISTS "{table}"')
                    real.execute(statement)
        assert schema == "legacy" or tables(mine) >= more
        for table in sorted(tables(mine) & tables(real)):
            assert columns(mine, table) == columns(real, table), table
            compared += 1
    assert compared >= (8 if schema == "legacy" else 12)


@pytest.mark.parametrize("schema", AGES)
def test_an_export_holds_every_kernel_and_a_text_for_every_id(tmp_path: Path, schema: Schema) -> None:
    recording = simulate_world(SMALL)
    path = tmp_path / "world.sqlite"
    write_export(recording, path, schema=schema)
    with opened(path) as database:
        assert one(database, f"SELECT count(*) FROM {KERNELS}") == recording.kernel_count
        for table, column in [(KERNELS, "demangledName"), (KERNELS, "shortName"), (RUNTIME, "nameId")]:
            lost = f"SELECT count(*) FROM {table} WHERE {column} NOT IN (SELECT id FROM StringIds)"
            assert one(database, lost) == 0
        for rank, rows in enumerate(recording.rows):
            pid = pack_process(recording.processes[rank].pid)
            query = f"SELECT start, end FROM {KERNELS} WHERE globalPid = {pid} ORDER BY start"
            expected = list(zip(rows.kernels.start_ns.tolist(), rows.kernels.end_ns.tolist(), strict=True))
            assert database.execute(query).fetchall() == expected


@pytest.mark.parametrize(
    "schema,absent,present",
    [
        ("legacy", {"PROCESSES", "ANALYSIS_DETAILS", "EXPORT_META_DATA", "META_DATA_EXPORT"}, {"ThreadNames"}),
        ("2.9", {"META_DATA_EXPORT", "ENUM_CUDA_MEMCPY_OPER"}, {"EXPORT_META_DATA", "PROCESSES"}),
        ("3.0", {"META_DATA_EXPORT", "META_DATA_CAPTURE"}, {"EXPORT_META_DATA", "ENUM_CUDA_MEMCPY_OPER"}),
        ("3.25", {"EXPORT_META_DATA"}, {"META_DATA_EXPORT", "META_DATA_CAPTURE", "TARGET_INFO_CUDA_DEVICE"}),
    ],
)
def test_each_age_has_its_own_tables(tmp_path: Path, schema: Schema, absent: set[str], present: set[str]) -> None:
    (path,) = write_world(SMALL, tmp_path, schema=schema)
    with opened(path) as database:
        assert not tables(database) & absent
        assert tables(database) >= present


@pytest.mark.parametrize("graph", [True, False])
def test_memory_set_to_zero_is_neither_kernel_nor_copy(tmp_path: Path, graph: bool) -> None:
    (path,) = write_world(replace(SMALL, clears=True, graph=graph), tmp_path)
    with opened(path) as database:
        count = SMALL.ranks * SMALL.steps * SMALL.layers
        assert one(database, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_MEMSET") == count
        nodes = one(database, "SELECT count(graphNodeId) FROM CUPTI_ACTIVITY_KIND_MEMSET")
        assert nodes == (count if graph else 0)
        assert one(database, f"SELECT count(*) FROM {KERNELS}") == simulate_world(SMALL).kernel_count


def test_a_table_without_rows_is_not_there(tmp_path: Path) -> None:
    (path,) = write_world(replace(SMALL, runtime_rows=False, annotations="none", thread_titles=False), tmp_path)
    with opened(path) as database:
        gone = {RUNTIME, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "NVTX_EVENTS"}
        assert not tables(database) & gone


def test_a_whole_graph_recording_shows_replays_and_only_the_kernels_outside(tmp_path: Path) -> None:
    (path,) = write_world(replace(SMALL, graph_mode="graph"), tmp_path)
    with opened(path) as database:
        assert one(database, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE") == SMALL.ranks * SMALL.steps
        assert one(database, f"SELECT count(*) FROM {KERNELS} WHERE graphNodeId IS NOT NULL") == 0
        assert one(database, f"SELECT count(*) FROM {KERNELS}") == 2 * SMALL.ranks * SMALL.steps
        mode = "SELECT value FROM META_DATA_CAPTURE WHERE name = 'CUDA_GRAPH_TRACE_OPTIONS:MODE'"
        assert one(database, mode) == "Graph"


def test_kernels_find_their_launch_by_process_and_correlation_and_not_by_correlation_alone(tmp_path: Path) -> None:
    (path,) = write_world(replace(SMALL, graph=False), tmp_path)
    with opened(path) as database:
        joined = (
            f"SELECT count(*) FROM {KERNELS} k JOIN {RUNTIME} r ON r.correlationId = k.correlationId "
            "AND r.globalTid >> 24 = k.globalPid >> 24"
        )
        assert one(database, joined) == one(database, f"SELECT count(*) FROM {KERNELS}")
        assert one(database, joined.split(" AND ")[0]) > 1.5 * one(database, joined)


def test_a_process_is_named_in_fifteen_bytes_and_its_thread_in_full_if_it_says_so(tmp_path: Path) -> None:
    (path,) = write_world(SMALL, tmp_path, name="named")
    thread = "SELECT value FROM ThreadNames JOIN StringIds ON id = nameId ORDER BY globalTid"
    with opened(path) as database:
        assert one(database, "SELECT DISTINCT name FROM PROCESSES") == "sglang::schedul"
        assert one(database, thread) == "sglang::scheduler_DP0_TP0_EP0"
    (path,) = write_world(replace(SMALL, thread_titles=False), tmp_path, name="cut")
    with opened(path) as database:
        assert one(database, thread) == "sglang::schedul"


@pytest.mark.parametrize("names,devices", [("sglang", 4), ("vllm", 1)])
def test_devices_are_ordinals_inside_the_process(tmp_path: Path, names: Names, devices: int) -> None:
    (path,) = write_world(replace(SMALL, names=names), tmp_path)
    with opened(path) as database:
        assert one(database, f"SELECT count(DISTINCT deviceId) FROM {KERNELS}") == devices


def test_step_ranges_carry_the_step_and_lie_in_a_named_domain(tmp_path: Path) -> None:
    (path,) = write_world(SMALL, tmp_path)
    with opened(path) as database:
        domain = one(database, "SELECT DISTINCT domainId FROM NVTX_EVENTS WHERE eventType = 75 AND text = 'sglang'")
        steps = (
            "SELECT count(*), count(DISTINCT int64Value) FROM NVTX_EVENTS JOIN StringIds ON id = textId "
            f"WHERE value = 'decode_step' AND eventType = 59 AND domainId = {domain}"
        )
        assert database.execute(steps).fetchone() == (SMALL.ranks * SMALL.steps, SMALL.steps)


def test_batch_annotations_tell_the_uneven_context(tmp_path: Path) -> None:
    (path,) = write_world(SMALL, tmp_path)
    with opened(path) as database:
        query = "SELECT globalTid, text FROM NVTX_EVENTS WHERE text LIKE 'step[DECODE%' GROUP BY globalTid"
        held = [int(text.split("g_sk=")[1].rstrip("]")) for _, text in sorted(database.execute(query))]
    assert held[2] > 2 * max(held[0], held[1], held[3])


def test_session_clocks_shift_and_stretch_the_times_of_a_file(tmp_path: Path) -> None:
    recording = simulate_world(SMALL)
    clock = FileClock(session_start_ns=-5_000_000_000, wall_error_ns=700_000, drift_ppm=100.0, boot_ns=10**12)
    for name, used in (("true", None), ("shifted", clock)):
        write_export(recording, tmp_path / name, ranks=(1,), clock=used)
    with opened(tmp_path / "true") as true, opened(tmp_path / "shifted") as shifted:
        before, after = (one(it, f"SELECT min(start) FROM {KERNELS}") for it in (true, shifted))
        assert after == pytest.approx((before + 5_000_000_000) * 1.0001, abs=2)
        utc, boot = shifted.execute("SELECT utcEpochNs, systemClockNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
        assert (utc, boot) == (UTC_START_NS - 5_000_000_000 + 700_000, 10**12 - 5_000_000_000)


def test_files_of_one_host_share_its_boot_clock_exactly() -> None:
    world = replace(SMALL, files="rank", ranks_per_node=2, host_clock_ns=2_000_000)
    clocks = [clock for _, _, clock in plan_files(world)]
    assert len({clock.session_start_ns for clock in clocks}) == 4
    assert clocks[0].boot_ns == clocks[1].boot_ns != clocks[2].boot_ns
    assert clocks[0].wall_error_ns == clocks[1].wall_error_ns != clocks[2].wall_error_ns


@pytest.mark.parametrize("files,count", [("one", 1), ("node", 2), ("rank", 4)])
def test_ranks_are_written_into_as_many_files_as_asked(tmp_path: Path, files: Files, count: int) -> None:
    paths = write_world(replace(SMALL, files=files, ranks_per_node=0 if files == "one" else 2), tmp_path)
    assert len(paths) == count
    seen = 0
    for path in paths:
        with opened(path) as database:
            seen += one(database, f"SELECT count(DISTINCT globalPid) FROM {KERNELS}")
    assert seen == SMALL.ranks


def test_the_same_world_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (write_world(SMALL, tmp_path / name)[0].read_bytes() for name in ("a", "b"))
    assert first == second


def test_a_gpu_with_skewed_stamps_shifts_its_kernels_and_not_its_calls(tmp_path: Path) -> None:
    recording = simulate_world(replace(SMALL, gpu_skew_ns=5_000))
    write_export(recording, tmp_path / "skewed", ranks=(0,))
    rows = recording.rows[0]
    with opened(tmp_path / "skewed") as database:
        skew = recording.processes[0].gpu_skew_ns
        assert skew != 0
        assert one(database, f"SELECT min(start) FROM {KERNELS}") == rows.kernels.start_ns[0] + skew
        assert one(database, f"SELECT min(start) FROM {RUNTIME}") == rows.calls.start_ns[0]


def test_a_table_of_another_age_is_not_offered() -> None:
    assert not has_table("EXPORT_META_DATA", "3.25")
    assert has_table("EXPORT_META_DATA", "2.9")
    assert '"greenContextId"' not in create_table(KERNELS, "3.0")
    assert '"greenContextId" INTEGER, "streamId" INTEGER NOT NULL' in create_table(KERNELS, "3.25")
