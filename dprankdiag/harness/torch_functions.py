"""What a torch profiler sees on the host: ranges of the program, operators around launches, Python functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dprankdiag.harness.events import NOT_IN_GRAPH, Array, CallRows, Collective, Recording

_BEFORE_NS, _AFTER_NS = 900, 500
_INSIDE_NS = 250
_OPERATORS = {"cudaMemcpyAsync": "aten::copy_", "cudaMemsetAsync": "aten::zero_", "cuLaunchKernelEx": "aten::mm"}
_TITLES = {
    "_allgather_base": "nccl:_all_gather_base",
    "_reduce_scatter_base": "nccl:_reduce_scatter_base",
    "allreduce": "nccl:all_reduce",
}
_STACKS = {
    "step[": ("srt/managers/scheduler.py(1420): event_loop_normal", "srt/managers/scheduler.py(2919): run_batch"),
    "execute_": (
        "v1/executor/multiproc_executor.py(704): worker_busy_loop",
        "v1/worker/gpu_worker.py(571): execute_model",
    ),
}
_FRAME_NS = 20_000


@dataclass(frozen=True, slots=True)
class Function:
    """A recorded function: an operator or a range of the program, on the rank's thread."""

    start_ns: int
    end_ns: int
    category: Literal["cpu_op", "user_annotation"]
    name: str
    collective: Collective | None = None
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Frame:
    """A Python function; `caller` is the number, from 1, of the one that called it."""

    start_ns: int
    end_ns: int
    name: str
    caller: int | None


def list_functions(recording: Recording, rank: int, *, by_torch: bool) -> list[Function]:
    """List what a rank's thread ran, in order of start; outer before inner.

    Ranges in a domain are calls of the NVTX library, which this profiler does not hear, except those of the
    communication library, which it announces itself.

    Args:
        recording: what happened.
        rank: whose thread.
        by_torch: collectives are launched by torch, not by an engine that calls NCCL itself.
    """
    rows = recording.rows[rank]
    found = _list_operators(recording, rank, by_torch)
    for start, end, name in zip(
        rows.ranges.start_ns.tolist(), rows.ranges.end_ns.tolist(), rows.ranges.name.tolist(), strict=True
    ):
        text = recording.range_texts[name]
        if not text.domain or text.text.startswith("gloo:"):
            found.append(Function(start, end, "user_annotation", text.text))
    return sorted(found, key=lambda it: (it.start_ns, -it.end_ns))


def _list_operators(recording: Recording, rank: int, by_torch: bool) -> list[Function]:
    kernels, calls = recording.rows[rank].kernels, recording.rows[rank].calls
    alone = kernels.node == NOT_IN_GRAPH
    launched = {
        call: recording.collectives[name]
        for call, name in zip(kernels.call[alone].tolist(), kernels.name[alone].tolist(), strict=True)
    }
    found: list[Function] = []
    counts: dict[str, int] = {}
    for start, end, name, call in zip(
        calls.start_ns.tolist(), calls.end_ns.tolist(), calls.name.tolist(), calls.call.tolist(), strict=True
    ):
        begin, until = start - _BEFORE_NS, end + _AFTER_NS
        collective = launched.get(call)
        if collective and by_torch:
            counts[collective.among] = counts.get(collective.among, 0) + 1
            number = counts[collective.among]
            found.append(Function(begin, until, "cpu_op", "record_param_comms", collective, number))
            title = _TITLES[collective.name]
            found.append(Function(begin + _INSIDE_NS, until - _INSIDE_NS, "user_annotation", title))
            continue
        operator = _OPERATORS.get(recording.call_texts[name].partition("_v")[0])
        if operator:
            found.append(Function(begin, until, "cpu_op", operator))
    return found


def own_calls(functions: list[Function], calls: CallRows, *, operators: bool) -> Array:
    """Find for every call the innermost operator, or range, around it: `(calls,)` positions, -1 for none."""
    category = "cpu_op" if operators else "user_annotation"
    owners: Array = np.full(len(calls.start_ns), -1, np.int64)
    picked = [position for position, it in enumerate(functions) if it.category == category]
    first = np.searchsorted(calls.start_ns, [functions[position].start_ns for position in picked])
    last = np.searchsorted(calls.start_ns, [functions[position].end_ns for position in picked], side="right")
    for position, begin, end in zip(picked, first.tolist(), last.tolist(), strict=True):
        owners[begin:end] = position
    return owners


def list_stacks(functions: list[Function]) -> list[Frame]:
    """List Python functions around the program's steps."""
    found: list[Frame] = []
    for it in functions:
        for start, names in _STACKS.items():
            if it.category == "user_annotation" and it.name.startswith(start):
                for depth, name in enumerate(names):
                    around = (len(names) - depth) * _FRAME_NS
                    found.append(Frame(it.start_ns - around, it.end_ns + around, name, len(found) if depth else None))
    return found
