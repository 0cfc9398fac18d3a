"""A parquetdir says what the SQLite export of the same recording says."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.harness.faults import load_context, window
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.world import World
from dprankdiag.model.sources import Reading
from dprankdiag.readers import nsys_sqlite
from dprankdiag.readers.nsys_parquet import NsysParquetReader, read
from dprankdiag.readers.sniff import sniff
from tests.parquetdir import write_parquetdir
from tests.readers.builders import KERNEL, MEMCPY, RUNTIME, ExportBuilder, global_pid, global_tid
from tests.readers.checks import check_tables

PAYLOADS = ("real-nvtx-4proc-2022.4.2.sqlite", "real-nvtx-4proc-comm15-2022.4.2.sqlite")
TYPES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "dictionaries": {name: pa.dictionary(pa.int32(), pa.string()) for name in ("value", "name", "text")}
    | {name: pa.dictionary(pa.int8(), pa.int64()) for name in ("deviceId", "eventType", "gridX")},
    "large texts": {name: pa.large_string() for name in ("value", "name", "text")},
    "bytes": {name: pa.binary() for name in ("value", "name", "text")},
    "unsigned": {name: pa.uint64() for name in ("globalPid", "globalTid", "start", "end", "id", "utcEpochNs")},
    "narrow": {
        name: pa.int32() for name in ("deviceId", "streamId", "correlationId", "nameId", "shortName", "domainId")
    }
    | {name: pa.uint8() for name in ("eventType", "copyKind", "priority")},
}


def assert_same(folder: Reading, file: Reading) -> None:
    """Compare all that two readings say, besides where they come from."""
    assert folder.source == replace(file.source, path=folder.source.path, kind="nsys-parquet")
    for field in ("session", "capture", "actors", "names"):
        assert getattr(folder, field) == getattr(file, field)
    assert list(folder.tables) == list(file.tables)
    for table, columns in file.tables.items():
        for name, values in columns.items():
            assert folder.tables[table][name].dtype == values.dtype, (table, name)
            assert (folder.tables[table][name] == values).all(), (table, name)


def convert_and_compare(source: Path, folder: Path, **how: Any) -> Reading:
    reading = read(write_parquetdir(source, folder, **how))
    check_tables(reading)
    assert_same(reading, nsys_sqlite.read(source))
    return reading


def write_rich_export(path: Path) -> Path:
    """Write an export that has a row of everything that is read."""
    with ExportBuilder(path) as export:
        for pid in (5, 6):
            place = {"deviceId": 0, "streamId": 9, "globalPid": global_pid(pid, hardware=254)}
            for number in range(40):
                more: dict[str, Any] = {
                    "globalPid": place["globalPid"],
                    "correlationId": None if number == 7 else number,
                }
                more |= {"graphNodeId": number if number % 3 else None, "gridX": 2 + number % 3}
                export.kernel(pid, 100 * number, None if number == 9 else 100 * number + 50, f"k{number % 4}", **more)
            export.add(MEMCPY, start=5, end=6, bytes=64, copyKind=2, **place)
            thread = global_tid(pid, hardware=254)
            for number, name in enumerate(("cudaLaunchKernel_v7000", "cudaFree_v3020")):
                row = {"start": 90 * number, "end": 90 * number + 9, "globalTid": thread, "correlationId": number}
                export.add(RUNTIME, eventClass=0, nameId=export.text(name), **row)
            export.add("OSRT_API", start=3, end=4, globalTid=thread, nameId=export.text("poll"))
            export.add(
                "ThreadNames", nameId=export.text(f"sglang::scheduler_DP{pid - 5}"), priority=0, globalTid=thread
            )
            export.add("PROCESSES", globalPid=place["globalPid"], pid=pid, name="sglang::schedul")
            for start, text in ((1, "step, seq = 4, op_id = 7"), (2, None), (3, "kept\0SECRET=1")):
                export.range(pid, start, None if start == 3 else 9, text, globalTid=thread, textId=export.text("by id"))
            export.range(pid, 0, None, "engine", eventType=75, domainId=1, globalTid=thread)
            export.range(pid, 4, 5, "batch", domainId=1, uint32Value=3, globalTid=thread)
            export.range(pid, 6, None, "a mark", eventType=34, globalTid=thread)
            init = json.dumps({"No. of ranks": 2, "Rank": pid - 5, "CUDA device": 0})
            export.range(pid, 20, 21, "ncclCommInitRank", jsonText=init, globalTid=thread)
            export.range(pid, 10, 11, "ncclCommInitRank", jsonTextId=export.text(init), globalTid=thread)
        export.add("DIAGNOSTIC_EVENT", timestamp=-5, severity=2, text="Not all NVTX events might have been collected")
        export.add("DIAGNOSTIC_EVENT", timestamp=-5, severity=1, text="Profiling started")
        export.session(1_700_000_000_000_000_000, 55, "node-7")
        capture = {"CUDA_GRAPH_TRACE_OPTIONS:MODE": "Node", "PROCESS_0:ENVIRONMENT_VARIABLE": 'RANK="3"'}
        export.facts("META_DATA_CAPTURE", capture | {"PROCESS_0:COMMAND": "torchrun", "PROCESS_0:ARGUMENT_0": "--tp=2"})
        export.facts("META_DATA_EXPORT", {"EXPORT_PRODUCT_VERSION": "2026.2.1.210", "EXPORT_SCHEMA_VERSION": "3.25.0"})
        export.connection.execute("UPDATE StringIds SET value = CAST(X'67ff6d' AS TEXT) WHERE value = 'k0'")
        export.connection.execute("ALTER TABLE NVTX_EVENTS ADD binaryData TEXT")
        export.connection.execute("UPDATE NVTX_EVENTS SET binaryData = CAST(X'00fffe01' AS TEXT)")
    return path


@pytest.fixture
def rich(tmp_path: Path) -> Path:
    """Return an export that has a row of everything that is read."""
    return write_rich_export(tmp_path / "rich.sqlite")


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_real_capture_reads_the_same_from_a_folder(payloads: Path, tmp_path: Path, name: str) -> None:
    reading = convert_and_compare(payloads / "nsys" / name, tmp_path / "run")
    assert len(reading.actors) == 4
    assert len(reading.tables["ranges"]["rank"]) > 1000


def test_every_real_export_reads_the_same_from_a_folder(fixtures: Path, tmp_path: Path) -> None:
    paths = sorted((fixtures / "real" / "nsys").glob("*.sqlite"))
    assert len(paths) >= 8
    for path in paths:
        convert_and_compare(path, tmp_path / path.name)  # its name is evidence of its rank


@pytest.mark.parametrize("schema", ["legacy", "2.9", "3.0", "3.25"])
def test_worlds_of_every_age_read_the_same_from_a_folder(tmp_path: Path, schema: Any) -> None:
    world = World(seed=5, ranks=4, steps=12, layers=3, files="rank", faults=(load_context(2, 3.0, when=window(4, 9)),))
    for path in write_world(world, tmp_path, schema=schema):
        convert_and_compare(path, tmp_path / path.stem)


@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
def test_whatever_types_a_writer_chose_the_reading_is_the_same(rich: Path, tmp_path: Path, types: Any) -> None:
    reading = convert_and_compare(rich, tmp_path / "run", types=types)
    assert [actor.claims[0].source for actor in reading.actors] == ["nccl", "nccl"]
    assert reading.session.host == "node-7"
    assert reading.capture.diagnostics == ("Not all NVTX events might have been collected",)
    assert "SECRET" not in repr(reading)


@pytest.mark.parametrize("rows", [1, 7])
def test_short_row_groups_read_the_same(rich: Path, tmp_path: Path, rows: int) -> None:
    convert_and_compare(rich, tmp_path / "run", rows_a_group=rows)


def test_times_that_no_float_can_hold_come_out_to_the_nanosecond(tmp_path: Path) -> None:
    odd = 1_700_000_000_000_000_001
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(5, odd, odd + 2)
        export.kernel(5, odd + 4, None)
        export.range(5, odd, None, "open", int64Value=None)
        export.range(5, odd + 2, odd + 4, "closed", int64Value=2**62 + 1)
    reading = convert_and_compare(tmp_path / "a.sqlite", tmp_path / "run")
    assert reading.tables["kernels"]["end_ns"].tolist() == [odd + 2]
    assert 2**62 + 1 in reading.tables["ranges"]["value"].tolist()


@pytest.mark.parametrize("has_key", [True, False])
def test_more_texts_than_one_query_asks_for_are_all_found(tmp_path: Path, has_key: bool) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        for number in range(700):
            export.kernel(5, number, number + 1, f"k{number}")
        if not has_key:
            export.connection.execute("CREATE TABLE copy AS SELECT * FROM StringIds")
            export.connection.execute("DROP TABLE StringIds")
            export.connection.execute("ALTER TABLE copy RENAME TO StringIds")
    reading = convert_and_compare(tmp_path / "a.sqlite", tmp_path / "run")
    assert not [name for name in reading.names.kernel_names if name.short.startswith("#")]


def test_a_folder_is_left_untouched_and_needs_no_write_access(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "run")
    folder.chmod(0o555)
    try:
        before = {
            path.name: (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns)
            for path in folder.iterdir()
        }
        read(folder)
        after = {
            path.name: (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns)
            for path in folder.iterdir()
        }
        assert before == after
    finally:
        folder.chmod(0o755)


def test_a_folder_is_read_whatever_its_name(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "run")
    odd = tmp_path / os.fsdecode(b"odd \xff #1 %41 ?x")
    folder.rename(odd)
    assert read(odd).source.kernels == 80


def test_missing_tables_are_named_as_lacking(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "run")
    for table in (RUNTIME, "OSRT_API", "NVTX_EVENTS", "PROCESSES"):
        (folder / f"{table}.parquet").unlink()
    reading = read(folder)
    check_tables(reading)
    assert reading.source.status == "used"
    assert {"RUNTIME", "OSRT_API", "NVTX_EVENTS"} <= set(reading.source.lacked)
    assert reading.source.warnings == ("2 of 80 kernels left out: no end, or an end before their start",)


def test_missing_columns_read_as_their_defaults(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "run")
    path = folder / f"{KERNEL}.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["graphNodeId", "gridZ", "demangledName", "correlationId"]), path)
    reading = read(folder)
    assert reading.names.shapes[0] == (2, 1, 1, 128, 1, 1)
    assert not reading.tables["kernels"]["in_graph"].any()
    assert reading.names.kernel_names[1].demangled == "k1"


def test_a_table_without_any_known_column_counts_its_rows(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "run")
    pq.write_table(pa.table({"mine": [1, 2, 3]}), folder / f"{KERNEL}.parquet")
    assert "3 of 3 kernels left out" in read(folder).source.warnings[0]


def test_a_table_without_rows_is_as_good_as_none(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "run")
    for table in (KERNEL, RUNTIME, "NVTX_EVENTS", "StringIds", "META_DATA_CAPTURE"):
        path = folder / f"{table}.parquet"
        pq.write_table(pq.read_table(path).slice(0, 0) if table != "NVTX_EVENTS" else pa.table({}), path)
    reading = read(folder)
    check_tables(reading)
    assert (reading.source.status, reading.actors) == ("unused", ())
    assert {"KERNEL", "RUNTIME", "NVTX_EVENTS"} <= set(reading.source.lacked)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_text(path: Path) -> None:
    path.write_text("no parquet\n")


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def lead_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("gone"))


def garble_footer(path: Path) -> None:
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[-8:-4], "little")
    content[-8 - length : -8] = bytes(255 - byte for byte in content[-8 - length : -8])
    path.write_bytes(content)


BREAKAGES = {
    cut: "incomplete copy or export",
    empty: "empty file (0 bytes)",
    replace_by_text: "not a Parquet file",
    replace_by_pipe: "not a regular file",
    replace_by_folder: "not a regular file",
    lead_nowhere: "No such file",
    garble_footer: "",
}


@pytest.mark.parametrize("harm", BREAKAGES, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("table", [KERNEL, RUNTIME, "NVTX_EVENTS", "StringIds", "ThreadNames", MEMCPY])
def test_a_broken_table_is_named_and_the_others_are_read(
    rich: Path, tmp_path: Path, harm: Callable[[Path], None], table: str
) -> None:
    folder = write_parquetdir(rich, tmp_path / "run")
    harm(folder / f"{table}.parquet")
    reading = read(folder)
    check_tables(reading)
    assert reading.source.status == "partial"
    assert f"{table}.parquet could not be read: {BREAKAGES[harm]}" in reading.source.warnings[0]
    assert all("\n" not in warning for warning in reading.source.warnings)
    assert len(reading.actors) == 2
    assert reading.source.kernels == (0 if table == KERNEL else 80)


def test_a_table_without_permission_is_named(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "run")
    (folder / f"{RUNTIME}.parquet").chmod(0)
    if os.access(folder / f"{RUNTIME}.parquet", os.R_OK):
        pytest.skip("this user may read everything")
    assert f"{RUNTIME}.parquet could not be read: no permission to read it" in read(folder).source.warnings


def test_a_broken_page_keeps_what_was_read_before_it(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "run")
    path = folder / f"{KERNEL}.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(path)] * 1250), path, row_group_size=10_000)
    start = pq.read_metadata(path).row_group(7).column(0).dictionary_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 40] = b"\xff" * 40
    path.write_bytes(content)
    reading = read(folder)
    check_tables(reading)
    assert reading.source.status == "partial"
    assert reading.source.warnings[0].startswith(f"{KERNEL}.parquet could be read only in part: ")
    assert 30_000 < reading.source.kernels <= 70_000


def test_harm_anywhere_in_a_table_never_escapes(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "run", rows_a_group=16)
    path = folder / f"{KERNEL}.parquet"
    content, seen = path.read_bytes(), set()
    for place in range(4, len(content) - 4, max(1, len(content) // 150)):
        harmed = bytearray(content)
        harmed[place : place + 3] = bytes(byte ^ 0x5A for byte in harmed[place : place + 3])
        path.write_bytes(harmed)
        reading = read(folder)
        check_tables(reading)
        seen.add(reading.source.status)
    assert "partial" in seen


@pytest.mark.parametrize(
    "column, kind", [("end", pa.float64()), ("streamId", pa.string()), ("globalPid", pa.list_(pa.int64()))]
)
def test_a_column_of_another_type_stops_its_table_and_is_named(
    rich: Path, tmp_path: Path, column: str, kind: Any
) -> None:
    folder = write_parquetdir(rich, tmp_path / "run")
    path = folder / f"{MEMCPY}.parquet"
    table = pq.read_table(path)
    value: Any = {pa.float64(): 6.0, pa.string(): "6"}.get(kind, [6])
    place = table.schema.get_field_index(column)
    pq.write_table(table.set_column(place, column, pa.array([value] * table.num_rows, kind)), path)
    reading = read(folder)
    assert reading.source.status == "partial"
    assert f"{MEMCPY}.parquet could be read only in part: column {column} holds" in reading.source.warnings[0]
    assert reading.source.kernels == 80


def test_identities_of_another_type_are_passed_over(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "run")
    for table in (
        "ThreadNames",
        "PROCESSES",
        "TARGET_INFO_SESSION_START_TIME",
        "DIAGNOSTIC_EVENT",
        "META_DATA_CAPTURE",
    ):
        path = folder / f"{table}.parquet"
        found = pq.read_table(path)
        pq.write_table(pa.table({name: pa.array(["x"] * found.num_rows) for name in found.column_names}), path)
    pq.write_table(pa.table({"globalTid": ["a"], "rank": [1.5]}), folder / "MPI_RANKS.parquet")
    pq.write_table(pa.table({name: [[1]] for name in ("id", "cuDevice", "uuid")}), folder / "TARGET_INFO_GPU.parquet")
    reading = read(folder)
    assert [actor.claims[0].source for actor in reading.actors] == ["nccl", "nccl"]


def test_a_folder_of_which_nothing_opens_is_damaged(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "run")
    for path in folder.iterdir():
        cut(path)
    with pytest.raises(DamagedInput, match="none of its tables can be read") as caught:
        read(folder)
    assert "\n" not in str(caught.value)


def test_what_lies_beside_the_tables_is_told(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "run")
    shutil.copy(rich, folder / "same.sqlite")
    assert "what lies beside its tables is not read: same.sqlite" in read(folder).source.warnings


def test_columns_and_tables_added_by_users_are_ignored(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "run")
    path = folder / f"{KERNEL}.parquet"
    table = pq.read_table(path)
    table = table.append_column("mine", pa.array([{"a": 1}] * table.num_rows)).append_column("start", table["end"])
    pq.write_table(table, path)
    pq.write_table(pa.table({"x": [1]}), folder / "odd name.parquet")
    assert_same(read(folder), nsys_sqlite.read(rich))


def test_a_folder_is_known_by_its_tables(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "run.d")
    reader = NsysParquetReader()
    assert reader.can_read(folder)
    assert sniff(folder) == reader.kind == "nsys-parquet"
    assert reader.read(folder).source.kernels == 80
    (folder / "StringIds.parquet").unlink()
    assert not reader.can_read(folder)
    with pytest.raises(InputError, match="a folder"):
        read(folder)
    assert not reader.can_read(rich)
    with pytest.raises(InputError, match="no parquetdir export"):
        read(rich)


def test_one_table_alone_is_answered_with_its_folder(rich: Path, tmp_path: Path) -> None:
    folder = write_parquetdir(rich, tmp_path / "my run")
    with pytest.raises(InputError, match="one table of a parquetdir export") as caught:
        sniff(folder / f"{KERNEL}.parquet")
    assert caught.value.mend == f"give its folder: dprankdiag analyze '{folder}'"
