"""A GPU that is not there: streams in time that is made up, and the torch profiler's trace of them.

Threads are real and wait for each other, but every time is computed, so that the same orders give the same trace.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dprankdiag.harness.gpu_layer import Rounds, count_prompt_visits
from dprankdiag.harness.gpu_streams import Ended, HostMeeting, run_streams
from dprankdiag.harness.run_plan import Orders
from dprankdiag.harness.run_steps import GATHER

ROUNDS = Rounds(attention=4, router=2, experts=4, transfer=5)
CALL_NS, LAUNCH_NS, RANGE_NS, MEETING_NS, MESSAGE_NS = 12_000, 4_000, 1_500, 30_000, 30_000
SAMPLE_NS = 12_000
TOKEN_NS, ROUTER_ROW_NS, EXPERT_ROW_NS = 3.0, 200.0, 1200.0
BASE_NS = 1_790_857_026_000_000_000
PID, FIRST_STREAM, CUPTI_THREAD = 4321, 13, 3_000_000_000


@dataclass
class FakeGpu:
    """What the streams share: who has come to which collective, and what the profiler has seen."""

    ranks: int
    come: dict[int, dict[int, int]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    condition: threading.Condition = field(default_factory=threading.Condition)
    correlation: int = 0

    def add(self, *events: dict[str, Any]) -> None:
        with self.condition:
            self.events += events

    def correlate(self) -> int:
        with self.condition:
            self.correlation += 1
            return self.correlation

    def meet(self, number: int, rank: int, arrival_ns: int) -> int:
        """Wait for all to come; the last one's time."""
        with self.condition:
            self.come.setdefault(number, {})[rank] = arrival_ns
            self.condition.notify_all()
            if not self.condition.wait_for(lambda: len(self.come[number]) == self.ranks, timeout=20):
                raise TimeoutError(f"rank {rank} waits for meeting {number}")
            return max(self.come[number].values())


@dataclass
class FakeQueue:
    """The stream of one rank, and the clock of its thread."""

    gpu: FakeGpu
    rank: int
    host_ns: int = 1_000_000
    gpu_ns: int = 0
    waiting: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    open: list[tuple[str, int]] = field(default_factory=list)
    lost: bool = False

    def __post_init__(self) -> None:
        self.noise = np.random.default_rng([5, self.rank])

    @property
    def stream(self) -> int:
        return FIRST_STREAM + 4 * self.rank

    def mark_rank(self) -> None:
        self._launch("mark_rank_kernel", 2_000, grid=self.rank + 1)

    def attend(self, held_tokens: int, prompt_tokens: int, rounds: int) -> None:
        visits = count_prompt_visits(prompt_tokens)
        for name, tokens in (("decode_attention_kernel", held_tokens), ("prefill_attention_kernel", visits)):
            if tokens:
                self._launch(name, round(TOKEN_NS * tokens * rounds))

    def route(self, rows: int, rounds: int) -> None:
        self._launch("router_gate_kernel", round(ROUTER_ROW_NS * rows * rounds))

    def compute_experts(self, rows: float, rounds: int) -> None:
        self._launch("fused_moe_kernel", round(EXPERT_ROW_NS * rows * rounds))

    def sample(self, requests: int) -> None:
        self._launch("argmax_sampling_kernel", SAMPLE_NS)

    def meet(self, operation: str, number: int, messages: int) -> None:
        name = "all_gather_spin_kernel" if operation == GATHER else "reduce_scatter_spin_kernel"
        self._launch(name, messages * MESSAGE_NS, grid=1, number=number)

    def pause(self, duration_ns: int) -> None:
        self.host_ns += duration_ns

    def wait(self) -> bool:
        for name, launched_ns, duration_ns, correlation, number in self.waiting:
            start_ns = max(self.gpu_ns, launched_ns + LAUNCH_NS)
            last_ns = start_ns if number < 0 else self.gpu.meet(number, self.rank, start_ns)
            self.gpu_ns = last_ns + round(duration_ns * np.exp(0.015 * self.noise.standard_normal()))
            grid = self.rank + 1 if name == "mark_rank_kernel" else 1 if number >= 0 else 32
            self.gpu.add(*self._show(name, start_ns, correlation, grid))
        self.waiting.clear()
        self.host_ns = max(self.host_ns, self.gpu_ns) + CALL_NS
        return not self.lost

    def now_ns(self) -> int:
        return self.host_ns

    def push(self, text: str) -> None:
        self.host_ns += RANGE_NS
        self.open.append((text, self.host_ns))

    def pop(self) -> None:
        self.host_ns += RANGE_NS
        text, start_ns = self.open.pop()
        thread = threading.get_native_id()
        self.gpu.add(_event("user_annotation", text, PID, thread, start_ns, self.host_ns, {"External id": 1}))

    def _launch(self, name: str, duration_ns: int, *, grid: int = 32, number: int = -1) -> None:
        correlation = self.gpu.correlate()
        start_ns, self.host_ns = self.host_ns, self.host_ns + CALL_NS
        thread = CUPTI_THREAD + self.rank  # CUPTI need not know a thread by the system's number
        self.gpu.add(
            _event(
                "cuda_driver", "cuLaunchKernelEx", PID, thread, start_ns, self.host_ns, {"correlation": correlation}
            ),
            _arrow("s", correlation, PID, thread, start_ns),
        )
        self.waiting.append((name, self.host_ns, duration_ns, correlation, number))

    def _show(self, name: str, start_ns: int, correlation: int, grid: int) -> list[dict[str, Any]]:
        told = {"device": 0, "context": 1, "stream": self.stream, "correlation": correlation}
        shape = {"grid": [grid, 1, 1], "block": [128, 1, 1]}
        return [
            _event("kernel", name, 0, self.stream, start_ns, self.gpu_ns, told | shape),
            _arrow("f", correlation, 0, self.stream, start_ns),
        ]


class FakeMeeting(HostMeeting):
    """A meeting after which all threads' clocks show the time of the last to come."""

    def __init__(self, queues: Sequence[FakeQueue]) -> None:
        super().__init__(len(queues), patience_s=20)
        self.queues = queues
        self.before = threading.Barrier(len(queues), timeout=20)

    def exchange(self, rank: int, rows: int) -> int:
        self.before.wait()
        latest_ns = max(queue.host_ns for queue in self.queues)
        total = super().exchange(rank, rows)
        self.queues[rank].host_ns = latest_ns + MEETING_NS
        return total


def run_fake(orders: Sequence[Orders]) -> tuple[list[Ended], dict[str, Any]]:
    """Let all ranks run on a GPU that is not there: what they marked, and the trace of their one process."""
    gpu = FakeGpu(len(orders))
    queues = [FakeQueue(gpu, rank) for rank in range(len(orders))]

    def listen() -> tuple[FakeQueue, ...]:
        rank = int(threading.current_thread().name.removeprefix("rank "))
        return (queues[rank],)

    ended = run_streams(orders, queues, ROUNDS, listen, FakeMeeting(queues))
    return ended, {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
        "baseTimeNanoseconds": BASE_NS,
        "displayTimeUnit": "ms",
        "traceEvents": [*gpu.events, *_surroundings(gpu)],
        "traceName": "whole.json",
    }


def _surroundings(gpu: FakeGpu) -> list[dict[str, Any]]:
    """List what else a trace holds: names of rows, the profiler's span, and what the main thread has done."""
    named = [("process_name", 0, 0, {"name": "python3"}), ("process_labels", 0, 0, {"labels": "GPU 0"})]
    named += [("thread_name", 0, FIRST_STREAM + 4 * rank, {"name": "stream"}) for rank in range(gpu.ranks)]
    return [
        *({"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0.0, "args": told} for name, pid, tid, told in named),
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler",
         "ts": 0.0, "dur": 9.0},
        {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 9.0, "s": "g"},
        _event("cpu_op", "aten::zero_", PID, PID, 10, 20, {}),
        _event("gpu_memset", "Memset (Device)", 0, 7, 10, 20, {"device": 0, "stream": 7, "correlation": 0}),
    ]  # fmt: skip


def _event(
    category: str, name: str, pid: int, tid: int, start_ns: int, end_ns: int, told: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": told}


def _arrow(phase: str, correlation: int, pid: int, tid: int, at_ns: int) -> dict[str, Any]:
    return {"ph": phase, "id": correlation, "pid": pid, "tid": tid, "ts": at_ns / 1000, "cat": "ac2g", "name": "ac2g"}
