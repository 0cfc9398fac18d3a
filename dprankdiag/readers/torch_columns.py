"""Sort the events of a torch profiler trace into the columns of the trace tables, batch by batch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from dprankdiag.model.schema import ABSENT_ID, ABSENT_NS, Columns, Table, count_rows, take_rows
from dprankdiag.model.sources import KernelName, Names, Shape
from dprankdiag.model.traces import CALLS, COPIES, KERNELS, MESSAGES, OVERHEADS, RANGES, SYNCS
from dprankdiag.readers.base import Array
from dprankdiag.readers.call_names import is_blocking, launches_graph
from dprankdiag.readers.column_buffer import ColumnBuffer
from dprankdiag.readers.row_order import sort_rows
from dprankdiag.readers.torch_stream import Event

ActorKey = tuple[str, int]
"""(label that a merged trace gives a rank's processes, device); the label is empty where a file holds one rank."""

NO_SHAPE: Shape = (0, 0, 0, 0, 0, 0)
"""Launch shape of a kernel whose grid and block were not recorded."""

_LARGEST_SHAPE: Shape = (2**31 - 1, 65_535, 65_535, 1024, 1024, 1024)
"""Source: CUDA C++ Programming Guide 13, "Compute Capabilities", technical specifications."""

Rows = dict[str, list[tuple[Any, ...]]]
"""Rows of one batch by table, in the order of the declared columns."""

_CPU = -1
_LARGEST = 1 << 62
"""What lies beyond is damage, and two of them together would not fit a column."""

_LONGEST_STAMP = 24

_LABELLED = re.compile(r"(\[[^\]]*\])\s*(.*)", re.DOTALL)
# Categories since kineto of torch 1.12 and, capitalised, before.
_KERNEL = frozenset(("kernel", "Kernel"))
_COPY = frozenset(("gpu_memcpy", "Memcpy"))
_SET = frozenset(("gpu_memset", "Memset"))
_CALL = frozenset(("cuda_runtime", "cuda_driver", "Runtime"))
# Source: CUPTI's CUpti_ActivityMemcpyKind, by the words kineto writes (libkineto/src/CuptiActivity.cpp).
_COPY_KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "HtoH": 9, "PtoP": 10}
_COPY_WORDS = re.compile(r"\b([HDP]to[HDP])\b")
# Source: CUPTI's CUpti_ActivitySynchronizationType, by the words kineto writes.
_SYNC_KINDS = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}
# Source: torch/csrc/utils/… getCppDtype names as kineto writes them, and their sizes.
_ELEMENT_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Short": 2, "Half": 2, "BFloat16": 2,
    "Int": 4, "Float": 4, "Long": 8, "Double": 8,
}  # fmt: skip
_EXTRA = {"correlation": "int64"}


class _Pool:
    """Numbers what it is shown, in order of appearance."""

    def __init__(self) -> None:
        self._codes: dict[Hashable, int] = {}

    def encode(self, item: Hashable) -> int:
        return self._codes.setdefault(item, len(self._codes))

    def list(self) -> tuple[Any, ...]:
        return tuple(self._codes)


@dataclass(slots=True)
class Process:
    """What metadata events say of one process of the file."""

    pid: int
    label: str
    names: list[str] = field(default_factory=list)
    calls: int = 0
    is_cpu: bool = False


@dataclass(frozen=True, slots=True)
class TorchTables:
    """The rows of a file by actor.

    Attributes:
        actors: keys in the order of the `rank` column.
        processes: processes that made calls or are said to run on the CPU, by label; the busiest first.
        tables: by name, as declared, except those that torch does not record.
        kernels: kernel events in the file, those left out included.
        dropped: kernels without a duration, a place in time, or with a negative one.
        whole_us: all times are whole microseconds.
        graphs_without_kernels: graph launches that left no kernel.
        has_stacks: Python frames were traced.
    """

    actors: tuple[ActorKey, ...]
    processes: dict[str, list[Process]]
    tables: dict[str, Columns]
    names: Names
    kernels: int
    dropped: int
    whole_us: bool
    graphs_without_kernels: int
    has_stacks: bool
    start_ns: int
    end_ns: int


class TorchCollector:
    """Takes batches of events and keeps what the tables need."""

    def __init__(self) -> None:
        self._actors, self._labels = _Pool(), _Pool()
        self._pids: dict[Any, tuple[str, int]] = {}
        self._processes: dict[tuple[str, int], Process] = {}
        self._marking: set[tuple[str, int]] = set()
        self._names = {name: _Pool() for name in ("kernels", "shapes", "calls", "ranges", "groups")}
        self._names["calls"].encode("")
        self._buffers = {
            table.name: (table, ColumnBuffer(_dtypes(table), 1024))
            for table in (KERNELS, COPIES, CALLS, RANGES, SYNCS, OVERHEADS, MESSAGES)
        }
        self._launches = ColumnBuffer({"label": "int16", "correlation": "int64", "end_ns": "int64", "name": "int32"}, 0)
        self._call_flags: dict[str, tuple[int, bool]] = {}
        self._kernels = self._dropped = 0
        self._fractions = self._has_stacks = False
        self._span: list[int] = []

    def add(self, events: Sequence[Event]) -> None:
        """Take one batch."""
        rows: Rows = {name: [] for name in (*self._buffers, "launches")}
        for event in events:
            category = event.cat if type(event.cat) is str else None
            if category in _KERNEL:
                self._kernels += 1
                if not self._add_kernel(event, rows):
                    self._dropped += 1
            elif category in _CALL:
                self._add_call(event, rows)
            elif (handler := _HANDLERS.get(category)) is not None:
                handler(self, event, rows)
            elif event.ph == "M":
                self._add_metadata(event)
        for name, found in rows.items():
            if found:
                buffer = self._launches if name == "launches" else self._buffers[name][1]
                buffer.append(_to_columns(found, buffer.names))

    def finish(self) -> TorchTables:
        """Put the rows together: actors in order, launches joined to kernels and copies, rows sorted."""
        order = sorted(range(len(self._actors.list())), key=lambda code: self._actors.list()[code])
        place = np.empty(len(order) + 1, np.int16)
        place[order], place[-1] = np.arange(len(order)), ABSENT_ID
        kernels = self._finish(KERNELS, place)
        copies = self._finish(COPIES, place)
        launches = self._launches.finish()
        labels = self._labels.list()
        actors = tuple(self._actors.list()[code] for code in order) or self._list_hosts()
        label_of = np.array([labels.index(label) for label, _ in actors], np.int16)
        missing = _join_launches(kernels, launches, label_of, self._graph_calls())
        _join_launches(copies, launches, label_of, np.empty(0, np.int32))
        tables = {"kernels": sort_rows(kernels), "copies": sort_rows(copies)}
        for table in (SYNCS, MESSAGES):
            tables[table.name] = sort_rows(self._finish(table, place))
        first = {label: position for position, (label, _) in reversed(list(enumerate(actors)))}
        owner = np.array([first.get(label, ABSENT_ID) for label in labels] or [ABSENT_ID], np.int16)
        for table in (CALLS, RANGES, OVERHEADS):
            # What a process does is told of its first device.
            columns = self._buffers[table.name][1].finish()
            columns["rank"] = owner[columns["rank"]] if count_rows(columns) else columns["rank"]
            tables[table.name] = sort_rows(take_rows(columns, columns["rank"] >= 0))
        spans = [(int(c["start_ns"].min()), int(c["end_ns"].max())) for c in tables.values() if count_rows(c)]
        starts, ends = [start for start, _ in spans] + self._span, [end for _, end in spans] + self._span
        return TorchTables(
            actors,
            self._sort_processes(),
            {table.name: table.check(tables[table.name]) for table, _ in self._buffers.values()},
            Names(
                kernel_names=tuple(KernelName(name, name) for name in self._names["kernels"].list()),
                shapes=self._names["shapes"].list(),
                call_names=self._names["calls"].list(),
                range_names=self._names["ranges"].list(),
                group_names=self._names["groups"].list(),
            ),
            self._kernels,
            self._dropped,
            bool(self._kernels) and not self._fractions,
            missing,
            self._has_stacks,
            min(starts, default=0),
            max(ends, default=0),
        )

    def _list_hosts(self) -> tuple[tuple[str, int], ...]:
        """Take the processes that marked ranges, for a trace without GPUs: those that are alone under their label."""
        count = Counter(label for label, _ in self._marking)
        return tuple(sorted((label, _CPU) for label, processes in count.items() if processes == 1))

    def _finish(self, table: Table, place: Array) -> Columns:
        columns = self._buffers[table.name][1].finish()
        columns["rank"] = place[columns["rank"]]
        return columns

    def _sort_processes(self) -> dict[str, list[Process]]:
        found: dict[str, list[Process]] = {}
        for process in sorted(self._processes.values(), key=lambda item: (-item.calls, item.pid)):
            if process.calls or process.is_cpu:
                found.setdefault(process.label, []).append(process)
        return found

    def _graph_calls(self) -> Array:
        names = self._names["calls"].list()
        return np.array([number for number, name in enumerate(names) if launches_graph(name)], np.int32)

    def _place(self, event: Event) -> tuple[str, int, int, int] | None:
        """Return label, pid, start and end of an event; None if it has no place in time."""
        start, length = self._to_ns(bytes(event.ts)), self._to_ns(bytes(event.dur))
        if start is None or length is None or length < 0 or max(abs(start), length) > _LARGEST:
            return None
        label, pid = self._split_pid(event.pid)
        return label, pid, start, start + length

    def _split_pid(self, value: Any) -> tuple[str, int]:
        """Split what a merged trace writes before a process id, ``[TP03] 1234``, from it."""
        try:
            return self._pids[value]
        except KeyError:
            pass
        except TypeError:
            return "", _CPU
        labelled = _LABELLED.fullmatch(value) if isinstance(value, str) else None
        label, text = (labelled[1], labelled[2]) if labelled else ("", value)
        found = self._pids[value] = label, _whole(text, _CPU)
        self._labels.encode(label)
        return found

    def _add_kernel(self, event: Event, rows: Rows) -> bool:
        args, placed = event.args, self._place(event)
        if placed is None or args is None:
            return False
        label, pid, start, end = placed
        actor = self._actors.encode((label, _whole(args.device, pid)))
        stream = _whole(args.stream, _whole(event.tid, 0))
        rows["kernels"].append(
            (
                actor,
                stream,
                start,
                end,
                self._names["kernels"].encode(str(event.name)),
                self._names["shapes"].encode(_read_shape(args.grid, args.block)),
                ABSENT_NS,
                bool(_whole(args.graph_node, 0)),
                _whole(args.correlation, 0),
            )
        )
        if args.group_name is not None or args.sequence is not None or args.elements_in is not None:
            group = (str(args.group_name or ""), str(args.group_ranks or ""))
            size = _whole(_whole(args.elements_in, -1) * _ELEMENT_BYTES.get(str(args.element_type), 0), ABSENT_ID)
            sequence = _whole(args.sequence, ABSENT_ID)
            known = self._names["groups"].encode(group) if args.group_name is not None else ABSENT_ID
            rows["messages"].append((actor, stream, start, end, known, sequence, size if size > 0 else ABSENT_ID))
        return True

    def _add_copy(self, event: Event, rows: Rows) -> None:
        args, placed = event.args, self._place(event)
        if placed is None or args is None:
            return
        label, pid, start, end = placed
        words = _COPY_WORDS.search(str(event.name)) if event.cat in _COPY else None
        rows["copies"].append(
            (
                self._actors.encode((label, _whole(args.device, pid))),
                _whole(args.stream, _whole(event.tid, 0)),
                start,
                end,
                _COPY_KINDS.get(words[1], 0) if words else 0,
                max(_whole(args.size_bytes, 0), 0),
                ABSENT_NS,
                _whole(args.correlation, 0),
            )
        )

    def _add_sync(self, event: Event, rows: Rows) -> None:
        args, placed = event.args, self._place(event)
        if placed is None or args is None:
            return
        label, pid, start, end = placed
        kind = next((code for words, code in _SYNC_KINDS.items() if words in str(event.name)), 0)
        actor = self._actors.encode((label, _whole(args.device, pid)))
        rows["syncs"].append((actor, _whole(args.stream, ABSENT_ID), start, end, kind))

    def _add_call(self, event: Event, rows: Rows) -> None:
        placed = self._place(event)
        if placed is None:
            return
        label, pid, start, end = placed
        self._process(label, pid).calls += 1
        name = str(event.name)
        if name not in self._call_flags:
            self._call_flags[name] = self._names["calls"].encode(name), is_blocking(name)
        code, blocks = self._call_flags[name]
        if event.args is not None and (correlation := _whole(event.args.correlation, 0)):
            rows["launches"].append((self._labels.encode(label), correlation, end, code))
        if blocks:
            rows["calls"].append((self._labels.encode(label), _whole(event.tid, 0), start, end, code))

    def _add_range(self, event: Event, rows: Rows) -> None:
        placed = self._place(event)
        if placed is None:
            return
        label, pid, start, end = placed
        self._process(label, pid).is_cpu = True
        self._marking.add((label, pid))
        name = self._names["ranges"].encode(str(event.name))
        thread = _whole(event.tid, 0)
        rows["ranges"].append((self._labels.encode(label), thread, start, end, name, 0, ABSENT_NS, False))

    def _add_overhead(self, event: Event, rows: Rows) -> None:
        placed = self._place(event)
        if placed is not None:
            label, _, start, end = placed
            rows["overheads"].append((self._labels.encode(label), start, end))

    def _add_record_window(self, event: Event, rows: Rows) -> None:
        placed = self._place(event)
        if placed is not None:
            self._span += placed[2:]

    def _note_stacks(self, event: Event, rows: Rows) -> None:
        self._has_stacks = True

    def _add_metadata(self, event: Event) -> None:
        label, pid = self._split_pid(event.pid)
        args = event.args
        if args is None or pid == _CPU:
            return
        if event.name == "process_name" and isinstance(args.name, str):
            self._process(label, pid).names.append(args.name)
        elif event.name == "process_labels" and args.labels == "CPU":
            self._process(label, pid).is_cpu = True

    def _process(self, label: str, pid: int) -> Process:
        key = label, pid
        if key not in self._processes:
            self._processes[key] = Process(pid, label)
        return self._processes[key]

    def _to_ns(self, text: bytes) -> int | None:
        """Read microseconds as whole nanoseconds, exactly."""
        if text[-4:-3] == b"." and len(text) <= _LONGEST_STAMP and text[:-4].isdigit() and text[-3:].isdigit():
            self._fractions |= text[-3:] != b"000"
            return int(text[:-4] + text[-3:])
        try:
            value = Decimal(text.strip(b'"').decode("ascii"))
            if abs(value) > _LARGEST:
                return None
            self._fractions |= value != value.to_integral_value()
            return int((value * 1000).to_integral_value())
        except (InvalidOperation, UnicodeDecodeError, OverflowError, ValueError):
            return None


_HANDLERS: dict[Any, Callable[[TorchCollector, Event, Rows], None]] = {
    **dict.fromkeys((*_COPY, *_SET), TorchCollector._add_copy),
    "user_annotation": TorchCollector._add_range,
    "cuda_sync": TorchCollector._add_sync,
    "overhead": TorchCollector._add_overhead,
    "Trace": TorchCollector._add_record_window,
    "python_function": TorchCollector._note_stacks,
}


def _dtypes(table: Table) -> dict[str, str]:
    columns = {column.name: column.dtype for column in table.columns}
    return columns | _EXTRA if "launch_ns" in columns else columns


def _to_columns(rows: list[tuple[Any, ...]], names: Sequence[str]) -> Columns:
    return {name: np.array(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}


def _join_launches(columns: Columns, launches: Columns, label_of: Array, graph_calls: Array) -> int:
    """Write the end of the launching call beside every row and mark what a graph launched.

    Returns:
        Graph launches without any row.
    """
    correlation = columns.pop("correlation")
    key = _key(launches["label"], launches["correlation"])
    is_graph = np.isin(launches["name"], graph_calls)
    order = np.argsort(key, kind="stable")
    wanted = _key(label_of[columns["rank"]] if len(label_of) else columns["rank"], correlation)
    if len(key):
        # The last call of an id wins.
        place = np.searchsorted(key[order], wanted, side="right") - 1
        row = order[np.maximum(place, 0)]
        found = (place >= 0) & (key[row] == wanted) & (correlation > 0)
        columns["launch_ns"] = np.where(found, launches["end_ns"][row], ABSENT_NS)
        if "in_graph" in columns:
            columns["in_graph"] = columns["in_graph"] | (found & is_graph[row])
    return int((~np.isin(key[is_graph], wanted)).sum())


def _key(label: Array, correlation: Array) -> Array:
    return (label.astype(np.int64) << 48) | (correlation.astype(np.int64) & ((1 << 48) - 1))


def _read_shape(grid: Any, block: Any) -> Shape:
    try:
        (gx, gy, gz), (bx, by, bz) = grid, block
        shape = int(gx), int(gy), int(gz), int(bx), int(by), int(bz)
    except (TypeError, ValueError, OverflowError):
        return NO_SHAPE
    return shape if all(0 <= size <= most for size, most in zip(shape, _LARGEST_SHAPE, strict=True)) else NO_SHAPE


def _whole(value: Any, absent: int) -> int:
    """Return a whole number, also where it is written as text or with a fraction of zero; none that no column holds."""
    try:
        number = value if type(value) is int else int(value)
    except (TypeError, ValueError, OverflowError):
        return absent
    return number if -_LARGEST <= number <= _LARGEST else absent
