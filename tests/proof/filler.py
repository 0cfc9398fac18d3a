"""Fill the empty tables of an Nsight Systems export, whichever version's they are.

Source: Nsight Systems User Guide, "SQLite schema reference": globalPid and globalTid hold the pid at bit 24 and the
virtual machine at bit 48; correlationId joins a kernel to the runtime call of the same process; NVTX eventType 59 is a
push/pop range.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.proof.scenario import Event

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
PLAIN_SCHEMA = f"""
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
CREATE TABLE {KERNEL} (start INTEGER NOT NULL, "end" INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
    gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL);
CREATE TABLE {RUNTIME} (start INTEGER NOT NULL, "end" INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL);
CREATE TABLE {NVTX} (start INTEGER NOT NULL, "end" INTEGER, eventType INTEGER NOT NULL, text TEXT,
    globalTid INTEGER, textId INTEGER, domainId INTEGER);
"""
KERNEL_NAMES = {
    "qkv_gemm": ("nvjet_tst_64x64_64x16_1x1_v_bz_TNT", "nvjet_tst_64x64_64x16_1x1_v_bz_TNT"),
    "attention": ("void flash::flash_fwd_splitkv_mla_kernel<bf16, (int)512>(Params)", "flash_fwd_splitkv_mla_kernel"),
    "o_proj_gemm": ("nvjet_tst_128x64_64x12_2x1_v_bz_TNT", "nvjet_tst_128x64_64x12_2x1_v_bz_TNT"),
    "all_gather": ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage)", "ncclDevKernel_AllGather_RING_LL"),
    "reduce_scatter": (
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
    ),
    "all_reduce": (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    ),
    "router": ("void topkGatingSoftmax<float, (int)8, (int)256>(const T1 *, float *)", "topkGatingSoftmax"),
    "experts": ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(GemmType)2>(float *, int *)", "sm90_fp8_gemm_1d2d_impl"),
    "prefill_attention": (
        "void flashinfer::BatchPrefillWithRaggedKVCacheKernel<KernelTraits<(bool)1>, RaggedParams>(T2)",
        "BatchPrefillWithRaggedKVCacheKernel",
    ),
    "optimizer": (
        "void at::native::<unnamed>::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>(T1)",
        "multi_tensor_apply_kernel",
    ),
    "lm_head_gemm": ("nvjet_tst_192x192_64x4_2x1_v_bz_TNT", "nvjet_tst_192x192_64x4_2x1_v_bz_TNT"),
    "sampling": ("void TopKTopPSamplingFromProbKernel<(unsigned int)1024>(T2 *)", "TopKTopPSamplingFromProbKernel"),
}
RANGE_NAMES = {
    "attention": "attention",
    "experts": "moe_experts",
    "all_gather": "gloo:all_gather",
    "reduce_scatter": "gloo:reduce_scatter",
}
STEP_NAME = "decode_step"
FIRST_PID = 5_000
_PUSH_POP = 59
_NEUTRAL = {"INTEGER": 0, "REAL": 0.0, "TEXT": "[]"}

Range = tuple[int, str, int, int]
"""Rank, text, start, end."""


def list_tables(ddl: str) -> set[str]:
    """Name the tables that a schema creates."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(ddl)
        return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def mark_ranges(events: Iterable[Event]) -> list[Range]:
    """Turn events into the ranges of a program that marks its steps, attention, experts and meetings."""
    found: list[Range] = []
    steps: dict[tuple[int, int], tuple[int, int]] = {}
    for event in events:
        begin, end = steps.get((event.rank, event.step), (event.start_ns, event.end_ns))
        steps[event.rank, event.step] = (min(begin, event.start_ns), max(end, event.end_ns))
        if event.key in RANGE_NAMES:
            found.append((event.rank, RANGE_NAMES[event.key], event.start_ns, event.end_ns))
    found += [(rank, STEP_NAME, begin - 200, end + 200) for (rank, _), (begin, end) in steps.items()]
    return sorted(found, key=lambda item: (item[2], -item[3]))


def fill(
    path: Path,
    events: Iterable[Event] = (),
    ranges: Iterable[Range] = (),
    *,
    ddl: str = PLAIN_SCHEMA,
    title: str = "sglang::scheduler_DP{0}_TP{0}_EP{0}",
    number: Mapping[int, int] | None = None,
    pids: Mapping[int, int] | None = None,
) -> Path:
    """Write kernels with their launches, and ranges, into the tables there are.

    Args:
        path: a file that is not there yet.
        events: kernels; left out where the schema has no table of kernels.
        ranges: annotations; left out where the schema has no table of them.
        ddl: the statements that create the tables.
        title: name of a rank's process, `{0}` its number.
        number: what ranks call themselves; as they are numbered if not given.
        pids: process ids by rank.
    """
    with closing(sqlite3.connect(path)) as database:
        database.executescript(ddl)
        export = _Export(database, dict(pids or {}))
        ranks: set[int] = set()
        for serial, event in enumerate(events, 1):
            ranks.add(event.rank)
            export.add_kernel(event, serial)
        for item in ranges:
            ranks.add(item[0])
            export.add_range(item)
        for rank in sorted(ranks):
            export.name_process(rank, title.format((number or {}).get(rank, rank)))
        export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
        export.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node-a")
        database.commit()
    return path


class _Export:
    """The tables of one export."""

    def __init__(self, database: sqlite3.Connection, pids: dict[int, int]) -> None:
        self.database, self.pids = database, pids
        self.texts: dict[str, int] = {}
        self.rules: dict[str, list[tuple[str, Any]]] = {}

    def add(self, table: str, **values: Any) -> None:
        """Insert a row; what must not be null and is not given gets a value that says nothing."""
        if table not in self.rules:
            described = self.database.execute(f'PRAGMA table_info("{table}")')
            self.rules[table] = [
                (name, _NEUTRAL[kind] if must and not key else None) for _, name, kind, must, _, key in described
            ]
        row = [(name, values.get(name, default)) for name, default in self.rules[table]]
        if row:
            names, marks = ", ".join(f'"{name}"' for name, _ in row), ", ".join("?" * len(row))
            self.database.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', [value for _, value in row])

    def text(self, value: str) -> int:
        """Return the id of a text."""
        if value not in self.texts:
            self.texts[value] = len(self.texts) + 1
            self.add("StringIds", id=self.texts[value], value=value)
        return self.texts[value]

    def pid(self, rank: int) -> int:
        """Return a rank's process id."""
        return self.pids.get(rank, FIRST_PID + rank)

    def process(self, rank: int) -> int:
        """Pack the process of a rank."""
        return 1 << 48 | self.pid(rank) << 24

    def thread(self, rank: int) -> int:
        """Pack the main thread of a rank's process."""
        return self.process(rank) | self.pid(rank)

    def add_kernel(self, event: Event, serial: int) -> None:
        """Insert a kernel and its launch."""
        demangled, short = (self.text(name) for name in KERNEL_NAMES[event.key])
        self.add(
            KERNEL,
            start=event.start_ns,
            end=event.end_ns,
            contextId=1,
            streamId=7,
            correlationId=serial,
            globalPid=self.process(event.rank),
            demangledName=demangled,
            shortName=short,
            mangledName=demangled,
            launchType=1,
            gridX=132,
            gridY=1,
            gridZ=1,
            blockX=256,
            blockY=1,
            blockZ=1,
        )
        self.add(
            RUNTIME,
            start=event.call_start_ns,
            end=event.call_end_ns,
            globalTid=self.thread(event.rank),
            correlationId=serial,
            nameId=self.text("cudaLaunchKernel_v7000"),
        )

    def add_range(self, item: Range) -> None:
        """Insert a push/pop range of the default domain."""
        rank, text, start, end = item
        self.add(NVTX, start=start, end=end, eventType=_PUSH_POP, text=text, globalTid=self.thread(rank), domainId=0)

    def name_process(self, rank: int, title: str) -> None:
        """Name a process as far as the system does, and its thread in full."""
        self.add("PROCESSES", globalPid=self.process(rank), pid=self.pid(rank), name=title[:15])
        self.add("ThreadNames", nameId=self.text(title), priority=0, globalTid=self.thread(rank))
