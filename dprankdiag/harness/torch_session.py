"""What a torch profiler trace says beside its events: devices, ranks, versions, times, and names of rows.

Times. A time stamp is in microseconds. Until 2023 it is whole and counts from 1970; later it has three decimals
(nanoseconds) and counts from `baseTimeNanoseconds`, which is the wall time of loading rounded down to a multiple of
7,889,238 s (three months), so that ranks share it and their stamps compare as wall clocks do.

Source: public traces. Facebook HolisticTraceAnalysis `trace_filter` (whole; from 1970 they are April 2023) and
`nccl_parser_config` (base 1711964646 s = 217 quarters; base + stamp = 2024-05-23 00:15:22 UTC, which is the 17:15:22
of its INFO lines in US Pacific time); TraceLens SGLang and vLLM traces (2026; bases of 225 and 224 quarters).
Layout: pytorch/kineto libkineto/src/output_json.cpp.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Literal

from dprankdiag.harness.events import ProcessGroup, Recording

Age = Literal["2023", "2024", "2026"]

AGES: tuple[Age, ...] = ("2023", "2024", "2026")

_QUARTER_NS = 7_889_238 * 1_000_000_000
_GPU_SORT, _SPANS_SORT = 0x1000000, 0x20000000
_ROWS_OF_GPUS = 8
_DEVICE: dict[str, object] = {
    "name": "NVIDIA H200", "totalGlobalMem": 150_754_820_096, "computeMajor": 9, "computeMinor": 0,
    "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65_536, "warpSize": 32,
    "sharedMemPerBlock": 49_152, "numSms": 132, "regsPerMultiprocessor": 65_536, "sharedMemPerBlockOptin": 232_448,
    "sharedMemPerMultiprocessor": 233_472,
}  # fmt: skip


def find_base(wall_ns: int, age: Age) -> int:
    """Find where time stamps of a trace begin, in nanoseconds since 1970."""
    return 0 if age == "2023" else wall_ns // _QUARTER_NS * _QUARTER_NS


def list_devices(recording: Recording, rank: int) -> list[dict[str, object]]:
    """List the GPUs that a rank's process sees."""
    host = recording.processes[rank].host
    count = 1 + max(process.device for process in recording.processes if process.host == host)
    return [{"id": device} | _DEVICE for device in range(count)]


def describe_ranks(recording: Recording, rank: int, age: Age, *, replica: bool = False) -> dict[str, object]:
    """Describe the distributed program as a rank sees it.

    Args:
        recording: whose communicators.
        rank: who looks; it knows only the communicators that it belongs to.
        age: the oldest tells only rank and size.
        replica: every DP rank is a program of its own, which numbers its ranks from 0.
    """
    groups = [group for group in recording.groups if rank in group.ranks]
    own: int = rank
    if replica:
        members = tuple(r for r, place in enumerate(recording.places) if place.dp == recording.places[rank].dp)
        groups = [ProcessGroup("0", "default_pg", "cuda:nccl", tuple(range(len(members))))]
        own = recording.places[rank].attention
    described: dict[str, object] = {"backend": "nccl", "rank": own, "world_size": len(groups[0].ranks)}
    if age == "2023":
        return described
    listed = [
        {
            "pg_name": group.name,
            "pg_desc": group.description,
            "backend_config": group.backend,
            "pg_size": len(group.ranks),
            "ranks": list(group.ranks),
        }
        for group in groups
    ]
    return described | {"pg_count": len(groups), "pg_config": listed, "nccl_version": "2.27.7"}


def render_file(
    events: Sequence[str],
    *,
    age: Age,
    base_ns: int,
    devices: Sequence[dict[str, object]],
    ranks: dict[str, object] | None,
    with_stack: bool,
    trace_name: str,
) -> str:
    """Put events between what stands before and after them."""
    facts: dict[str, object] = {"schemaVersion": 1, "deviceProperties": list(devices)}
    clock: dict[str, object] = {"displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns}
    if age == "2026":
        facts |= {"cuda_runtime_version": 12_080, "cuda_driver_version": 13_000, "cupti_version": 26}
    if ranks is not None:
        facts["distributedInfo"] = ranks
    if with_stack:
        facts["with_stack"] = 1
    if age == "2026":
        identity = hashlib.sha256(f"{trace_name} {ranks}".encode()).hexdigest()[:32].upper()
        facts |= {"trace_id": identity} | clock
    last: dict[str, object] = {"traceName": trace_name} | (clock if age == "2024" else {})
    body = ",\n".join(events)
    return f'{{\n{_render_members(facts)},\n  "traceEvents": [\n{body}\n  ],\n{_render_members(last)}\n}}\n'


def _render_members(members: dict[str, object]) -> str:
    return ",\n".join(f'  "{name}": {json.dumps(value)}' for name, value in members.items())


def list_row_names(title: str, pid: int, device: int, streams: Sequence[int], stamp: str) -> Iterator[str]:
    """Name the rows that a viewer shows: the process, every GPU (used or not), streams and the thread."""
    yield from _name_process(title, pid, "CPU", pid, stamp)
    for gpu in range(max(_ROWS_OF_GPUS, device + 1)):
        yield from _name_process(title, gpu, f"GPU {gpu}", _GPU_SORT + gpu, stamp)
    for stream in streams:
        yield from _name_thread(f"stream {stream} ", device, stream, stamp)
    yield from _name_thread(f"thread {pid} ({title[:15]})", pid, pid, stamp)


def _name_process(title: str, pid: int, label: str, order: int, stamp: str) -> Iterator[str]:
    for key, argument, value in (
        ("process_name", "name", json.dumps(title)),
        ("process_labels", "labels", f'"{label}"'),
        ("process_sort_index", "sort_index", order),
    ):
        yield _render_metadata(key, pid, 0, argument, value, stamp)


def _name_thread(text: str, pid: int, thread: int, stamp: str) -> Iterator[str]:
    yield _render_metadata("thread_name", pid, thread, "name", json.dumps(text), stamp)
    yield _render_metadata("thread_sort_index", pid, thread, "sort_index", thread, stamp)


def _render_metadata(key: str, pid: object, thread: int, argument: str, value: object, stamp: str) -> str:
    return (
        f'  {{\n    "name": "{key}", "ph": "M", "ts": {stamp}, "pid": {pid}, "tid": {thread},\n'
        f'    "args": {{\n      "{argument}": {value}\n    }}\n  }}'
    )


def list_window(start: str, duration: str, end: str) -> Iterator[str]:
    """Mark what the profiler recorded: its span, the start of the iteration and the end of the window."""
    yield (
        f'  {{\n    "ph": "X", "cat": "Trace", "ts": {start}, "dur": {duration},\n'
        '    "pid": "Spans", "tid": "PyTorch Profiler",\n    "name": "PyTorch Profiler (0)",\n'
        '    "args": {\n      "Op count": 0\n    }\n  }'
    )
    yield _render_metadata("process_sort_index", '"Spans"', 0, "sort_index", _SPANS_SORT, start)
    yield (
        '  {\n    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",\n    "pid": "Traces", '
        f'"tid": "Trace PyTorch Profiler", "ts": {start}\n  }}'
    )
    yield (f'  {{\n    "name": "Record Window End", "ph": "i", "s": "g",\n    "pid": "", "tid": "", "ts": {end}\n  }}')
