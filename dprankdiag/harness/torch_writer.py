"""Write one rank of a recording as a torch profiler trace (Chrome JSON as Kineto writes it).

Calls and GPU work carry one correlation number; all kernels of a graph replay carry that of its launch. `External id`
leads from a call and its GPU work to the operator around the call: operators stand around launches that go through
torch (matrix products, copies, collectives of its process groups), never around a replay or a kernel that an engine
launches itself. So a collective inside a graph tells no process group. Until 2024 `External id` is never absent: where
no operator is around, it repeats the correlation.

Source: public traces (see `torch_session`); pytorch/kineto libkineto/src/{output_json.cpp,CuptiActivity.cpp};
pytorch torch/csrc/profiler/util.cpp (what a collective tells; more than 30 ranks are listed in short). CUPTI callback
numbers from cupti_runtime_cbid.h and cupti_driver_cbid.h.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dprankdiag.harness.events import (
    COPY_TO_HOST,
    NOT_IN_GRAPH,
    SYNC_EVENT,
    SYNC_STREAM,
    SYNC_STREAM_WAIT,
    Array,
    ClearRows,
    Collective,
    CopyRows,
    FileClock,
    KernelRows,
    ProcessGroup,
    Recording,
)
from dprankdiag.harness.torch_functions import list_functions, list_stacks, own_calls
from dprankdiag.harness.torch_names import spell_call, spell_kernel
from dprankdiag.harness.torch_session import (
    Age,
    describe_ranks,
    find_base,
    list_devices,
    list_row_names,
    list_window,
    render_file,
)

CollectiveArgs = Literal["none", "eager", "all"]

_CALLBACKS = {
    "cudaMemcpyAsync": 41, "cudaMemsetAsync": 51, "cudaStreamSynchronize": 131, "cudaEventRecord": 135,
    "cudaEventSynchronize": 137, "cudaStreamWaitEvent": 147, "cudaLaunchKernel": 211, "cudaGraphLaunch": 311,
    "cuLaunchKernelEx": 652,
}  # fmt: skip
_SYNC_NAMES = {SYNC_EVENT: "Event Sync", SYNC_STREAM_WAIT: "Stream Wait Event", SYNC_STREAM: "Stream Sync"}
_FLOW_ENDS = ("cudaEventRecord", "cudaEventSynchronize")
_SMS, _WARPS_AN_SM = 132, 64
_GRAPH_ID = 12
_REPLICATED = re.compile(r"_(DP|EP)\d+")
_LISTED_RANKS = 30


@dataclass(frozen=True, slots=True)
class TorchStyle:
    """What a profiler was asked for, and how old it is.

    Attributes:
        age: of the format: whole microseconds; nanoseconds; the newest.
        collective_args: kernels of collectives tell their process group: never, as torch did not launch them (vLLM
            calls NCCL itself); where torch launched them one by one (SGLang outside graphs); or always (no real
            profiler sees that inside a graph).
        distributed_info: the file tells rank and communicators; some jobs' files do not.
        replica: every DP rank is a program of its own that numbers its ranks from 0, so that neither file nor process
            title tells DP or EP rank (vLLM with dense models).
        sync_events: waits of streams and hosts are events too; engines do not ask for them.
        with_stack: Python functions.
    """

    age: Age = "2026"
    collective_args: CollectiveArgs = "eager"
    distributed_info: bool = True
    replica: bool = False
    sync_events: bool = False
    with_stack: bool = False


def render_trace(
    recording: Recording, rank: int, *, clock: FileClock | None = None, style: TorchStyle | None = None
) -> str:
    """Render a rank's trace.

    Args:
        recording: what happened.
        rank: whose trace.
        clock: the host's; only its wall clock and drift count.
        style: what was asked of which profiler.

    Raises:
        ValueError: replays were recorded as a whole, which this profiler never does.
    """
    if recording.graph_mode == "graph":
        raise ValueError("a torch profiler trace shows the kernels of a replay, never the replay as a whole")
    return _Writer(recording, rank, clock or FileClock(), style or TorchStyle()).render()


class _Writer:
    """One trace being written."""

    def __init__(self, recording: Recording, rank: int, clock: FileClock, style: TorchStyle) -> None:
        self.recording, self.rank, self.clock, self.style = recording, rank, clock, style
        self.process, self.rows = recording.processes[rank], recording.rows[rank]
        self.start_ns, self.end_ns = _find_window(recording, rank)
        self.base_ns = find_base(int(self._wall(np.asarray([self.start_ns]))[0]), style.age)
        self.call_texts = [spell_call(text) for text in recording.call_texts]
        self.groups = {group.among: group for group in recording.groups if group.among and rank in group.ranks}
        self.functions = list_functions(recording, rank, by_torch=style.collective_args != "none")
        self.operator_of = own_calls(self.functions, self.rows.calls, operators=True)
        self.events: list[str] = []

    def render(self) -> str:
        self._write_functions()
        self._write_calls()
        self._write_kernels()
        self._write_memory()
        self._write_gpu_annotations()
        if self.style.sync_events:
            self._write_syncs()
        start, end = self._stamps(np.asarray([self.start_ns, self.end_ns]))
        (duration,) = self._spans(np.asarray([self.start_ns]), np.asarray([self.end_ns]))
        streams = np.unique(np.concatenate([self.rows.kernels.stream, self.rows.copies.stream])).tolist()
        title = _REPLICATED.sub("", self.process.title) if self.style.replica else self.process.title
        self.events += list_row_names(title, self.process.pid, self.process.device, streams, start)
        self.events += list_window(start, duration, end)
        described = describe_ranks(self.recording, self.rank, self.style.age, replica=self.style.replica)
        return render_file(
            self.events,
            age=self.style.age,
            base_ns=self.base_ns,
            devices=list_devices(self.recording, self.rank),
            ranks=described if self.style.distributed_info else None,
            with_stack=self.style.with_stack,
            trace_name=f"tmp{self.process.pid}.json",
        )

    def _write_functions(self) -> None:
        pid, columns = self.process.pid, self.functions
        begin, end = (np.asarray([getattr(it, key) for it in columns], np.int64) for key in ("start_ns", "end_ns"))
        rows = zip(columns, self._stamps(begin), self._spans(begin, end), strict=True)
        for number, (it, stamp, span) in enumerate(rows):
            record = "" if self.style.age == "2023" else f', "Record function id": {number + 1}'
            more = self._tell_collective(it.collective, it.sequence, of_operator=True) if it.collective else ""
            told = f'"External id": {number + 1}{record}{more}, "Ev Idx": {number}'
            self.events.append(_render_event(it.category, it.name, pid, pid, stamp, span, told))
        if self.style.with_stack:
            self._write_stacks(len(columns))

    def _write_stacks(self, first: int) -> None:
        pid = self.process.pid
        frames = list_stacks(self.functions)
        begin, end = (np.asarray([getattr(it, key) for it in frames], np.int64) for key in ("start_ns", "end_ns"))
        rows = zip(frames, self._stamps(begin), self._spans(begin, end), strict=True)
        for number, (frame, stamp, span) in enumerate(rows):
            caller = "null" if frame.caller is None else frame.caller
            told = f'"Python parent id": {caller}, "Python id": {number + 1}, "Ev Idx": {first + number}'
            self.events.append(_render_event("python_function", frame.name, pid, pid, stamp, span, told))

    def _write_calls(self) -> None:
        calls, pid = self.rows.calls, self.process.pid
        stamps, spans = self._stamps(calls.start_ns), self._spans(calls.start_ns, calls.end_ns)
        for stamp, span, name, call, owner in zip(
            stamps, spans, calls.name.tolist(), calls.call.tolist(), self.operator_of.tolist(), strict=True
        ):
            text = self.call_texts[name]
            category = "cuda_runtime" if text.startswith("cuda") else "cuda_driver"
            told = f'{self._link(owner, call)}"cbid": {_CALLBACKS[text]}, "correlation": {call}'
            self.events.append(_render_event(category, text, pid, pid, stamp, span, told))
            self.events.append(_render_flow("f" if text in _FLOW_ENDS else "s", call, pid, pid, stamp))

    def _write_kernels(self) -> None:
        rows, device = self.rows.kernels, self.process.device
        stamps, spans = self._gpu_times(rows.start_ns, rows.end_ns)
        names = [json.dumps(spell_kernel(text.demangled)) for text in self.recording.kernel_texts]
        owners, told = self._find_owners(rows.call), self._tell_kernels(rows)
        tails: dict[tuple[int, int, int, int], str] = {}
        for stamp, span, stream, name, grid_x, grid_y, block, call, node, owner, more in zip(
            stamps, spans, rows.stream.tolist(), rows.name.tolist(), rows.grid_x.tolist(), rows.grid_y.tolist(),
            rows.block_x.tolist(), rows.call.tolist(), rows.node.tolist(), owners, told, strict=True,
        ):  # fmt: skip
            shape = (name, grid_x, grid_y, block)
            tail = tails.get(shape) or tails.setdefault(shape, self._render_shape(*shape))
            link = self._link(owner if node == NOT_IN_GRAPH else -1, call)
            graph = self._render_node(node)
            self.events.append(
                f'  {{\n    "ph": "X", "cat": "kernel", "name": {names[name]}, "pid": {device}, "tid": {stream},\n'
                f'    "ts": {stamp}, "dur": {span},\n    "args": {{\n      {link}"queued": 0, "device": {device}, '
                f'"context": 1,\n      "stream": {stream}, "correlation": {call},\n{tail}{graph}{more}\n    }}\n  }}'
            )
            self.events.append(_render_flow("f", call, device, stream, stamp))

    def _render_shape(self, name: int, grid_x: int, grid_y: int, block: int) -> str:
        blocks = grid_x * grid_y / _SMS
        warps = blocks * block / 32
        collective = self.recording.collectives[name]
        registers, shared = (96, 87_568) if collective else (64, 0)
        return (
            f'      "registers per thread": {registers},\n      "shared memory": {shared},\n'
            f'      "blocks per SM": {blocks:.6f},\n      "warps per SM": {warps:.6f},\n'
            f'      "grid": [{grid_x}, {grid_y}, 1],\n      "block": [{block}, 1, 1],\n'
            f'      "est. achieved occupancy %": {min(100, round(100 * warps / _WARPS_AN_SM))}'
        )

    def _render_node(self, node: int) -> str:
        if self.style.age != "2026":
            return ""
        graph, node = (0, 0) if node == NOT_IN_GRAPH else (_GRAPH_ID, node)
        return f',\n      "graph id": {graph}, "graph node id": {node}'

    def _tell_kernels(self, rows: KernelRows) -> list[str]:
        """Tell the process group of every collective kernel that tells it; "" for any other."""
        told = [""] * len(rows.call)
        if self.style.collective_args == "none" or self.style.age == "2023":
            return told
        counts: dict[str, int] = {}
        for position, (name, node) in enumerate(zip(rows.name.tolist(), rows.node.tolist(), strict=True)):
            collective = self.recording.collectives[name]
            if collective and (node == NOT_IN_GRAPH or self.style.collective_args == "all"):
                counts[collective.among] = counts.get(collective.among, 0) + 1
                told[position] = self._tell_collective(collective, counts[collective.among], of_operator=False)
        return told

    def _tell_collective(self, collective: Collective, sequence: int, *, of_operator: bool) -> str:
        if self.style.age == "2023":
            return ""
        group = self._seen_group(collective)
        stride = group.ranks[1] - group.ranks[0] if len(group.ranks) > 1 else 1
        place = f', "Global rank start": {group.ranks[0]}, "Global rank stride": {stride}' if of_operator else ""
        newest = f', "Seq": {sequence}' if self.style.age == "2026" else ""
        return (
            f', "Collective name": "{collective.name}", "In msg nelems": {collective.input_elements}, '
            f'"Out msg nelems": {collective.output_elements}, "Group size": {len(group.ranks)}, '
            f'"dtype": "{collective.dtype}", "In split size": "[]", "Out split size": "[]", '
            f'"Process Group Name": "{group.name}", "Process Group Description": "{group.description}", '
            f'"Process Group Ranks": "{_list_ranks(group.ranks)}"{place}{newest}'
        )

    def _seen_group(self, collective: Collective) -> ProcessGroup:
        return self.groups[collective.among if collective.among in self.groups else "world"]

    def _write_memory(self) -> None:
        copies, clears = self.rows.copies, self.rows.clears
        names = [
            "Memcpy DtoH (Device -> Pinned)" if kind == COPY_TO_HOST else "Memcpy HtoD (Pinned -> Device)"
            for kind in copies.kind.tolist()
        ]
        self._write_moves("gpu_memcpy", names, copies, [NOT_IN_GRAPH] * len(names))
        self._write_moves("gpu_memset", ["Memset (Device)"] * len(clears.call), clears, clears.node.tolist())

    def _write_moves(self, category: str, names: list[str], rows: CopyRows | ClearRows, nodes: list[int]) -> None:
        device = self.process.device
        stamps, spans = self._gpu_times(rows.start_ns, rows.end_ns)
        for name, node, stamp, span, stream, size, call, owner, duration in zip(
            names, nodes, stamps, spans, rows.stream.tolist(), rows.size_bytes.tolist(), rows.call.tolist(),
            self._find_owners(rows.call), (rows.end_ns - rows.start_ns).tolist(), strict=True,
        ):  # fmt: skip
            told = (
                f'{self._link(owner if node == NOT_IN_GRAPH else -1, call)}"device": {device}, "context": 1, '
                f'"stream": {stream}, "correlation": {call}, "bytes": {size}, '
                f'"memory bandwidth (GB/s)": {size / max(duration, 1)}{self._render_node(node)}'
            )
            self.events.append(_render_event(category, name, device, stream, stamp, span, told))
            self.events.append(_render_flow("f", call, device, stream, stamp))

    def _write_gpu_annotations(self) -> None:
        """Mark on every stream from the first to the last work that was launched inside an annotation."""
        tables = (self.rows.kernels, self.rows.copies, self.rows.clears)
        calls = np.concatenate([rows.call for rows in tables])
        inside = own_calls(self.functions, self.rows.calls, operators=False)
        owners = np.asarray(self._look_up(inside, calls), np.int64)
        streams = np.concatenate([rows.stream for rows in tables])
        begins = np.concatenate([rows.start_ns for rows in tables])
        ends = np.concatenate([rows.end_ns for rows in tables])
        known = owners >= 0
        keys, place = np.unique(np.stack([owners[known], streams[known]]), axis=1, return_inverse=True)
        first = np.full(keys.shape[1], np.iinfo(np.int64).max)
        last = np.zeros(keys.shape[1], np.int64)
        np.minimum.at(first, place.ravel(), begins[known])
        np.maximum.at(last, place.ravel(), ends[known])
        stamps, spans = self._gpu_times(first - 1, last + 1)
        device = self.process.device
        for stamp, span, owner, stream in zip(stamps, spans, *keys.tolist(), strict=True):
            name = self.functions[owner].name
            told = f'"External id": {owner + 1}'
            self.events.append(_render_event("gpu_user_annotation", name, device, stream, stamp, span, told))

    def _write_syncs(self) -> None:
        """Write waits at the time of the call that asks for them, in the row of the stream concerned."""
        rows, device = self.rows.syncs, self.process.device
        events = self.rows.events
        sources = zip(events.stream.tolist(), events.call.tolist(), strict=True)
        recorded = dict(zip(events.record.tolist(), sources, strict=True))
        stamps, spans = self._stamps(rows.start_ns), self._spans(rows.start_ns, rows.end_ns)
        for stamp, span, stream, kind, call, event, record in zip(
            stamps, spans, rows.stream.tolist(), rows.kind.tolist(), rows.call.tolist(), rows.event.tolist(),
            rows.record.tolist(), strict=True,
        ):  # fmt: skip
            name = _SYNC_NAMES[kind]
            source, source_call = recorded.get(record, (-1, -1))
            waited = (
                f'"wait_on_stream": {source}, "wait_on_cuda_event_record_corr_id": {source_call}, '
                f'"wait_on_cuda_event_id": {event}, '
            )
            told = (
                f'"cuda_sync_kind": "{name}", {"" if kind == SYNC_STREAM else waited}"stream": {stream}, '
                f'"correlation": {call}, "device": {device}, "context": 1'
            )
            self.events.append(_render_event("cuda_sync", name, device, stream, stamp, span, told))

    def _find_owners(self, calls: Array) -> list[int]:
        return self._look_up(self.operator_of, calls)

    def _link(self, owner: int, call: int) -> str:
        """Lead to the operator around a call; without one, older profilers repeat the correlation instead."""
        if owner < 0 and self.style.age == "2026":
            return ""
        return f'"External id": {owner + 1 if owner >= 0 else call}, '

    def _look_up(self, owners: Array, calls: Array) -> list[int]:
        """Find the function around the call of GPU work: its position, or -1."""
        owner_of = dict(zip(self.rows.calls.call.tolist(), owners.tolist(), strict=True))
        return [owner_of.get(call, -1) for call in calls.tolist()]

    def _gpu_times(self, start_ns: Array, end_ns: Array) -> tuple[list[str], list[str]]:
        skew = self.process.gpu_skew_ns
        return self._stamps(start_ns, skew), self._spans(start_ns, end_ns, skew)

    def _wall(self, true_ns: Array, skew_ns: int = 0) -> Array:
        return self.clock.read_wall(true_ns, skew_ns)

    def _stamps(self, true_ns: Array, skew_ns: int = 0) -> list[str]:
        wall = self._wall(true_ns, skew_ns) - self.base_ns
        return [str(stamp) for stamp in (wall // 1_000).tolist()] if self.style.age == "2023" else _render_times(wall)

    def _spans(self, start_ns: Array, end_ns: Array, skew_ns: int = 0) -> list[str]:
        start, end = self._wall(start_ns, skew_ns), self._wall(end_ns, skew_ns)
        if self.style.age == "2023":
            return [str(span) for span in (end // 1_000 - start // 1_000).tolist()]
        return _render_times(end - start)


def _find_window(recording: Recording, rank: int) -> tuple[int, int]:
    """Find first and last of a rank's events, with what starting and stopping the profiler takes."""
    rows = recording.rows[rank]
    tables = (rows.kernels, rows.copies, rows.calls, rows.ranges)
    starts = [int(table.start_ns.min()) for table in tables if len(table.start_ns)]
    ends = [int(table.end_ns.max()) for table in tables if len(table.end_ns)]
    return min(starts, default=0) - 8_000_000, max(ends, default=0) + 15_000_000


def _render_times(times_ns: Array) -> list[str]:
    whole, rest = np.divmod(times_ns, 1_000)
    return [f"{us}.{ns:03d}" for us, ns in zip(whole.tolist(), rest.tolist(), strict=True)]


def _render_event(category: str, name: str, pid: int, row: int, stamp: str, span: str, told: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": {pid}, "tid": {row},\n'
        f'    "ts": {stamp}, "dur": {span},\n    "args": {{\n      {told}\n    }}\n  }}'
    )


def _render_flow(kind: str, number: int, pid: int, row: int, stamp: str) -> str:
    binding = ', "bp": "e"' if kind == "f" else ""
    return (
        f'  {{\n    "ph": "{kind}", "id": {number}, "pid": {pid}, "tid": {row}, "ts": {stamp},\n'
        f'    "cat": "ac2g", "name": "ac2g"{binding}\n  }}'
    )


def _list_ranks(ranks: Sequence[int]) -> str:
    if len(ranks) <= _LISTED_RANKS:
        return str(list(ranks))
    return f"[{', '.join(map(str, ranks[: _LISTED_RANKS - 1]))}, ..., {ranks[-1]}]"
