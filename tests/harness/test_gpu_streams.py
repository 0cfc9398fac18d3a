"""Ranks that are streams of one GPU: how they are launched, what a lost one does, and how their trace is split."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprankdiag.harness.gpu_cuda import summarise_stamps
from dprankdiag.harness.gpu_layer import Rounds, count_prompt_visits, fit_programs, fit_rounds
from dprankdiag.harness.gpu_split import MARKER, split_file, split_trace
from dprankdiag.harness.gpu_streams import HostMeeting, StreamDevice, run_streams
from dprankdiag.harness.run_plan import Orders, Plan, give_orders
from dprankdiag.harness.run_steps import LAYER, STEP
from tests.harness.fake_gpu import CUPTI_THREAD, FIRST_STREAM, PID, ROUNDS, FakeGpu, FakeQueue, run_fake

PLAN = Plan("small", ranks=3, steps=4, layers=2, requests=8, context_tokens=100)


def small_orders() -> list[Orders]:
    return give_orders(PLAN)


def kernels_of(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]


def test_each_rank_launches_every_part_of_every_layer_on_its_own_stream() -> None:
    ended, trace = run_fake(small_orders())
    for rank in range(3):
        names = [event["name"] for event in kernels_of(trace) if event["args"]["stream"] == FIRST_STREAM + 4 * rank]
        layer = [
            "decode_attention_kernel", "all_gather_spin_kernel", "router_gate_kernel", "fused_moe_kernel",
            "reduce_scatter_spin_kernel",
        ]  # fmt: skip
        assert names == [MARKER, *[*layer * 2, "argmax_sampling_kernel"] * 4]
        texts = [text for _, _, text, _ in ended[rank].log.rows]
        assert (texts.count(STEP), texts.count(f"{LAYER} 1")) == (4, 4)


def test_a_split_trace_holds_each_event_of_its_rank_as_it_was_recorded() -> None:
    ended, trace = run_fake(small_orders())
    split = split_trace(trace, [it.thread for it in ended])
    assert [part["distributedInfo"]["rank"] for part in split] == [0, 1, 2]
    assert all(part["baseTimeNanoseconds"] == trace["baseTimeNanoseconds"] for part in split)
    together = [event for part in split for event in kernels_of(part)]
    by_time = sorted(kernels_of(trace), key=lambda event: (event["tid"], event["ts"]))
    assert sorted(together, key=lambda event: (event["tid"], event["ts"])) == by_time
    for rank, part in enumerate(split):
        assert {event["args"]["stream"] for event in kernels_of(part)} == {FIRST_STREAM + 4 * rank}
        rows = {event["tid"] for event in part["traceEvents"] if event["pid"] == PID and event["ph"] != "M"}
        assert rows == {ended[rank].thread}  # CUPTI's number for the thread is gone, and the main thread with it
        launched = {event["id"] for event in part["traceEvents"] if event["ph"] == "s"}
        assert launched == {event["id"] for event in part["traceEvents"] if event["ph"] == "f"}
        assert any(event["name"] == "Record Window End" for event in part["traceEvents"])
        assert "aten::zero_" not in {event["name"] for event in part["traceEvents"]}


def test_a_split_file_is_a_trace_a_rank(tmp_path: Path) -> None:
    ended, trace = run_fake(small_orders())
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps(trace))
    paths = split_file(whole, [it.thread for it in ended], tmp_path, "rank{rank}.json")
    assert [path.name for path in paths] == ["rank0.json", "rank1.json", "rank2.json"]
    assert [json.loads(path.read_text())["distributedInfo"]["world_size"] for path in paths] == [3, 3, 3]


def test_a_trace_without_the_stream_of_a_rank_is_not_split() -> None:
    ended, trace = run_fake(small_orders())
    threads = [it.thread for it in ended]
    unmarked = [event for event in trace["traceEvents"] if event.get("args", {}).get("grid") != [3, 1, 1]]
    with pytest.raises(ValueError, match=r"no stream of ranks \[2\]"):
        split_trace(trace | {"traceEvents": unmarked}, threads)
    shared = [
        event | {"args": event["args"] | {"stream": FIRST_STREAM}} if event.get("cat") == "kernel" else event
        for event in trace["traceEvents"]
    ]
    with pytest.raises(ValueError, match=f"stream {FIRST_STREAM} is marked"):
        split_trace(trace | {"traceEvents": shared}, threads)
    mixed = [event | {"tid": CUPTI_THREAD} if event.get("cat") == "cuda_driver" else event
             for event in trace["traceEvents"]]  # fmt: skip
    with pytest.raises(ValueError, match="launched work of ranks"):
        split_trace(trace | {"traceEvents": mixed}, threads)


def test_a_rank_whose_collective_gave_up_ends_the_run() -> None:
    gpu = FakeGpu(1)
    with pytest.raises(ConnectionError, match="rank 0 waited on the GPU"):
        run_streams(give_orders(Plan("one", ranks=1, steps=1)), [FakeQueue(gpu, 0, lost=True)], ROUNDS, lambda: ())


def test_a_host_that_does_not_come_ends_the_run_of_all() -> None:
    meeting = HostMeeting(2, patience_s=0.05)
    with pytest.raises(ConnectionError, match="rank 1 waited for a host"):
        meeting.exchange(1, 5)


def test_hosts_tell_each_other_what_comes_and_the_last_one_holds_up_all() -> None:
    meeting, left = HostMeeting(3), []

    def come(rank: int) -> None:
        time.sleep(0.05 * (rank == 2))
        left.extend((meeting.exchange(rank, 10**rank * (turn + 1)), turn) for turn in range(3))

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(left) == [(111 * (turn + 1), turn) for turn in range(3) for _ in range(3)]


def test_a_slow_rank_does_all_work_more_often_and_sends_as_often() -> None:
    gpu = FakeGpu(1)
    queue = FakeQueue(gpu, 0)
    device = StreamDevice(0, queue, HostMeeting(1), Rounds(attention=4, router=3, experts=5, transfer=7))
    device.attend(8, 100, 0, 2.0)
    device.route(10, 2.0)
    device.compute_experts(10.0, 2.0)
    device.gather(1)
    device.scatter(3)
    slow = [duration for _, _, duration, _, _ in queue.waiting]
    usual = FakeQueue(FakeGpu(1), 0)
    usual.attend(100, 0, 8)
    usual.route(10, 6)
    usual.compute_experts(10.0, 10)
    usual.meet("all_gather", 0, 7)
    usual.meet("reduce_scatter", 1, 21)
    assert slow == [duration for _, _, duration, _, _ in usual.waiting]
    assert [number for *_, number in queue.waiting][-2:] == [0, 1]


def test_rounds_are_chosen_so_that_each_part_takes_its_target() -> None:
    takes = {"attention": 30_000, "router": 1_000_000, "experts": 0, "transfer": 15_000}
    asked: list[tuple[str, int]] = []
    calls = {part: lambda rounds, part=part: asked.append((part, rounds)) for part in takes}

    def measure(launch: Any) -> int:
        launch()
        part, rounds = asked[-1]
        return 5_000 + takes[part] * rounds

    found = fit_rounds(calls, measure)  # type: ignore[arg-type]
    assert (found.attention, found.router, found.transfer) == (50, 1, 10)
    assert found.experts > 1000  # what takes no time at all is done often, but not for ever


@pytest.mark.parametrize("processors,ranks,programs", [(132, 4, 32), (132, 8, 15), (8, 4, 1)])
def test_all_ranks_fit_on_the_gpu_together_with_their_collectives(processors: int, ranks: int, programs: int) -> None:
    assert fit_programs(processors, ranks) == programs
    assert ranks * (programs + 1) <= processors


def test_more_ranks_than_a_gpu_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        fit_programs(7, 4)


def test_a_token_of_a_prompt_attends_to_all_before_it() -> None:
    assert [count_prompt_visits(tokens) for tokens in (0, 1, 4)] == [0, 1, 10]


def test_stamps_tell_who_waited_and_who_came_last() -> None:
    stamps = np.array([[[0, 90, 100], [10, 40, 50]], [[90, 90, 110], [5, 40, 41]]])
    first, second = summarise_stamps(stamps)
    assert first == {"rank": 0, "wait_ns": 120, "transfer_ns": 20, "came_last": 1, "meetings": 2}
    assert second == {"rank": 1, "wait_ns": 35, "transfer_ns": 21, "came_last": 1, "meetings": 2}
