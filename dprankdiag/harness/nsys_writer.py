"""Write a recording as an Nsight Systems SQLite export.

An export is lazy: a table without rows is not there. Event times count from the session's start.

Source: Nsight Systems SQLite schema reference; layout of public exports (see `nsys_schema`). A global process id packs
the pid at bit 24 and the machine at bit 48; its low 24 bits hold the thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dprankdiag.harness.events import NO_EVENT, NO_VALUE, NOT_IN_GRAPH, Array, FileClock, KernelRows, Process, Recording
from dprankdiag.harness.nsys_schema import Schema, create_table, has_table, list_columns
from dprankdiag.harness.nsys_session import list_session_rows

_MACHINE = 1 << 48
_NULL_EVENT = 4_294_967_295
_PUSH_POP, _THREAD_NAME, _DOMAIN_CREATED = 59, 39, 75
_CONSTANTS: dict[str, dict[str, object]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": {
        "contextId": 1, "greenContextId": 0, "launchType": 1, "cacheConfig": 1, "registersPerThread": 64, "gridZ": 1,
        "blockY": 1, "blockZ": 1, "staticSharedMemory": 0, "dynamicSharedMemory": 0, "localMemoryPerThread": 0,
        "localMemoryTotal": 0, "gridId": 1, "sharedMemoryLimitConfig": 0, "clusterX": 0, "clusterY": 0, "clusterZ": 0,
        "clusterSchedulingPolicy": 0, "maxPotentialClusterSize": 0, "maxActiveClusters": 0,
        "tensorSizeMinusOneElements": "[]",
    },
    "CUPTI_ACTIVITY_KIND_MEMCPY": {"contextId": 1, "greenContextId": 0, "copyCount": 1},
    "CUPTI_ACTIVITY_KIND_MEMSET": {"contextId": 1, "greenContextId": 0, "value": 0, "memKind": 2},
    "CUPTI_ACTIVITY_KIND_RUNTIME": {"returnValue": 0},
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": {"contextId": 1},
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": {"timestamp": 0, "contextId": 1},
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": {"contextId": 1, "greenContextId": 0},
}  # fmt: skip


@dataclass(slots=True)
class _Strings:
    """The texts that ids in an export point to."""

    ids: dict[str, int] = field(default_factory=dict)

    def add(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids) + 1)


def pack_process(pid: int) -> int:
    """Pack a process id as an export does."""
    return _MACHINE | pid << 24


def pack_thread(pid: int) -> int:
    """Pack the id of a process's main thread."""
    return pack_process(pid) | pid


def write_export(
    recording: Recording,
    path: Path,
    *,
    ranks: Sequence[int] | None = None,
    clock: FileClock | None = None,
    schema: Schema = "3.25",
    compact: bool = False,
) -> None:
    """Write some ranks of a recording into a new file.

    Args:
        recording: what happened.
        path: the file; replaced if it is there.
        ranks: the ranks that this session saw; None for all.
        clock: the session's clock; None for a true one that starts at 0.
        schema: age of the format.
        compact: rebuild the file without free pages.
    """
    path.unlink(missing_ok=True)
    members = tuple(range(len(recording.processes))) if ranks is None else tuple(ranks)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute("BEGIN")
        _Writer(database, recording, members, clock or FileClock(), schema).write()
        database.execute("COMMIT")
        if compact:
            database.execute("VACUUM")


class _Writer:
    """One export being written."""

    def __init__(
        self,
        database: sqlite3.Connection,
        recording: Recording,
        ranks: tuple[int, ...],
        clock: FileClock,
        schema: Schema,
    ) -> None:
        self.database, self.recording, self.ranks = database, recording, ranks
        self.clock, self.schema = clock, schema
        self.strings = _Strings()
        self.created: set[str] = set()
        self.last_ns = 0

    def write(self) -> None:
        self._number_names()
        for rank in self.ranks:
            process = self.recording.processes[rank]
            self._write_kernels(process, self.recording.rows[rank].kernels)
            self._write_copies(process, rank)
            self._write_clears(process, rank)
            self._write_replays(process, rank)
            self._write_host_rows(process, rank)
            self._write_ranges(process, rank)
        self._write_names()
        processes = [self.recording.processes[rank] for rank in self.ranks]
        for table, rows in list_session_rows(self.recording, processes, self.clock, self.schema, self.last_ns).items():
            self._insert_rows(table, rows)
        self._insert_rows("StringIds", [(number, text) for text, number in self.strings.ids.items()])

    def _number_names(self) -> None:
        add, recording = self.strings.add, self.recording
        self.demangled = np.asarray([add(text.demangled) for text in recording.kernel_texts] or [0])
        self.short = np.asarray([add(text.short) for text in recording.kernel_texts] or [0])
        self.calls = np.asarray([add(text) for text in recording.call_texts] or [0])
        self.is_driver = np.asarray([not text.startswith("cuda") for text in recording.call_texts] or [False])
        self.domains: dict[str, int] = {"": 0}
        for text in recording.range_texts:
            self.domains.setdefault(text.domain, len(self.domains))

    def _write_kernels(self, process: Process, rows: KernelRows) -> None:
        self._insert(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            self._gpu_columns(process, rows.start_ns, rows.end_ns, rows.stream, rows.call)
            | {
                "demangledName": self.demangled[rows.name],
                "shortName": self.short[rows.name],
                "mangledName": self.demangled[rows.name],
                "gridX": rows.grid_x,
                "gridY": rows.grid_y,
                "blockX": rows.block_x,
                "graphNodeId": _null_where(rows.node, rows.node == NOT_IN_GRAPH),
            },
        )

    def _write_copies(self, process: Process, rank: int) -> None:
        rows = self.recording.rows[rank].copies
        down = rows.kind == 2
        self._insert(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            self._gpu_columns(process, rows.start_ns, rows.end_ns, rows.stream, rows.call)
            | {
                "bytes": rows.size_bytes,
                "copyKind": rows.kind,
                "srcKind": np.where(down, 2, 1),
                "dstKind": np.where(down, 1, 2),
            },
        )

    def _write_clears(self, process: Process, rank: int) -> None:
        rows = self.recording.rows[rank].clears
        self._insert(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            self._gpu_columns(process, rows.start_ns, rows.end_ns, rows.stream, rows.call)
            | {"bytes": rows.size_bytes, "graphNodeId": _null_where(rows.node, rows.node == NOT_IN_GRAPH)},
        )

    def _write_replays(self, process: Process, rank: int) -> None:
        rows = self.recording.rows[rank].replays
        self._insert(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            self._gpu_columns(process, rows.start_ns, rows.end_ns, rows.stream, rows.call)
            | {"graphId": rows.graph, "graphExecId": rows.graph + 1},
        )

    def _write_host_rows(self, process: Process, rank: int) -> None:
        calls, syncs = self.recording.rows[rank].calls, self.recording.rows[rank].syncs
        self._insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            self._times(calls.start_ns, calls.end_ns)
            | {
                "eventClass": self.is_driver[calls.name].astype(np.int64),
                "globalTid": pack_thread(process.pid),
                "correlationId": calls.call,
                "nameId": self.calls[calls.name],
            },
        )
        columns = self._gpu_columns(process, syncs.start_ns, syncs.end_ns, syncs.stream, syncs.call, skew=False)
        columns |= {
            "syncType": syncs.kind,
            "eventId": np.where(syncs.event == NO_EVENT, _NULL_EVENT, syncs.event),
            "eventSyncId": syncs.record,
        }
        self._insert("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", columns)
        events = self.recording.rows[rank].events
        columns = self._gpu_columns(process, events.start_ns, events.end_ns, events.stream, events.call, skew=False)
        columns |= {"eventId": events.event, "eventSyncId": events.record}
        self._insert("CUPTI_ACTIVITY_KIND_CUDA_EVENT", columns)

    def _write_ranges(self, process: Process, rank: int) -> None:
        rows = self.recording.rows[rank].ranges
        texts = self.recording.range_texts
        registered = [self.strings.add(text.text) if text.domain else None for text in texts]
        plain = [None if text.domain else text.text for text in texts]
        domain = np.asarray([self.domains[text.domain] for text in texts] or [0])
        self._insert(
            "NVTX_EVENTS",
            self._times(rows.start_ns, rows.end_ns)
            | {
                "eventType": _PUSH_POP,
                "globalTid": pack_thread(process.pid),
                "text": [plain[name] for name in rows.name.tolist()],
                "textId": [registered[name] for name in rows.name.tolist()],
                "domainId": domain[rows.name],
                "int64Value": _null_where(rows.value, rows.value == NO_VALUE),
            },
        )
        if len(rows.start_ns):
            self._declare_domains(process, int(self.clock.read(rows.start_ns[:1])[0]))

    def _declare_domains(self, process: Process, first_ns: int) -> None:
        named = [(name, number) for name, number in self.domains.items() if name]
        self._insert(
            "NVTX_EVENTS",
            {
                "start": [max(first_ns - 5_000, 0)] * len(named),
                "eventType": _DOMAIN_CREATED,
                "globalTid": pack_thread(process.pid),
                "text": [name for name, _ in named],
                "domainId": [number for _, number in named],
            },
        )

    def _write_names(self) -> None:
        """Name threads: the system's 15 bytes, or the whole title where the program set it."""
        rows = []
        for rank in self.ranks:
            process = self.recording.processes[rank]
            thread = pack_thread(process.pid)
            if process.thread_title:
                rows.append((self.strings.add(process.title), 0, thread))
                event = {"start": [1_000], "eventType": _THREAD_NAME, "globalTid": thread, "text": [process.title]}
                self._insert("NVTX_EVENTS", event | {"domainId": 0})
            else:
                rows.append((self.strings.add(process.title[:15]), 20, thread))
        self._insert_rows("ThreadNames", rows)

    def _times(self, start_ns: Array, end_ns: Array, skew_ns: int = 0) -> dict[str, object]:
        start, end = self.clock.read(start_ns, skew_ns), self.clock.read(end_ns, skew_ns)
        if len(end):
            self.last_ns = max(self.last_ns, int(end.max()))
        return {"start": start, "end": end}

    def _gpu_columns(
        self, process: Process, start_ns: Array, end_ns: Array, stream: Array, call: Array, *, skew: bool = True
    ) -> dict[str, object]:
        return self._times(start_ns, end_ns, process.gpu_skew_ns if skew else 0) | {
            "deviceId": process.device,
            "streamId": stream,
            "correlationId": call,
            "globalPid": pack_process(process.pid),
        }

    def _insert(self, table: str, columns: Mapping[str, object]) -> None:
        """Insert columns of equal length; a single value stands for a column of it."""
        arrays = {name: _as_list(values) for name, values in columns.items() if isinstance(values, (np.ndarray, list))}
        count = len(next(iter(arrays.values())))
        if not count or not has_table(table, self.schema):
            return
        self._create(table)
        fixed = _CONSTANTS.get(table, {}) | {name: value for name, value in columns.items() if name not in arrays}
        names, terms, bound = [], [], []
        for rule in list_columns(table, self.schema):
            if rule.name in arrays:
                names.append(rule.name)
                terms.append("?")
                bound.append(arrays[rule.name])
            elif rule.name in fixed:
                names.append(rule.name)
                terms.append(_quote(fixed[rule.name]))
        listed = ", ".join(f'"{name}"' for name in names)
        self.database.executemany(
            f'INSERT INTO "{table}" ({listed}) VALUES ({", ".join(terms)})', zip(*bound, strict=True)
        )

    def _insert_rows(self, table: str, rows: Iterable[Sequence[object]]) -> None:
        """Insert whole rows."""
        found = list(rows)
        if not found or not has_table(table, self.schema):
            return
        self._create(table)
        marks = ", ".join("?" * len(list_columns(table, self.schema)))
        self.database.executemany(f'INSERT INTO "{table}" VALUES ({marks})', found)

    def _create(self, table: str) -> None:
        if table not in self.created:
            self.database.execute(create_table(table, self.schema))
            self.created.add(table)


def _as_list(values: object) -> list[object]:
    listed: list[object] = values.tolist() if isinstance(values, np.ndarray) else list(values)  # type: ignore[call-overload]
    return listed


def _null_where(values: Array, absent: Array) -> list[object]:
    if not absent.any():
        return _as_list(values)
    return [None if gone else value for value, gone in zip(values.tolist(), absent.tolist(), strict=True)]


def _quote(value: object) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
