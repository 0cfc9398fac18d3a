"""Written torch profiler traces have the shape, times and flaws of real ones."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprankdiag.harness.events import UTC_START_NS, FileClock, Recording
from dprankdiag.harness.faults import load_context
from dprankdiag.harness.suites import plan_files, write_world
from dprankdiag.harness.torch_files import Trouble, TroubleKind
from dprankdiag.harness.torch_names import FileNames, name_trace, spell_kernel
from dprankdiag.harness.torch_session import AGES, Age, find_base
from dprankdiag.harness.torch_writer import CollectiveArgs, TorchStyle, render_trace
from dprankdiag.harness.worlds import World, simulate_world, truth

SMALL = World(seed=5, ranks=4, steps=5, layers=2, faults=(load_context(2, 2.5),))
EAGER = replace(SMALL, graph=False, clears=True)
FIXTURES = Path(os.environ.get("DPRANKDIAG_FIXTURES", Path(__file__).parents[3] / "shared" / "fixtures"))
REAL = FIXTURES / "real" / "torch"
EVERYTHING = TorchStyle(sync_events=True, with_stack=True)
COMPARED: dict[Age, str] = {"2023": "hta-sampled-world128-rank0.json.gz", "2024": "hta-nccl-args-world2-rank0.json.gz"}

Trace = dict[str, Any]
Event = dict[str, Any]


def read(path: Path) -> Trace:
    """Read a trace as JSON."""
    content = path.read_bytes()
    trace: Trace = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    return trace


def render(world: World, rank: int = 0, style: TorchStyle | None = None, clock: FileClock | None = None) -> Trace:
    """Render a rank's trace and read it as JSON."""
    trace: Trace = json.loads(render_trace(simulate_world(world), rank, clock=clock, style=style))
    return trace


def pick(trace: Trace, category: str, kind: str = "X") -> list[Event]:
    """Pick the events of a category."""
    return [event for event in trace["traceEvents"] if event["ph"] == kind and event.get("cat") == category]


def real(name: str) -> Trace:
    """Read a real trace; skip where there is none."""
    if not (REAL / name).exists():
        pytest.skip("no real traces: set DPRANKDIAG_FIXTURES")
    return read(REAL / name)


def shapes(trace: Trace) -> Iterator[tuple[tuple[str, str], set[str], set[str]]]:
    """List phase and category with the keys that all of their events have: of the event, of its arguments."""
    found: dict[tuple[str, str], list[Event]] = {}
    for event in trace["traceEvents"]:
        found.setdefault((event["ph"], event.get("cat") or event["name"].split(":")[0]), []).append(event)
    for key, events in found.items():
        yield (
            key,
            set.intersection(*(set(event) for event in events)),
            set.intersection(*(set(event.get("args", ())) for event in events)),
        )


@pytest.mark.parametrize("age", COMPARED)
def test_events_have_the_keys_of_real_ones(age: Age) -> None:
    theirs = {key: (event, args) for key, event, args in shapes(real(COMPARED[age]))}
    compared = 0
    for key, event, args in shapes(render(EAGER, style=TorchStyle(age=age))):
        if key in theirs:
            assert event == theirs[key][0], key
            assert args == theirs[key][1], key
            compared += 1
    assert compared >= 9


def test_a_collectives_kernel_and_operator_tell_what_real_ones_tell() -> None:
    def tell(trace: Trace, category: str) -> set[str]:
        events = [event for event in pick(trace, category) if "Collective name" in event["args"]]
        return set.intersection(*(set(event["args"]) for event in events if event["args"]["Group size"] > 1))

    theirs, mine = real(COMPARED["2024"]), render(EAGER, style=TorchStyle(age="2024"))
    assert tell(mine, "kernel") == tell(theirs, "kernel")
    assert tell(mine, "cpu_op") == tell(theirs, "cpu_op")


@pytest.mark.parametrize("age", AGES)
def test_a_file_holds_beside_events_what_real_ones_hold(age: Age) -> None:
    name = COMPARED.get(age, "tracelens-sglang-decode.json.gz")
    theirs, mine = real(name), render(SMALL, style=TorchStyle(age=age, with_stack=True))
    other_vendor = {"roctracer_version", "hip_runtime_version", "hip_driver_version"}
    optional = {"record_shapes", "INFO", *other_vendor}
    assert set(mine) >= set(theirs) - optional
    assert set(mine["distributedInfo"]) >= set(theirs["distributedInfo"]) - {"nccl_version"}
    if age != "2023":
        assert set(mine["distributedInfo"]["pg_config"][0]) == set(theirs["distributedInfo"]["pg_config"][0])
        assert isinstance(mine["distributedInfo"]["pg_config"][0]["ranks"], list)


def test_flows_join_calls_and_gpu_work_as_in_real_traces() -> None:
    theirs, mine = real(COMPARED["2024"]), render(EAGER)

    def join(trace: Trace) -> dict[str, set[tuple[bool, bool]]]:
        starts = {event["id"] for event in pick(trace, "ac2g", "s")}
        ends = {event["id"] for event in pick(trace, "ac2g", "f")}
        joined: dict[str, set[tuple[bool, bool]]] = {}
        for call in pick(trace, "cuda_runtime"):
            number = call["args"]["correlation"]
            joined.setdefault(call["name"], set()).add((number in starts, number in ends))
        return joined

    real_join, my_join = join(theirs), join(mine)
    shared = set(real_join) & set(my_join)
    assert shared >= {"cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync"}
    assert all(my_join[name] <= real_join[name] for name in shared)


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("world", [SMALL, EAGER], ids=["graph", "eager"])
def test_a_trace_holds_every_kernel_at_its_time(age: Age, world: World) -> None:
    recording = simulate_world(world)
    style = TorchStyle(age=age)
    trace = json.loads(render_trace(recording, 1, style=style))
    rows = recording.rows[1].kernels
    base = trace.get("baseTimeNanoseconds", 0)
    unit = 1 if age == "2023" else 1_000
    stamps = np.asarray([round(event["ts"] * unit) for event in pick(trace, "kernel")]) * (1_000 // unit)
    written = stamps + base - UTC_START_NS
    assert np.abs(written - rows.start_ns).max() < (1_000 if age == "2023" else 1)
    lengths = np.asarray([event["dur"] for event in pick(trace, "kernel")]) * 1_000
    assert np.abs(lengths - (rows.end_ns - rows.start_ns)).max() < (1_001 if age == "2023" else 0.01)


def test_the_oldest_stamps_are_whole_and_newer_ones_have_three_decimals() -> None:
    recording = simulate_world(SMALL)
    old, new = (render_trace(recording, 0, style=TorchStyle(age=age)) for age in ("2023", "2026"))
    stamp = [line.split('"ts": ')[1].split(",")[0].strip() for line in old.splitlines() if '"ts": ' in line]
    assert all(text.isdigit() for text in stamp)
    stamp = [line.split('"ts": ')[1].split(",")[0].strip() for line in new.splitlines() if '"ts": ' in line]
    assert all(len(text.split(".")[1]) == 3 for text in stamp)


def test_time_begins_at_the_quarter_that_real_traces_begin_at() -> None:
    trace = real(COMPARED["2024"])
    wall = trace["baseTimeNanoseconds"] + int(1_000 * min(event["ts"] for event in pick(trace, "kernel")))
    assert find_base(wall, "2024") == trace["baseTimeNanoseconds"]


def test_a_hosts_wall_clock_shifts_and_stretches_all_times_and_the_sessions_start_does_not() -> None:
    clock = FileClock(session_start_ns=-5_000_000_000, wall_error_ns=700_000, drift_ppm=100.0)
    true, shifted = (pick(render(SMALL, clock=it), "kernel") for it in (None, clock))
    before, after = ([1_000 * event["ts"] for event in events] for events in (true, shifted))
    start = before[0] - simulate_world(SMALL).rows[0].kernels.start_ns[0]
    for was, now in zip(before, after, strict=True):
        assert now - start == pytest.approx((was - start) * 1.0001 + 700_000, abs=3)


def test_ranks_of_one_host_share_its_wall_clock() -> None:
    world = replace(SMALL, files="rank", ranks_per_node=2, host_clock_ns=2_000_000, drift_ppm=20.0)
    clocks = [clock for _, _, clock in plan_files(world)]
    now = np.asarray([90_000_000])
    first, second, other = (int(clocks[rank].read_wall(now)[0]) for rank in (0, 1, 2))
    assert first == second != other


def test_a_gpu_with_skewed_stamps_shifts_its_work_and_not_its_calls() -> None:
    world = replace(SMALL, gpu_skew_ns=5_000)
    skew = simulate_world(world).processes[0].gpu_skew_ns
    true, skewed = render(SMALL), render(world)
    for category, shift in (("kernel", skew), ("gpu_memcpy", skew), ("cuda_runtime", 0)):
        pairs = zip(pick(true, category), pick(skewed, category), strict=True)
        assert all(abs(1_000 * (after["ts"] - before["ts"]) - shift) < 2 for before, after in pairs)


def test_all_kernels_of_a_replay_carry_the_correlation_of_its_launch() -> None:
    trace = render(SMALL)
    launches = {
        call["args"]["correlation"] for call in pick(trace, "cuda_runtime") if call["name"] == "cudaGraphLaunch"
    }
    inside = [event for event in pick(trace, "kernel") if event["args"]["graph node id"]]
    assert {event["args"]["correlation"] for event in inside} == launches
    assert len(inside) > 10 * len(launches)
    assert not any("External id" in event["args"] for event in inside)


def test_older_profilers_repeat_the_correlation_where_no_operator_is_around() -> None:
    kernels = pick(render(SMALL, style=TorchStyle(age="2024")), "kernel")
    assert all(event["args"]["External id"] == event["args"]["correlation"] for event in kernels)


@pytest.mark.parametrize(
    "world,args,told", [(SMALL, "eager", 0), (EAGER, "eager", 20), (EAGER, "none", 0), (SMALL, "all", 20)]
)
def test_collectives_tell_their_group_where_torch_launched_them(world: World, args: CollectiveArgs, told: int) -> None:
    kernels = pick(render(world, style=TorchStyle(collective_args=args)), "kernel")
    telling = [event for event in kernels if "Process Group Ranks" in event["args"]]
    assert len(telling) == told
    assert all(event["args"]["Process Group Ranks"] == "[0, 1, 2, 3]" for event in telling)


def test_an_engine_that_calls_nccl_itself_tells_torch_nothing(tmp_path: Path) -> None:
    for names, told in (("sglang", True), ("vllm", False)):
        trace = read(write_world(replace(EAGER, names=names), tmp_path / names, format="torch")[0])
        assert any(event["name"] == "record_param_comms" for event in pick(trace, "cpu_op")) == told
        assert any("Collective name" in event["args"] for event in pick(trace, "kernel")) == told


def test_each_attention_group_has_a_communicator_of_its_own() -> None:
    world = replace(EAGER, attention_tp=2)
    names = set()
    for rank in (0, 3):
        trace = render(world, rank)
        reduces = [event for event in pick(trace, "kernel") if event["args"].get("Collective name") == "allreduce"]
        (name,) = {event["args"]["Process Group Name"] for event in reduces}
        listed = {group["pg_name"]: group["ranks"] for group in trace["distributedInfo"]["pg_config"]}
        assert listed[name] == [rank // 2 * 2, rank // 2 * 2 + 1]
        names.add(name)
    assert len(names) == 2


def test_many_ranks_are_listed_in_short() -> None:
    world = replace(EAGER, ranks=32, steps=1)
    ranks = {event["args"].get("Process Group Ranks") for event in pick(render(world), "kernel")} - {None}
    assert ranks == {"[" + ", ".join(map(str, range(29))) + ", ..., 31]"}


@pytest.mark.parametrize("world", [SMALL, replace(SMALL, names="vllm"), EAGER], ids=["sglang", "vllm", "eager"])
def test_annotations_of_the_batch_surround_the_steps_on_host_and_gpu(world: World) -> None:
    trace = render(world, style=EVERYTHING)
    on_host = [event for event in pick(trace, "user_annotation") if event["name"].startswith(("step[", "execute_"))]
    on_gpu = {event["args"]["External id"]: event for event in pick(trace, "gpu_user_annotation")}
    assert len(on_host) == world.steps
    for event in on_host:
        calls = [
            call for call in pick(trace, "cuda_runtime") if event["ts"] <= call["ts"] <= event["ts"] + event["dur"]
        ]
        assert {"cudaMemcpyAsync"} <= {call["name"] for call in calls}
        shown = on_gpu[event["args"]["External id"]]
        assert shown["name"] == event["name"]
        assert shown["tid"] == 7


def test_python_functions_lie_inside_their_callers_and_around_the_steps() -> None:
    trace = render(SMALL, style=TorchStyle(with_stack=True))
    frames = {event["args"]["Python id"]: event for event in pick(trace, "python_function")}
    roots = 0
    for frame in frames.values():
        parent = frame["args"]["Python parent id"]
        roots += parent is None
        if parent is not None:
            assert frames[parent]["ts"] <= frame["ts"]
            assert frames[parent]["ts"] + frames[parent]["dur"] >= frame["ts"] + frame["dur"]
    assert roots == SMALL.steps


def test_ranges_of_another_library_are_not_heard() -> None:
    names = {event["name"] for event in pick(render(replace(SMALL, annotations="steps")), "user_annotation")}
    assert names == {"gloo:all_gather"}


def test_a_trace_without_calls_holds_gpu_work_only() -> None:
    trace = render(replace(SMALL, runtime_rows=False, annotations="none"), style=EVERYTHING)
    assert set(Counter(event.get("cat") for event in trace["traceEvents"])) == {
        "kernel", "gpu_memcpy", "ac2g", "Trace", None,
    }  # fmt: skip


def test_a_replay_recorded_as_a_whole_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kernels of a replay"):
        write_world(replace(SMALL, graph_mode="graph"), tmp_path, format="torch")


@pytest.mark.parametrize("text", ["ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgs<4096ul>)", "fused_moe_kernel"])
def test_a_spelt_name_is_left_alone(text: str) -> None:
    assert spell_kernel(text) == text


@pytest.mark.parametrize(
    "text,spelt",
    [
        ("void a::<unnamed>::k<(int)16, long>(const T2 *)", "void a::(anonymous namespace)::k<16, long>(long const*)"),
        ("void k<(unsigned int)8, (bool)1>(T1, char *)", "void k<8u, true>(8u, char*)"),
        ("void k<float, A<(int)2, B<C>>>(T2::P)", "void k<float, A<2, B<C> > >(A<2, B<C> >::P)"),
    ],
)
def test_names_are_spelt_as_the_abi_does(text: str, spelt: str) -> None:
    assert spell_kernel(text) == spelt


@pytest.mark.parametrize(
    "naming,attention_tp,name",
    [
        ("sglang", 1, "run-1781000000.1234567-TP-3-DP-3-EP-3-DECODE.trace.json.gz"),
        ("sglang", 4, "run-1781000000.1234567-TP-3-EP-3-DECODE.trace.json.gz"),
        ("vllm", 2, "run_dp1_pp0_tp1_dcp0_ep3_rank1.1781000000123456789.pt.trace.json.gz"),
        ("torch", 1, "run_node-00_41221.1781000000123456789.pt.trace.json"),
    ],
)
def test_files_are_named_as_engines_name_them(naming: FileNames, attention_tp: int, name: str) -> None:
    recording: Recording = simulate_world(replace(SMALL, attention_tp=attention_tp, steps=1))
    stamp = 1_781_000_000_123_456_789
    assert name_trace(recording, 3, naming=naming, prefix="run", stamp_ns=stamp, stage="DECODE") == name


def test_the_same_world_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (write_world(SMALL, tmp_path / name, format="torch") for name in ("a", "b"))
    assert [path.name for path in first] == [path.name for path in second]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert len(first) == SMALL.ranks


def test_every_rank_begins_at_a_step_of_its_own_and_the_truth_is_of_the_common_ones() -> None:
    world = replace(SMALL, steps=12, start_spread=4, faults=())
    recording = simulate_world(world)
    per_step = len(recording.rows[0].kernels.start_ns) // 16
    starts = [int(rows.kernels.start_ns[0]) for rows in recording.rows]
    assert {len(rows.kernels.start_ns) for rows in recording.rows} == {16 * per_step}
    assert max(starts) - min(starts) > 2_000_000
    begun = max(starts)
    left = [int((rows.kernels.start_ns >= begun - 500_000).sum()) // per_step for rows in recording.rows]
    assert min(left) >= 12
    assert truth(world).wall_ns < truth(replace(world, steps=20, start_spread=0)).wall_ns


def test_profiles_cannot_begin_inside_a_step_and_at_different_ones() -> None:
    with pytest.raises(ValueError, match="not both"):
        replace(SMALL, cut_edges=True, start_spread=2)


def trouble(tmp_path: Path, kind: TroubleKind, *ranks: int, world: World = SMALL) -> list[Path]:
    """Write a world with one trouble."""
    return write_world(world, tmp_path, format="torch", troubles=(Trouble(kind, ranks),))


def test_dense_replicas_all_call_themselves_rank_zero(tmp_path: Path) -> None:
    paths = trouble(tmp_path, "same_rank", world=replace(SMALL, names="vllm"))
    assert len({path.name for path in paths}) == 4
    assert all(path.name.startswith("rank0.") for path in paths)
    assert all(read(path)["distributedInfo"]["rank"] == 0 for path in paths)
    assert all(read(path)["distributedInfo"]["world_size"] == 1 for path in paths)
    names = {event["args"]["name"] for event in read(paths[3])["traceEvents"] if event["name"] == "process_name"}
    assert names == {"VLLM::Worker"}
    with pytest.raises(ValueError, match="vLLM"):
        trouble(tmp_path, "same_rank")


def test_a_file_may_not_tell_its_rank(tmp_path: Path) -> None:
    traces = [read(path) for path in trouble(tmp_path, "no_distributed_info", 1)]
    assert ["distributedInfo" in trace for trace in traces] == [True, False, True, True]


def test_ranks_that_write_to_one_path_spoil_it(tmp_path: Path) -> None:
    paths = trouble(tmp_path, "interleaved", 1, 2, world=replace(SMALL, names="invented"))
    assert len(paths) == 3
    text = paths[1].read_text()
    assert "worker-1" in text or "worker-2" in text
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


def test_a_file_may_break_off(tmp_path: Path) -> None:
    paths = trouble(tmp_path / "json", "truncated_json", 3)
    with pytest.raises(json.JSONDecodeError):
        read(paths[3])
    read(paths[2])
    paths = trouble(tmp_path / "gzip", "truncated_gzip", 3)
    with pytest.raises((EOFError, zlib.error)):
        read(paths[3])


def test_a_file_may_be_missing_or_empty(tmp_path: Path) -> None:
    paths = trouble(tmp_path / "missing", "missing", 2)
    assert [read(path)["distributedInfo"]["rank"] for path in paths] == [0, 1, 3]
    paths = trouble(tmp_path / "empty", "empty", 2)
    assert [path.stat().st_size > 0 for path in paths] == [True, True, False, True]
