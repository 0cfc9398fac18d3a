"""Small torch profiler traces, written by hand in the shape kineto gives them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BASE_NS = 1_711_964_646_000_000_000
START_US = 4_458_676_522_690
Event = dict[str, Any]


def us(ns: int) -> float:
    """Write ns after the start as kineto writes a time."""
    return START_US + ns / 1000


def kernel(
    start_ns: int, end_ns: int, *, name: str = "gemm", device: int = 0, correlation: int = 0, **args: Any
) -> Event:
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": device, "tid": 7, "ts": us(start_ns),
        "dur": (end_ns - start_ns) / 1000,
        "args": {
            "External id": 1, "device": device, "context": 1, "stream": 7, "correlation": correlation,
            "grid": [4, 1, 1], "block": [128, 1, 1], **args,
        },
    }  # fmt: skip


def call(start_ns: int, end_ns: int, *, name: str = "cudaLaunchKernel", correlation: int = 0, pid: int = 4242) -> Event:
    return {
        "ph": "X", "cat": "cuda_runtime", "name": name, "pid": pid, "tid": 77, "ts": us(start_ns),
        "dur": (end_ns - start_ns) / 1000, "args": {"cbid": 211, "correlation": correlation},
    }  # fmt: skip


def annotation(start_ns: int, end_ns: int, name: str, pid: int = 4242) -> Event:
    return {
        "ph": "X", "cat": "user_annotation", "name": name, "pid": pid, "tid": 77, "ts": us(start_ns),
        "dur": (end_ns - start_ns) / 1000,
    }  # fmt: skip


def process(name: str, pid: int = 4242, labels: str = "CPU") -> list[Event]:
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": us(0), "args": {"name": name}},
        {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "ts": us(0), "args": {"labels": labels}},
    ]


def document(events: Sequence[Event], *, rank: int | None = 0, world: int = 2, **keys: Any) -> dict[str, Any]:
    head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "H"}]}
    if rank is not None:
        head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}
    return {**head, "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS, "traceEvents": list(events), **keys}


def text(events: Sequence[Event], **keys: Any) -> bytes:
    return json.dumps(document(events, **keys), indent=1).encode()


def write(path: Path, events: Sequence[Event], **keys: Any) -> Path:
    content = text(events, **keys)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def one_rank(n: int = 40) -> list[Event]:
    """Make a process with `n` launched kernels and its annotations."""
    events = process("VLLM::Worker_DP0_TP0_EP0")
    for k in range(n):
        events.append(call(1000 * k, 1000 * k + 200, correlation=k + 1))
        events.append(kernel(1000 * k + 300, 1000 * k + 900, correlation=k + 1))
    return [*events, annotation(0, 1000 * n, "execute_context_0(0)_generation_4(4)")]
