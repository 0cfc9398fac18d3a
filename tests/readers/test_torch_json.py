"""Torch profiler traces of every state they are met in."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.schema import ABSENT_NS, count_rows
from dprankdiag.readers import torch_stream
from dprankdiag.readers.gather import gather
from dprankdiag.readers.sniff import sniff
from dprankdiag.readers.torch_json import read
from tests.readers import torch_builders as torch


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_becomes_the_tables(tmp_path: Path, name: str) -> None:
    path = torch.write(tmp_path / name, torch.one_rank())
    assert sniff(path) == "torch-json"
    reading = read(path)
    kernels = reading.tables["kernels"]
    assert reading.source.status == "used"
    assert reading.source.kernels == count_rows(kernels) == 40
    assert np.array_equal(kernels["end_ns"] - kernels["start_ns"], np.full(40, 600))
    assert np.array_equal(kernels["start_ns"] - kernels["launch_ns"], np.full(40, 100))
    assert reading.session.utc_start_ns == torch.BASE_NS
    assert kernels["start_ns"][0] == torch.START_US * 1000 + 300
    assert reading.names.shapes == ((4, 1, 1, 128, 1, 1),)
    assert reading.names.range_names == ("execute_context_0(0)_generation_4(4)",)
    (actor,) = reading.actors
    assert (actor.pid, actor.device, actor.process) == (4242, 0, "VLLM::Worker_DP0_TP0_EP0")
    assert actor.claims[0].source == "distributed-info"


@pytest.mark.parametrize(
    "stamp, ns",
    [
        ("1682725898236567.123", 1_682_725_898_236_567_123),
        ("1682725898236567", 1_682_725_898_236_567_000),
        ("1682725898236567.1", 1_682_725_898_236_567_100),
        ('"4458676522690.655"', 4_458_676_522_690_655),
        ("4.458676522690655e12", 4_458_676_522_690_655),
    ],
)
def test_times_keep_every_nanosecond(tmp_path: Path, stamp: str, ns: int) -> None:
    content = torch.text([torch.kernel(0, 1000)]).replace(str(torch.us(0)).encode(), stamp.encode())
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert read(path).tables["kernels"]["start_ns"].tolist() == [ns]


def test_times_without_a_base_count_from_the_epoch(tmp_path: Path) -> None:
    document = torch.document([torch.kernel(0, 1000)])
    del document["baseTimeNanoseconds"]
    document["traceEvents"][0]["ts"] = 1682725898236567
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    assert read(path).session.utc_start_ns == 0


def test_batches_end_between_events_whatever_their_names_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = torch.one_rank(200)
    for k, event in enumerate(events):
        if event.get("cat") == "kernel":
            event["name"] = ['a}, {"b', "tail\\", '],"traceEvents":[', "ü{[", "x"][k % 5]
            event["args"]["nested"] = [{"a": 1}, {"b": [{"c": 2}, {"d": "}, {"}]}]
    path = torch.write(tmp_path / "trace.json", events)
    whole = read(path)
    monkeypatch.setattr(torch_stream, "BATCH_BYTES", 700)
    small = read(path)
    assert whole.source == small.source
    assert whole.names == small.names
    for name, columns in whole.tables.items():
        for column, values in columns.items():
            assert np.array_equal(values, small.tables[name][column]), (name, column)
    assert whole.source.kernels == 200
    assert whole.source.status == "used"


def test_keys_after_the_events_are_read(tmp_path: Path) -> None:
    document = torch.document(torch.one_rank(), rank=None)
    document["INFO"] = ["a ] b", {"x": [1, {"y": 2}]}]
    document["distributedInfo"] = {"rank": 1, "world_size": 2}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    assert read(path).actors[0].claims[0].rank == 1


def test_a_bare_list_of_events_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(torch.one_rank()))
    reading = read(path)
    assert reading.source.kernels == 40
    assert reading.session.utc_start_ns is None


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_that_breaks_off_keeps_what_came_before(tmp_path: Path, share: float, name: str) -> None:
    path = torch.write(tmp_path / name, torch.one_rank(500))
    content = path.read_bytes()
    path.write_bytes(content[: round(share * len(content))])
    reading = read(path)
    assert reading.source.status == "partial"
    assert 0 < reading.source.kernels < 500
    assert "breaks off" in " ".join(reading.source.warnings)


def test_no_cut_of_a_trace_raises_anything_but_what_users_are_told(tmp_path: Path) -> None:
    content = torch.text(torch.one_rank(12))
    path = tmp_path / "trace.json"
    for size in range(0, len(content), 37):
        path.write_bytes(content[:size])
        kernels = 0
        with suppress(InputError):
            kernels = read(path).source.kernels if sniff(path) == "torch-json" else 0
        assert kernels <= 12


def test_an_event_that_is_no_json_is_left_out_and_counted(tmp_path: Path) -> None:
    content = torch.text(torch.one_rank())
    broken = content.replace(b'"name": "gemm"', b'"name": "ge"mm"', 1)
    assert broken != content
    path = tmp_path / "trace.json"
    path.write_bytes(broken)
    reading = read(path)
    assert reading.source.status == "partial"
    assert reading.source.kernels == 39
    assert any("broken JSON at byte" in warning for warning in reading.source.warnings)
    assert any("1 events could not be read" in warning for warning in reading.source.warnings)


def test_events_of_another_shape_are_left_out_and_counted(tmp_path: Path) -> None:
    events = [*torch.one_rank(), "no event", {"ph": "X", "cat": "kernel", "name": "k", "args": ["a list"]}]
    path = torch.write(tmp_path / "trace.json", events)  # type: ignore[arg-type]
    reading = read(path)
    assert reading.source.kernels == 40
    assert any("2 events could not be read" in warning for warning in reading.source.warnings)


BEYOND = 10**30


@pytest.mark.parametrize(
    "damage",
    [
        {"ts": BEYOND}, {"ts": 1e300}, {"ts": "1e999999"}, {"dur": BEYOND}, {"cat": ["kernel"]}, {"cat": {"kernel": 1}},
    ],
)  # fmt: skip
def test_an_event_with_numbers_beyond_all_measure_is_left_out(tmp_path: Path, damage: dict[str, object]) -> None:
    path = torch.write(tmp_path / "t.json", [torch.kernel(0, 100), torch.kernel(200, 300) | damage])
    assert count_rows(read(path).tables["kernels"]) == 1


@pytest.mark.parametrize("key", ["correlation", "stream", "device", "Seq", "In msg nelems"])
def test_a_number_beyond_all_measure_counts_as_absent(tmp_path: Path, key: str) -> None:
    told = {"Process Group Name": "dp", "dtype": "BFloat16", "In msg nelems": 8, "Seq": 1}
    path = torch.write(tmp_path / "t.json", [torch.kernel(0, 100, **told | {key: BEYOND})])
    assert count_rows(read(path).tables["kernels"]) == 1
    copy = torch.kernel(0, 100) | {"cat": "gpu_memcpy", "name": "Memcpy DtoH"}
    copy["args"]["bytes"] = BEYOND
    assert read(torch.write(tmp_path / "c.json", [copy])).tables["copies"]["size_bytes"].tolist() == [0]


def test_json_nested_beyond_all_measure_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"schemaVersion": 1, "deep": ' + "[" * 200_000 + "]" * 200_000 + ', "traceEvents": []}')
    with pytest.raises(DamagedInput, match="nested"):
        read(path)


def test_names_that_are_no_text_are_mended(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(torch.text(torch.one_rank()).replace(b'"gemm"', b'"ge\xff\xfemm"'))
    assert read(path).source.kernels == 40


def test_ranks_that_wrote_to_one_path_at_once_are_refused(tmp_path: Path) -> None:
    one = torch.text(torch.one_rank(300), rank=0)
    other = torch.text(torch.one_rank(300), rank=1).replace(b"4242", b"4243")
    mixed = b"".join(a for k in range(0, len(one), 997) for a in (one[k : k + 997], other[k : k + 997]))
    for content in (mixed, one + other, one[: len(one) // 2] + other):
        path = tmp_path / "trace.json"
        path.write_bytes(content)
        with pytest.raises(DamagedInput, match=r"one file|one path") as caught:
            read(path)
        assert "path of its own" in str(caught.value)


def test_a_graph_launch_marks_its_kernels(tmp_path: Path) -> None:
    events = [
        torch.call(0, 500, name="cudaGraphLaunch", correlation=9),
        torch.kernel(600, 700, correlation=9),
        torch.kernel(700, 800, correlation=9),
        torch.call(900, 1000, correlation=10),
        torch.kernel(1100, 1200, correlation=10),
        torch.call(2000, 2100, name="cudaGraphLaunch", correlation=11),
        torch.call(3000, 9000, name="cudaStreamSynchronize"),
    ]
    reading = read(torch.write(tmp_path / "trace.json", events))
    assert reading.tables["kernels"]["in_graph"].tolist() == [True, True, False]
    assert reading.tables["calls"]["end_ns"].tolist() == [torch.START_US * 1000 + 9000]
    assert "1 graph replays show no kernels" in reading.source.warnings
    assert "kernels of graph replays" in reading.source.lacked


def test_kernels_without_a_call_have_no_launch_time(tmp_path: Path) -> None:
    reading = read(torch.write(tmp_path / "trace.json", [torch.kernel(0, 10), torch.kernel(20, 30, correlation=5)]))
    assert reading.tables["kernels"]["launch_ns"].tolist() == [ABSENT_NS, ABSENT_NS]
    assert "RUNTIME" in reading.source.lacked


def test_messages_of_nccl_kernels_are_kept(tmp_path: Path) -> None:
    args = {
        "Collective name": "_allgather_base", "Process Group Name": "3", "Process Group Ranks": "[0, 1]", "Seq": 12,
        "In msg nelems": 100, "Out msg nelems": 200, "dtype": "BFloat16", "Group size": 2,
    }  # fmt: skip
    events = [torch.kernel(0, 10), torch.kernel(20, 30, name="ncclDevKernel_AllGather_RING_LL", **args)]
    reading = read(torch.write(tmp_path / "trace.json", events))
    messages = reading.tables["messages"]
    assert (messages["sequence"].tolist(), messages["size_bytes"].tolist()) == ([12], [200])
    assert reading.names.group_names == (("3", "[0, 1]"),)


def test_a_merged_trace_holds_one_actor_a_label(tmp_path: Path) -> None:
    events: list[torch.Event] = []
    for rank in range(4):
        named = torch.process(f"sglang::scheduler_DP{rank}_TP{rank}") if rank else []
        own = [*named, *torch.one_rank(5)[2:]]
        events += [{**event, "pid": f"[TP{rank:02d}-DP{rank:02d}] {event['pid']}"} for event in own]
    (trace,) = gather([read(torch.write(tmp_path / "merged-1.trace.json.gz", events, rank=None))])
    assert [rank.rank for rank in trace.ranks] == [0, 1, 2, 3]
    assert {rank.identified_by for rank in trace.ranks} == {"process-name", "trace-label"}
    kernels = trace.tables["kernels"]
    assert np.bincount(kernels["rank"]).tolist() == [5, 5, 5, 5]
    assert (kernels["launch_ns"] != ABSENT_NS).all()


def test_ranges_of_a_process_without_a_gpu_are_its_rows(tmp_path: Path) -> None:
    events = [torch.annotation(1000 * k, 1000 * k + 600, "attention") for k in range(4)]
    reading = read(torch.write(tmp_path / "trace.json", events))
    (actor,) = reading.actors
    assert (reading.source.status, actor.pid, actor.device) == ("used", 4242, None)
    assert actor.claims[0].source == "distributed-info"
    assert reading.tables["ranges"]["rank"].tolist() == [0] * 4


def test_ranges_of_processes_without_a_gpu_that_nothing_tells_apart_are_left_out(tmp_path: Path) -> None:
    events = [torch.annotation(1000 * k, 1000 * k + 600, "attention", pid=4242 + k % 2) for k in range(4)]
    reading = read(torch.write(tmp_path / "trace.json", events))
    assert (reading.source.status, reading.actors) == ("unused", ())


def test_a_merged_trace_beside_those_it_was_merged_from_is_left_out(tmp_path: Path) -> None:
    merged: list[torch.Event] = []
    paths = []
    for rank in range(2):
        own = [torch.kernel(1000 * k + rank, 1000 * k + 600) for k in range(5)]
        paths.append(torch.write(tmp_path / f"1-TP-{rank}-DP-{rank}.trace.json", own, rank=rank))
        merged += [{**event, "pid": f"[TP{rank:02d}-DP{rank:02d}] 0"} for event in own]
    paths.append(torch.write(tmp_path / "merged-1.trace.json", merged, rank=0))
    (trace,) = gather([read(path) for path in paths])
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert [source.status for source in trace.sources] == ["used", "used", "skipped"]
    assert len(trace.tables["kernels"]["rank"]) == 10
    (trace,) = gather([read(path) for path in paths[1:]])
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert [source.status for source in trace.sources] == ["skipped", "used"]


def test_ranks_come_from_the_names_of_the_files_where_nothing_else_tells(tmp_path: Path) -> None:
    paths = [
        torch.write(
            tmp_path / f"1764000000.1-TP-{rank}-DP-{rank}-EP-{rank}.trace.json.gz", [torch.kernel(rank, 10)], rank=None
        )
        for rank in (2, 0, 1)
    ]
    (trace,) = gather([read(path) for path in paths])
    assert [(rank.rank, rank.grade, rank.dp_rank) for rank in trace.ranks] == [(k, "likely", k) for k in range(3)]


def test_traces_without_any_rank_are_assumed_and_say_so(tmp_path: Path) -> None:
    paths = [
        torch.write(tmp_path / f"rank0.{stamp}.pt.trace.json", [torch.kernel(stamp, stamp + 10)], rank=None)
        for stamp in (100, 200)
    ]
    (trace,) = gather([read(path) for path in paths])
    assert [rank.grade for rank in trace.ranks] == ["assumed", "assumed"]
    assert any("claim to be one rank" in note for note in trace.notes)
    assert any("--rank-map" in note for note in trace.notes)


def test_replicas_of_one_rank_each_are_told_apart_by_their_titles(tmp_path: Path) -> None:
    readings = []
    for dp in range(2):
        events = [*torch.process(f"VLLM::EngineCore_DP{dp}", pid=10 + dp), torch.kernel(dp, dp + 10)]
        path = torch.write(tmp_path / f"rank0.{dp}.pt.trace.json", events, rank=0, world=1)
        readings.append(read(path))
    (trace,) = gather(readings)
    assert [(rank.rank, rank.grade) for rank in trace.ranks] == [(0, "sure"), (1, "sure")]


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    readings = [
        read(torch.write(tmp_path / f"r{rank}.json", [torch.kernel(rank, rank + 5)], rank=rank, world=4))
        for rank in (0, 3)
    ]
    (trace,) = gather(readings)
    assert trace.missing_ranks == (1, 2)


@pytest.mark.parametrize("names", [("prefill/a{}.json", "decode/a{}.json"), ("p-1-TP-{}.json", "d-1-TP-{}.json")])
def test_two_engines_in_one_call_are_judged_apart(tmp_path: Path, names: tuple[str, str]) -> None:
    readings = []
    for name in names:
        for rank in range(2):
            path = tmp_path / name.format(rank)
            path.parent.mkdir(exist_ok=True)
            readings.append(read(torch.write(path, [torch.kernel(len(readings), 50 + len(readings))], rank=rank)))
    traces = gather(readings)
    assert [[rank.rank for rank in trace.ranks] for trace in traces] == [[0, 1], [0, 1]]
    assert len({trace.ranks[0].engine for trace in traces}) == 2
    if "prefill" in names[0]:
        assert [trace.ranks[0].role for trace in traces] == ["prefill", "decode"]
    assert all("engines" in trace.notes[0] for trace in traces)


def test_stages_that_sglang_profiles_apart_are_judged_apart(tmp_path: Path) -> None:
    readings = []
    for stage, begin in (("EXTEND", 0), ("DECODE", 400)):
        for rank in range(2):
            path = tmp_path / f"1780999997.65{rank}-TP-{rank}-DP-{rank}-EP-{rank}-{stage}.trace.json.gz"
            readings.append(read(torch.write(path, [torch.kernel(begin, begin + 10 + rank)], rank=rank)))
    traces = gather(readings)
    assert {(trace.ranks[0].engine, trace.ranks[0].role, len(trace.ranks)) for trace in traces} == {
        ("EXTEND", "prefill", 2),
        ("DECODE", "decode", 2),
    }


def test_recordings_of_different_times_bear_the_names_of_their_folders(tmp_path: Path) -> None:
    readings = []
    for folder, day in (("prefill", 0), ("decode", 1)):
        (tmp_path / folder).mkdir()
        for rank in range(2):
            content = torch.document([torch.kernel(0, 10 + rank)], rank=rank)
            content["baseTimeNanoseconds"] += day * 86_400 * 10**9
            path = tmp_path / folder / f"r{rank}.json"
            path.write_text(json.dumps(content))
            readings.append(read(path))
    assert [trace.ranks[0].engine for trace in gather(readings)] == ["prefill", "decode"]


def test_a_rank_given_twice_is_refused(tmp_path: Path) -> None:
    readings = [
        read(torch.write(tmp_path / f"{name}.json", [torch.kernel(k, 9)], rank=1)) for k, name in enumerate("ab")
    ]
    with pytest.raises(InputError, match="rank 1 is claimed by two files"):
        gather(readings)


def test_real_traces_are_read_whole(fixtures: Path) -> None:
    for path in sorted((fixtures / "real" / "torch").glob("*.json.gz")):
        with gzip.open(path) as file:
            events = json.load(file)["traceEvents"]
        kernels = [event for event in events if event.get("cat") == "kernel"]
        reading = read(path)
        assert reading.source.status == "used"
        assert reading.source.kernels == count_rows(reading.tables["kernels"]) == len(kernels)
        total = reading.tables["kernels"]["end_ns"] - reading.tables["kernels"]["start_ns"]
        assert int(total.sum()) == sum(round(event["dur"] * 1000) for event in kernels)
