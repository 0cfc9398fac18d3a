from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprankdiag.errors import InputError, UsageError
from dprankdiag.model.schema import ABSENT_NS, count_rows
from dprankdiag.model.sources import Reading, Trace
from dprankdiag.model.traces import TRACE_TABLES
from dprankdiag.readers.gather import gather
from dprankdiag.readers.nsys_sqlite import read
from dprankdiag.readers.rank_map import parse_rank_map
from tests.readers.builders import ExportBuilder

UTC = 1_790_000_000_000_000_000


def make(
    path: Path, pids: tuple[int, ...] = (5,), titles: dict[int, str] | None = None, utc: int | None = UTC, **more: Any
) -> Reading:
    """Write and read a file with two kernels a process, the launch of the first being known."""
    with ExportBuilder(path) as export:
        for pid in pids:
            export.kernel(pid, 1000 + pid, 2000, f"k{pid}", correlationId=1, gridX=pid)
            export.kernel(pid, 3000, 4000, "shared", correlationId=2)
            export.call(pid, 10, 20, "cudaLaunchKernel", correlation=1)
            export.range(pid, 0, 5000, f"step {pid}")
        for pid, name in (titles or {}).items():
            export.thread_name(pid, name)
        if utc is not None:
            export.session(utc, more.get("system"), more.get("host"))
        for name, value in more.get("capture", {}).items():
            export.facts("META_DATA_CAPTURE", {name: value})
    return read(path)


def ranks(trace: Trace) -> list[tuple[int, int | None, str]]:
    return [(rank.rank, rank.pid, rank.grade) for rank in trace.ranks]


def kernel_names(trace: Trace, rank: int) -> list[str]:
    kernels = trace.tables["kernels"]
    return [trace.names.kernel_names[number].short for number in kernels["name_id"][kernels["rank"] == rank]]


def test_a_named_capture_becomes_four_sure_ranks(payloads: Path) -> None:
    (trace,) = gather([read(payloads / "nsys" / "real-nvtx-4proc-2022.4.2.sqlite")])
    assert ranks(trace) == [(0, 26, "sure"), (1, 27, "sure"), (2, 28, "sure"), (3, 29, "sure")]
    assert trace.ranks[2].process == "sglang::scheduler_DP2_TP2_EP2 (pid 28)"
    assert (trace.ranks[2].dp_rank, trace.ranks[2].identified_by) == (2, "thread-name")
    assert trace.sources[0].ranks == (0, 1, 2, 3)
    assert trace.domain_precision == ("exact",)
    assert trace.notes == ()
    assert trace.clock_domain.tolist() == [0, 0, 0, 0]


def test_a_capture_without_names_is_ordered_by_pid_and_says_so(payloads: Path) -> None:
    (trace,) = gather([read(payloads / "nsys" / "real-nvtx-4proc-comm15-2022.4.2.sqlite")])
    assert ranks(trace) == [(0, 26, "assumed"), (1, 27, "assumed"), (2, 28, "assumed"), (3, 29, "assumed")]
    assert trace.ranks[2].process == "sglang::schedul (pid 28)"
    assert "assumed" in trace.notes[0]


def test_ranks_that_run_against_the_pids_reorder_every_table(tmp_path: Path) -> None:
    titles = {5: "sglang::scheduler_TP1", 6: "sglang::scheduler_TP0"}
    reading = make(tmp_path / "a.sqlite", (5, 6), titles)
    counts = {name: count_rows(columns) for name, columns in reading.tables.items()}
    (trace,) = gather([reading])
    assert ranks(trace) == [(0, 6, "sure"), (1, 5, "sure")]
    assert kernel_names(trace, 0) == ["k6", "shared"]
    assert kernel_names(trace, 1) == ["k5", "shared"]
    for table in TRACE_TABLES:
        columns = table.check(trace.tables[table.name])
        assert (np.diff(columns["rank"]) >= 0).all()
        assert count_rows(columns) == counts[table.name]


def test_files_of_one_host_align_by_the_boot_clock(tmp_path: Path) -> None:
    first = make(tmp_path / "rank0.sqlite", system=1_000_000, host="a")
    second = make(tmp_path / "rank1.sqlite", utc=UTC + 777, system=1_000_500, host="a")
    (trace,) = gather([first, second])
    assert trace.domain_precision == ("exact", "exact")
    kernels = trace.tables["kernels"]
    assert kernels["start_ns"].tolist() == [1005, 3000, 1505, 3500]
    assert kernels["launch_ns"].tolist() == [20, ABSENT_NS, 520, ABSENT_NS]
    assert trace.clock_domain.tolist() == [0, 1]
    assert [rank.grade for rank in trace.ranks] == ["likely", "likely"]
    assert kernel_names(trace, 1) == ["k5", "shared"]
    assert len(trace.names.kernel_names) == 2
    assert (trace.start_ns, trace.end_ns) == (0, 5500)


def test_files_of_two_hosts_align_by_wall_clock_and_keep_their_own_hosts_together(tmp_path: Path) -> None:
    readings = [
        make(tmp_path / "rank0.sqlite", utc=UTC, system=10_000, host="a"),
        make(tmp_path / "rank1.sqlite", utc=UTC + 100, system=50_000, host="b"),
        make(tmp_path / "rank2.sqlite", utc=UTC + 999, system=50_300, host="b"),
    ]
    (trace,) = gather(readings)
    assert trace.domain_precision == ("exact", "utc", "utc")
    assert trace.domain_hosts == ("a", "b", "b")
    kernels = trace.tables["kernels"]
    assert [int(kernels["start_ns"][kernels["rank"] == rank][0]) for rank in range(3)] == [1005, 1105, 1405]


def test_a_file_without_a_clock_keeps_its_times_and_is_named(tmp_path: Path) -> None:
    readings = [make(tmp_path / "rank0.sqlite"), make(tmp_path / "rank1.sqlite", utc=None)]
    (trace,) = gather(readings)
    assert trace.domain_precision == ("exact", "unknown")
    assert any("no clock places" in note and "rank1" in note for note in trace.notes)


def test_recordings_that_share_no_time_come_apart(tmp_path: Path) -> None:
    minute = 60_000_000_000
    files = (("a", minute, 5), ("b", 0, 5), ("c", minute, 6))
    readings = [make(tmp_path / f"{name}.sqlite", (pid,), utc=UTC + at) for name, at, pid in files]
    traces = gather(readings)
    assert [[Path(source.path).stem for source in trace.sources] for trace in traces] == [["a", "c"], ["b"]]
    assert all("share no time" in trace.notes[0] for trace in traces)


def test_a_tenth_file_comes_after_the_second(tmp_path: Path) -> None:
    readings = [make(tmp_path / f"part_{number}.sqlite", (100 - number,)) for number in (10, 2, 1)]
    (trace,) = gather(readings)
    assert [rank.pid for rank in trace.ranks] == [99, 98, 90]
    assert trace.clock_domain.tolist() == [0, 1, 2]


def test_the_same_recording_twice_is_refused(tmp_path: Path) -> None:
    reading = make(tmp_path / "a.sqlite")
    shutil.copy(tmp_path / "a.sqlite", tmp_path / "copy.sqlite")
    for twin in (reading, read(tmp_path / "copy.sqlite")):
        with pytest.raises(InputError, match="same recording twice"):
            gather([reading, twin])


def test_two_files_of_one_rank_are_refused_with_both_names(tmp_path: Path) -> None:
    readings = [make(tmp_path / f"{pid}.sqlite", (pid,), {pid: "sglang::scheduler_TP3"}) for pid in (5, 6)]
    with pytest.raises(InputError, match=r"rank 3 .*5\.sqlite and .*6\.sqlite"):
        gather(readings)


def test_equal_claims_inside_one_file_make_the_order_assumed(tmp_path: Path) -> None:
    titles = dict.fromkeys((5, 6), "sglang::scheduler_TP0")
    (trace,) = gather([make(tmp_path / "a.sqlite", (5, 6), titles)])
    assert ranks(trace) == [(0, 5, "assumed"), (1, 6, "assumed")]


def test_one_process_without_a_name_makes_all_assumed(tmp_path: Path) -> None:
    (trace,) = gather([make(tmp_path / "a.sqlite", (5, 6), {6: "sglang::scheduler_TP0"})])
    assert ranks(trace) == [(0, 5, "assumed"), (1, 6, "assumed")]


def test_contradicting_evidence_of_one_grade_is_noted_and_not_believed(tmp_path: Path) -> None:
    reading = make(tmp_path / "rank2.sqlite", capture={"PROCESS_0:ENVIRONMENT_VARIABLE": 'PMI_RANK="1"'})
    (trace,) = gather([reading])
    assert trace.ranks[0].grade == "assumed"
    assert "PMI_RANK=1" in trace.notes[0]


def test_a_communicator_smaller_than_the_deployment_names_no_rank(tmp_path: Path) -> None:
    titles = {pid: f"NCCL Progress [{pid % 2}/2]: ab" for pid in (4, 5, 6)}
    (trace,) = gather([make(tmp_path / "a.sqlite", (4, 5, 6), titles)])
    assert {rank.grade for rank in trace.ranks} == {"assumed"}


def test_vllm_axes_are_numbered_with_tp_innermost(tmp_path: Path) -> None:
    titles = {10 + dp * 2 + tp: f"VLLM::Worker_DP{dp}_TP{tp}_EP{dp * 2 + tp}" for dp in range(3) for tp in (1, 0)}
    del titles[13]
    (trace,) = gather([make(tmp_path / "a.sqlite", tuple(titles), titles)])
    assert [rank.rank for rank in trace.ranks] == [0, 1, 2, 4, 5]
    assert trace.missing_ranks == (3,)
    assert (trace.ranks[-1].dp_rank, trace.ranks[-1].tp_rank) == (2, 1)


def test_sglang_stages_are_numbered_with_pp_outermost(tmp_path: Path) -> None:
    titles = {
        20 + pp * 4 + tp: f"sglang::scheduler_DP{tp // 2}_PP{pp}_TP{tp}_EP{tp}" for pp in range(2) for tp in range(4)
    }
    (trace,) = gather([make(tmp_path / "a.sqlite", tuple(titles), titles)])
    assert [rank.pid for rank in trace.ranks] == list(range(20, 28))
    assert [rank.rank for rank in trace.ranks] == list(range(8))


def test_gaps_and_announced_ranks_are_missing_and_never_filled(tmp_path: Path) -> None:
    titles = {5: "sglang::scheduler_TP0", 6: "sglang::scheduler_TP2"}
    reading = make(
        tmp_path / "a.sqlite", (5, 6), titles, capture={"PROCESS_0:COMMAND": "sglang", "PROCESS_0:ARGUMENT_0": "--tp=4"}
    )
    (trace,) = gather([reading])
    assert trace.missing_ranks == (1, 3)
    assert any("rank 1, 3" in note for note in trace.notes)
    (wider,) = gather([reading], expect_ranks=6)
    assert wider.missing_ranks == (1, 3, 4, 5)
    (fewer,) = gather([reading], expect_ranks=1)
    assert any("1 ranks expected, 2 found" in note for note in fewer.notes)


def test_a_rank_map_wins_over_everything(tmp_path: Path) -> None:
    readings = [
        make(tmp_path / "a:1.sqlite", (5, 6), {5: "sglang::scheduler_TP0", 6: "sglang::scheduler_TP1"}),
        make(tmp_path / "b.sqlite", (7,)),
    ]
    (trace,) = gather(readings, rank_map={"pid:5": 2, "a:1.sqlite:6:0": 1, "b": 0})
    assert ranks(trace) == [(0, 7, "sure"), (1, 6, "sure"), (2, 5, "sure")]
    assert {rank.identified_by for rank in trace.ranks} == {"rank-map"}


@pytest.mark.parametrize(
    "rank_map, what",
    [
        ({"pid:99": 0}, "no process"),
        ({"a": 0}, "2 processes"),
        ({"pid:5": 0, "a:5": 1}, "another key"),
        ({"pid:5": 0}, "leaves out pid 6"),
        ({"pid:5": 0, "pid:6": 0}, "same rank"),
    ],
)
def test_a_rank_map_that_does_not_fit_is_refused(tmp_path: Path, rank_map: dict[str, int], what: str) -> None:
    reading = make(tmp_path / "a.sqlite", (5, 6))
    with pytest.raises(UsageError, match=what):
        gather([reading], rank_map=rank_map)


def test_a_rank_map_file_is_read_in_its_three_forms(tmp_path: Path) -> None:
    path = tmp_path / "map"
    for content in ("pid:5 = 1\n# note\n\nb.sqlite,0 # late\n", '{"pid:5": 1, "b.sqlite": 0}'):
        path.write_text(content)
        assert parse_rank_map(path) == {"pid:5": 1, "b.sqlite": 0}


@pytest.mark.parametrize(
    "content, where",
    [
        ("pid:5 = 1\npid:6 two\n", "line 2"),
        ("pid:5 = 1\npid:5 = 2\n", "line 2"),
        ("a = 1\nb = 1\n", "line 2"),
        ("# nothing\n", "without entries"),
        ('{"a": -1}', "'a'"),
        ('{"a": 1,\n "b" 2}', "line 2"),
    ],
)
def test_a_broken_rank_map_names_the_line(tmp_path: Path, content: str, where: str) -> None:
    path = tmp_path / "map"
    path.write_text(content)
    with pytest.raises(InputError, match=where):
        parse_rank_map(path)


def test_a_missing_rank_map_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        parse_rank_map(tmp_path / "none")


def test_no_readings_make_no_trace_and_a_file_without_actors_an_empty_one(tmp_path: Path) -> None:
    assert gather([]) == ()
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.session(UTC)
    (trace,) = gather([read(tmp_path / "a.sqlite")])
    assert trace.ranks == ()
    assert trace.sources[0].status == "unused"
    assert all(count_rows(columns) == 0 for columns in trace.tables.values())


def test_normalised_and_shifted_exports_fall_on_the_same_axis(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "rank0.sqlite") as export:
        export.kernel(5, UTC + 1000, UTC + 2000)
        export.session(UTC, 500, "a")
        export.facts("META_DATA_EXPORT", {"EXPORT_PARAM_TIME_NORMALIZE": "true"})
    with ExportBuilder(tmp_path / "rank1.sqlite") as export:
        export.kernel(6, 51_000, 52_000)
        export.session(UTC, 500, "a")
        export.facts("META_DATA_EXPORT", {"EXPORT_PARAM_TIME_SHIFT": "50000"})
    readings = [read(tmp_path / "rank0.sqlite"), read(tmp_path / "rank1.sqlite")]
    assert readings[0].session.is_utc
    (trace,) = gather(readings)
    assert trace.tables["kernels"]["start_ns"].tolist() == [UTC + 1000, UTC + 1000]
    assert trace.domain_precision == ("exact", "exact")
