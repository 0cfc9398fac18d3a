"""Write small Nsight Systems exports, by the published table layout (Nsight Systems User Guide, SQLite schema)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
OVERHEAD = "CUPTI_ACTIVITY_KIND_OVERHEAD"

_LAYOUT = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT",
    KERNEL: (
        "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER, correlationId INTEGER,"
        " globalPid INTEGER, demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER,"
        " blockX INTEGER, blockY INTEGER, blockZ INTEGER, graphNodeId INTEGER"
    ),
    RUNTIME: (
        "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER"
    ),
    MEMCPY: (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, globalPid INTEGER, bytes INTEGER,"
        " copyKind INTEGER"
    ),
    MEMSET: "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, globalPid INTEGER, bytes INTEGER",
    SYNC: "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, globalPid INTEGER, syncType INTEGER",
    GRAPH: (
        "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, globalPid INTEGER, graphId INTEGER,"
        " graphExecId INTEGER"
    ),
    OVERHEAD: "start INTEGER, end INTEGER, globalTid INTEGER, overheadType INTEGER",
    "PROFILER_OVERHEAD": "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER",
    "OSRT_API": "start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER",
    "NVTX_EVENTS": (
        "start INTEGER, end INTEGER, eventType INTEGER, rangeId INTEGER, text TEXT, globalTid INTEGER,"
        " endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER,"
        " uint32Value INTEGER, int32Value INTEGER, jsonTextId INTEGER, jsonText TEXT"
    ),
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER, priority INTEGER, globalTid INTEGER",
    "MPI_RANKS": "globalTid INTEGER, rank INTEGER",
    "TARGET_INFO_GPU": "id INTEGER, cuDevice INTEGER, uuid TEXT, busLocation TEXT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER, pid INTEGER, uuid TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, systemClockNs INTEGER",
    "TARGET_INFO_SYSTEM_ENV": "name TEXT, value TEXT",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "META_DATA_CAPTURE": "name TEXT, value TEXT",
    "DIAGNOSTIC_EVENT": "timestamp INTEGER, severity INTEGER, text TEXT",
}


def global_pid(pid: int, hardware: int = 0) -> int:
    """Pack a process id as exports do (signed 64 bit)."""
    packed = (hardware << 56) | (pid << 24)
    return packed - (1 << 64) if packed >= 1 << 63 else packed


def global_tid(pid: int, tid: int | None = None, hardware: int = 0) -> int:
    """Pack a thread id as exports do."""
    return global_pid(pid, hardware) + (pid if tid is None else tid)


class ExportBuilder:
    """Writes an export; a table exists once it has a row, as in lazy exports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = sqlite3.connect(path)
        self._texts: dict[str, int] = {}
        self._create("StringIds")

    def __enter__(self) -> ExportBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.commit()
        self.connection.close()

    def text(self, value: str) -> int:
        """Return the id of a text."""
        if value not in self._texts:
            self._texts[value] = len(self._texts) + 1
            self.connection.execute("INSERT INTO StringIds VALUES (?, ?)", (self._texts[value], value))
        return self._texts[value]

    def add(self, table: str, **values: Any) -> None:
        """Add a row."""
        self._create(table)
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        self.connection.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', tuple(values.values()))

    def kernel(self, pid: int, start: int | None, end: int | None, name: str = "gemm", **more: Any) -> None:
        """Add a kernel."""
        row: dict[str, Any] = {
            "start": start,
            "end": end,
            "deviceId": 0,
            "contextId": 1,
            "streamId": 7,
            "correlationId": 1,
            "globalPid": global_pid(pid),
            "demangledName": self.text(f"void {name}<float>()"),
            "shortName": self.text(name),
            "gridX": 4,
            "gridY": 1,
            "gridZ": 1,
            "blockX": 128,
            "blockY": 1,
            "blockZ": 1,
        }
        self.add(KERNEL, **(row | more))

    def call(self, pid: int, start: int, end: int, name: str, correlation: int = 1, tid: int | None = None) -> None:
        """Add a runtime call."""
        thread = global_tid(pid, tid)
        self.add(
            RUNTIME,
            start=start,
            end=end,
            eventClass=0,
            globalTid=thread,
            correlationId=correlation,
            nameId=self.text(name),
        )

    def range(self, pid: int, start: int, end: int | None, text: str | None, **more: Any) -> None:
        """Add a push/pop range."""
        row: dict[str, Any] = {"start": start, "end": end, "eventType": 59, "text": text, "domainId": 0}
        self.add("NVTX_EVENTS", **(row | {"globalTid": global_tid(pid)} | more))

    def thread_name(self, pid: int, name: str, priority: int = 0, tid: int | None = None) -> None:
        """Name a thread; priority 0 is a name that the program gave."""
        self.add("ThreadNames", nameId=self.text(name), priority=priority, globalTid=global_tid(pid, tid))

    def facts(self, table: str, pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
        """Add name and value rows."""
        for name, value in pairs.items() if isinstance(pairs, Mapping) else pairs:
            self.add(table, name=name, value=value)

    def session(self, utc_ns: int, system_ns: int | None = None, host: str | None = None) -> None:
        """Say when and where the session began."""
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=utc_ns, systemClockNs=system_ns)
        if host:
            self.facts("TARGET_INFO_SYSTEM_ENV", {"Hostname": host})

    def _create(self, table: str) -> None:
        self.connection.execute(f'CREATE TABLE IF NOT EXISTS "{table}" ({_quote_end(_LAYOUT[table])})')


def _quote_end(layout: str) -> str:
    return layout.replace(" end INTEGER", ' "end" INTEGER')
