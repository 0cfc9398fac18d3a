from __future__ import annotations

import hashlib
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.model.schema import ABSENT_ID, ABSENT_NS
from dprankdiag.readers.nsys_sqlite import read
from tests.readers.builders import (
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    OVERHEAD,
    SYNC,
    ExportBuilder,
    global_pid,
    global_tid,
)
from tests.readers.checks import check_tables

NAMED = "real-nvtx-4proc-2022.4.2.sqlite"
CUT = "real-nvtx-4proc-comm15-2022.4.2.sqlite"


def test_a_real_capture_gives_four_processes_named_by_their_threads(payloads: Path) -> None:
    reading = read(payloads / "nsys" / NAMED)
    check_tables(reading)
    assert [actor.pid for actor in reading.actors] == [26, 27, 28, 29]
    assert [actor.claims[0].rank for actor in reading.actors] == [0, 1, 2, 3]
    assert {(actor.claims[0].source, actor.claims[0].grade) for actor in reading.actors} == {("thread-name", "sure")}
    assert reading.actors[2].claims[0].dp_rank == 2
    assert reading.source.lacked == ("KERNEL", "RUNTIME", "SCHED_EVENTS", "GPU_METRICS")
    assert (reading.source.status, reading.source.producer) == ("used", "2022.4.2")
    assert reading.session.host == "demo-node"


def test_a_name_cut_to_fifteen_bytes_claims_nothing(payloads: Path) -> None:
    reading = read(payloads / "nsys" / CUT)
    assert [actor.pid for actor in reading.actors] == [26, 27, 28, 29]
    assert {actor.process for actor in reading.actors} == {"sglang::schedul"}
    assert all(actor.claims == () for actor in reading.actors)


def test_ranges_of_a_real_capture_carry_domain_value_and_registered_names(payloads: Path) -> None:
    reading = read(payloads / "nsys" / NAMED)
    ranges, names = reading.tables["ranges"], reading.names
    steps = ranges["name_id"] == names.range_names.index("decode_step")
    assert steps.sum() == 560
    assert {names.domain_names[number] for number in ranges["domain_id"][steps]} == {"sglang"}
    for rank in range(4):
        assert sorted(ranges["value"][steps & (ranges["rank"] == rank)].tolist()) == list(range(140))
    assert (ranges["thread"] == ranges["rank"] + 26).all()
    assert not ranges["is_open"].any()
    slow = ranges["name_id"] == names.range_names.index("attention")
    spent = (ranges["end_ns"] - ranges["start_ns"])[slow & (ranges["rank"] == 2)]
    assert np.median(spent[30:70]) - np.median(spent[70:]) == pytest.approx(4_000_000, rel=0.05)


def test_reading_leaves_the_file_and_its_folder_untouched(payloads: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(payloads / "nsys" / NAMED, tmp_path / "a.sqlite"))
    tmp_path.chmod(0o555)
    try:
        before = (hashlib.sha256(path.read_bytes()).digest(), path.stat().st_mtime_ns, sorted(tmp_path.iterdir()))
        read(path)
        assert before == (
            hashlib.sha256(path.read_bytes()).digest(),
            path.stat().st_mtime_ns,
            sorted(tmp_path.iterdir()),
        )
    finally:
        tmp_path.chmod(0o755)


def test_a_wal_header_without_side_files_is_read_without_making_them(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "made.sqlite") as export:
        export.kernel(1, 10, 20)
    content = bytearray((tmp_path / "made.sqlite").read_bytes())
    content[18:20] = b"\x02\x02"
    (tmp_path / "made.sqlite").unlink()
    (tmp_path / "wal.sqlite").write_bytes(content)
    assert read(tmp_path / "wal.sqlite").source.kernels == 1
    assert [path.name for path in tmp_path.iterdir()] == ["wal.sqlite"]


def test_every_known_schema_without_rows_is_read(fixtures: Path, tmp_path: Path) -> None:
    scripts = sorted((fixtures / "nsys").glob("schema-*.sql"))
    assert len(scripts) >= 16
    for script in scripts:
        path = tmp_path / f"{script.stem}.sqlite"
        connection = sqlite3.connect(path)
        connection.executescript(script.read_text())
        connection.close()
        reading = read(path)
        check_tables(reading)
        assert reading.actors == ()
        assert reading.source.status == "unused"
        wished = ("KERNEL", "RUNTIME", "NVTX_EVENTS", "OSRT_API", "SCHED_EVENTS", "GPU_METRICS")
        assert reading.source.lacked == wished, script.name


def test_every_real_export_is_read(fixtures: Path) -> None:
    kernels = {}
    for path in sorted((fixtures / "real" / "nsys").glob("*.sqlite")):
        reading = read(path)
        check_tables(reading)
        kernels[path.name.split("-")[1]] = reading.source.kernels
        assert reading.source.status != "partial", reading.source.warnings
    assert kernels == {
        "nsysai": 4010,
        "jacc": 0,
        "cestwc": 86,
        "pipit": 1312,
        "python": 0,
        "rodinia": 8190,
        "mordred": 12,
    }


def test_a_reading_of_a_real_export_quotes_no_environment(fixtures: Path) -> None:
    secrets = ("LD_LIBRARY_PATH", "PATH=", "SLURM_JOB", "LMOD_", "HOME=", "SSH_", "/opt/cray", "PYTHONPATH", "WANDB")
    for path in sorted((fixtures / "real" / "nsys").glob("*.sqlite")):
        shown = repr(read(path))
        assert not [secret for secret in secrets if secret in shown], path.name


def test_launch_times_come_from_the_call_of_the_same_process(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        for pid in (5, 6):
            export.kernel(pid, 100, 200, correlationId=7)
            export.kernel(pid, 300, 400, correlationId=8)
            export.kernel(pid, 500, 600, correlationId=None)
            export.call(pid, 10 * pid, 10 * pid + 5, "cudaLaunchKernel_v7000", correlation=7)
        export.call(5, 40, 90, "cudaLaunchKernelExC", correlation=7)
    launch = read(tmp_path / "a.sqlite").tables["kernels"]["launch_ns"].tolist()
    assert launch == [90, ABSENT_NS, ABSENT_NS, 65, ABSENT_NS, ABSENT_NS]


def test_far_apart_correlation_ids_still_find_their_calls(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        for number, correlation in enumerate((3, 2_000_000_000, 4_294_967_000)):
            export.kernel(5, 100 + number, 200, correlationId=correlation)
            export.call(5, number, 10 + number, "cuLaunchKernel", correlation=correlation)
        export.call(5, 0, 99, "cuLaunchKernel", correlation=1_999_999_999)
    assert read(tmp_path / "a.sqlite").tables["kernels"]["launch_ns"].tolist() == [10, 11, 12]


def test_only_calls_that_block_are_kept(tmp_path: Path) -> None:
    names = {
        "cudaDeviceSynchronize_v3020": True,
        "cudaMalloc_v3020": True,
        "cudaFree_v3020": True,
        "cudaMemcpy_v3020": True,
        "cuModuleLoadData": True,
        "cuMemAlloc_v2": True,
        "cudaMemcpyAsync_v3020": False,
        "cudaMallocAsync_v11020": False,
        "cudaEventQuery_v3020": False,
        "cudaStreamWaitEvent_v3020": False,
        "cudaLaunchKernel_v7000": False,
    }
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(5, 100, 200)
        for number, name in enumerate(names):
            export.call(5, number, number + 1, name, correlation=50 + number, tid=77)
            export.call(9, number, number + 1, name, correlation=50 + number)
        export.add("OSRT_API", start=3, end=4, globalTid=global_tid(5), nameId=export.text("poll"))
        export.add("OSRT_API", start=3, end=4, globalTid=global_tid(9), nameId=export.text("read"))
    reading = read(tmp_path / "a.sqlite")
    calls, texts = reading.tables["calls"], reading.names.call_names
    assert {texts[number] for number in calls["name_id"]} == {name for name, kept in names.items() if kept}
    assert set(calls["thread"].tolist()) == {77}
    assert [texts[number] for number in reading.tables["os_calls"]["name_id"]] == ["poll"]


def test_kernels_without_a_span_are_left_out_and_counted(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        for start, end in ((10, 20), (30, None), (None, 40), (60, 50), (70, 70)):
            export.kernel(5, start, end)
    reading = read(tmp_path / "a.sqlite")
    assert reading.tables["kernels"]["start_ns"].tolist() == [10, 70]
    assert reading.source.kernels == 5
    assert "3 of 5 kernels left out" in reading.source.warnings[0]


def test_ranges_without_an_end_last_until_the_capture_ends(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(5, 100, 900)
        export.range(5, 10, None, "open")
        export.range(5, 20, 40, "closed", eventType=60, endGlobalTid=global_tid(5, 9))
        export.range(5, 50, None, "a mark", eventType=34)
    reading = read(tmp_path / "a.sqlite")
    ranges = reading.tables["ranges"]
    assert ranges["end_ns"].tolist() == [900, 40]
    assert ranges["is_open"].tolist() == [True, False]
    assert "never ended" in reading.source.warnings[0]


def test_serial_numbers_are_stripped_from_range_names(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.range(5, 1, 2, "aten::mm, seq = 45, op_id = 9, sizes = [[1, 2]]")
        export.range(5, 3, 4, "aten::mm, op_id = 10")
        export.range(5, 5, 6, None, textId=export.text("aten::mm, seq = 3"))
        export.range(5, 7, 8, "aten::mm, sizes = [[3]]")
        export.range(5, 9, 10, None)
        export.range(5, 11, 12, None, textId=4711)
    reading = read(tmp_path / "a.sqlite")
    names = [reading.names.range_names[number] for number in reading.tables["ranges"]["name_id"]]
    assert names == ["aten::mm"] * 4 + ["", "#4711"]
    assert len(reading.names.range_names) == 3


def test_domains_are_named_by_process_and_nccl_by_its_ranges(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.range(5, 0, None, "engine", eventType=75, domainId=1)
        export.range(5, 1, 2, "step", domainId=1, uint32Value=3, int64Value=None)
        export.range(6, 1, 2, "ncclAllGather", domainId=1)
        export.range(6, 3, 4, "other", domainId=2)
        export.range(6, 5, 6, "plain")
    reading = read(tmp_path / "a.sqlite")
    ranges = reading.tables["ranges"]
    assert [reading.names.domain_names[number] for number in ranges["domain_id"]] == ["engine", "NCCL", "#2", ""]
    assert ranges["value"].tolist() == [3, ABSENT_NS, ABSENT_NS, ABSENT_NS]


def test_text_that_is_not_utf8_or_holds_nul_is_read(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(5, 1, 2, "gemm")
        export.connection.execute("UPDATE StringIds SET value = CAST(X'67ff6d' AS TEXT) WHERE value = 'gemm'")
        export.range(5, 1, 2, "kept\0SECRET=1")
        export.connection.execute(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, text)"
            " VALUES (3, 4, 59, ?, CAST(X'61fe62' AS TEXT))",
            (global_tid(5),),
        )
    reading = read(tmp_path / "a.sqlite")
    assert reading.names.kernel_names[0].short == "g\ufffdm"
    assert reading.names.range_names == ("kept", "a\ufffdb")
    assert "SECRET" not in repr(reading)


def test_names_missing_from_the_text_table_show_their_id(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(5, 1, 2, demangledName=900, shortName=901)
    name = read(tmp_path / "a.sqlite").names.kernel_names[0]
    assert (name.demangled, name.short) == ("#900", "#901")


def test_columns_and_tables_added_by_users_are_ignored(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(5, 1, 2)
        export.connection.execute(f"ALTER TABLE {KERNEL} ADD name TEXT")
        export.connection.execute('CREATE TABLE "odd ""name" (x)')
        export.connection.execute(f"CREATE INDEX mine ON {KERNEL} (start)")
    assert read(tmp_path / "a.sqlite").source.kernels == 1


def test_missing_columns_read_as_their_defaults(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(5, 1, 2)
        for column in ("graphNodeId", "gridZ", "demangledName", "correlationId"):
            export.connection.execute(f"ALTER TABLE {KERNEL} DROP COLUMN {column}")
    reading = read(tmp_path / "a.sqlite")
    assert reading.names.shapes == ((4, 1, 1, 128, 1, 1),)
    assert reading.names.kernel_names[0].demangled == "gemm"
    assert not reading.tables["kernels"]["in_graph"].any()


def test_devices_of_one_process_are_actors_of_their_own(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(7, 1, 2, deviceId=1, correlationId=4)
        export.kernel(7, 3, 4, deviceId=0, correlationId=5)
        export.call(7, 0, 1, "cudaLaunchKernel", correlation=4)
        export.call(7, 0, 2, "cudaLaunchKernel", correlation=5)
        export.thread_name(7, "sglang::scheduler_DP0_TP0_EP0")
        export.range(7, 0, 1, "step")
    reading = read(tmp_path / "a.sqlite")
    assert [(actor.pid, actor.device, actor.claims) for actor in reading.actors] == [(7, 0, ()), (7, 1, ())]
    assert reading.tables["kernels"]["launch_ns"].tolist() == [2, 1]
    assert reading.tables["ranges"]["rank"].tolist() == [0]


def test_pids_come_out_right_where_hardware_ids_make_them_negative(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(5, 1, 2, globalPid=global_pid(5, hardware=254))
        export.add("OSRT_API", start=1, end=2, globalTid=global_tid(5, 8, hardware=254), nameId=export.text("poll"))
    reading = read(tmp_path / "a.sqlite")
    assert [actor.pid for actor in reading.actors] == [5]
    assert reading.tables["os_calls"]["thread"].tolist() == [8]


def test_small_tables_follow_their_declarations(tmp_path: Path) -> None:
    place = {"deviceId": 0, "streamId": 9, "globalPid": global_pid(5)}
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(5, 1, 2, graphNodeId=4)
        export.add(MEMCPY, start=5, end=6, bytes=64, copyKind=2, **place)
        export.add(MEMCPY, start=5, end=6, bytes=64, copyKind=2, **(place | {"deviceId": 3}))
        export.add(MEMSET, start=3, end=4, bytes=32, **place)
        export.add(SYNC, start=7, end=8, syncType=4, **(place | {"streamId": 4_294_967_295}))
        export.add(SYNC, start=8, end=9, syncType=3, **(place | {"deviceId": 2}))
        export.add(GRAPH, start=10, end=20, graphId=3, graphExecId=4, **place)
        for kind in (3, 5, 7, 8):
            export.add(OVERHEAD, start=kind, end=9, globalTid=global_tid(5), overheadType=kind)
        export.add("PROFILER_OVERHEAD", start=1, end=2, globalTid=global_tid(5), nameId=1)
        export.add("PROFILER_OVERHEAD", start=1, end=2, globalTid=global_tid(6), nameId=1)
    tables = read(tmp_path / "a.sqlite").tables
    assert tables["copies"]["kind"].tolist() == [0, 2]
    assert tables["copies"]["size_bytes"].tolist() == [32, 64]
    assert tables["syncs"]["stream"].tolist() == [ABSENT_ID, 9]
    assert tables["graph_replays"]["graph_id"].tolist() == [3]
    assert tables["overheads"]["start_ns"].tolist() == [1, 3, 5]
    assert tables["kernels"]["in_graph"].all()


def test_a_graph_launch_without_graph_rows_is_named_as_lacking(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(5, 1, 2)
        export.call(5, 0, 1, "cudaGraphLaunch_v10000")
    assert "GRAPH_TRACE" in read(tmp_path / "a.sqlite").source.lacked
