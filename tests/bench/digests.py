"""Digests of a cell of many nodes, written at once: a lockstep played in numbers, one bundle a node.

    python -m tests.bench.digests FOLDER RANKS STEPS LAYERS

Every host has a clock of its own. One rank holds three times the context of the others in one step of ten.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dprankdiag.model.digests import DIGEST_TABLES
from dprankdiag.model.ranks import RankClaim
from dprankdiag.model.schema import Columns
from dprankdiag.model.sources import Actor, Capture, KernelName, Names, Reading, Session, Source
from dprankdiag.model.traces import TRACE_TABLES
from dprankdiag.store.bundle import pack_bundle
from dprankdiag.store.digests import pack_digests
from tests.builders import diagnosis

IntArray = np.ndarray[Any, np.dtype[np.int64]]

RANKS_A_NODE = 8
"""At most; so few that there are two nodes."""

GATHER, SCATTER, ATTENTION, EXPERT, ROUTER, NORM, DOWN = range(7)
KERNEL_NAMES = (
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)",
    "void flash::flash_fwd_splitkv_mla_kernel<bf16, (int)512>(Params)",
    "_ZN9deep_gemm_m_grouped_gemm_fp8",
    "void router_gemm_kernel_float_output<bf16>(float*)",
    "void rmsnorm_kernel<bf16>(bf16*)",
    "nvjet_tst_64x64_64x16_1x1_v_bz_TNT",
)
USUAL_NS = {"attention": 60_000, "norm": 4_000, "router": 9_000, "expert": 50_000, "down": 8_000}
UTC_NS = 1_790_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Cell:
    """Ranks in lockstep; two meetings a layer."""

    ranks: int
    steps: int
    layers: int
    culprit: int
    seed: int = 5

    @property
    def node_size(self) -> int:
        """Count the ranks of a node."""
        return max(1, min(RANKS_A_NODE, self.ranks // 2))

    @property
    def positions(self) -> int:
        """Count the meetings of a step."""
        return 2 * self.layers

    @property
    def slow_steps(self) -> slice:
        """Say in which steps the culprit is slow."""
        return slice(self.steps // 2, self.steps // 2 + max(self.steps // 10, 3))


def write_cell(cell: Cell, folder: Path) -> list[Path]:
    """Play a cell and write one bundle a node."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(cell.seed)
    work = _draw_work(cell, random)
    start, end = _play(cell, work, random)
    paths = []
    for node in range(-(-cell.ranks // cell.node_size)):
        ranks = range(node * cell.node_size, min((node + 1) * cell.node_size, cell.ranks))
        offset = int(random.normal(0, 3e6))
        path = folder / f"node-{node:03d}.dprank"
        path.write_bytes(
            pack_bundle(diagnosis(), {}, pack_digests([_read(cell, node, ranks, work, start, end, offset)]))
        )
        paths.append(path)
    return paths


def _draw_work(cell: Cell, random: np.random.Generator) -> dict[str, np.ndarray[Any, np.dtype[np.int32]]]:
    """Draw what each segment holds, `(n_ranks, n_steps, n_layers)`, ns: attention and norm before the gather, the rest
    after it."""
    shape = (cell.ranks, cell.steps, cell.layers)
    chip = random.normal(1.0, 0.005, (cell.ranks, 1, 1))
    made = {}
    for name, usual_ns in (
        ("attention", 60_000),
        ("norm", 4_000),
        ("router", 9_000),
        ("expert", 50_000),
        ("down", 8_000),
    ):
        values = usual_ns * chip * random.normal(1.0, 0.02, shape)
        if name == "attention":
            values[cell.culprit, cell.slow_steps] *= 3.0
        made[name] = values.astype(np.int32)
    return made


def _play(
    cell: Cell, work: dict[str, np.ndarray[Any, np.dtype[np.int32]]], random: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Play the meetings: all start when they come, and end together a transfer after the last.

    Returns:
        Start and end of each call, `(n_ranks, n_steps, n_positions)`.
    """
    shape = (cell.ranks, cell.steps, cell.positions)
    start, end = np.empty(shape, np.int64), np.empty(shape, np.int64)
    now = np.zeros(cell.ranks, np.int64)
    transfer = random.normal(18_000, 600, shape[1:]).astype(np.int64)
    late = np.abs(random.normal(0, 250, (cell.positions, cell.ranks))).astype(np.int64)
    before = work["attention"] + work["norm"]
    after = work["router"] + work["expert"] + work["down"]
    for step in range(cell.steps):
        now = now + 150_000 + np.abs(random.normal(0, 3_000, cell.ranks)).astype(np.int64)
        for position in range(cell.positions):
            segment = (after if position % 2 else before)[:, step, position // 2]
            start[:, step, position] = now + segment
            now = start[:, step, position].max() + transfer[step, position] + late[position]
            end[:, step, position] = now
    return start, end


def _read(
    cell: Cell,
    node: int,
    ranks: range,
    work: dict[str, np.ndarray[Any, np.dtype[np.int32]]],
    start: IntArray,
    end: IntArray,
    offset_ns: int,
) -> Reading:
    """Lay out what the node's profiler and digest would have kept."""
    actors = tuple(
        Actor(
            4000 + rank,
            rank % cell.node_size,
            f"sglang::scheduler_DP{rank}",
            f"GPU-{rank}",
            (RankClaim("thread-name", "sure", rank, f"DP{rank}", cell.ranks, rank, 0, 0, rank),),
        )
        for rank in ranks
    )
    session = Session(f"node-{node:03d}", UTC_NS + offset_ns, 10**14 + node, 0, int(end.max()))
    source = Source(f"node-{node:03d}", "nsys-sqlite", "used", "2025.5.1", cell.steps * cell.positions * len(ranks))
    names = Names(tuple(KernelName(text, text) for text in KERNEL_NAMES), ((16, 1, 1, 128, 1, 1),))
    tables: dict[str, Columns] = {table.name: table.empty() for table in TRACE_TABLES}
    for table in DIGEST_TABLES:
        parts = [_tabulate(cell, table.name, rank, work, start[rank], end[rank]) for rank in ranks]
        n_rows = [len(next(iter(part.values()))) if part else 0 for part in parts]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        number = np.repeat(np.arange(len(parts), dtype=np.int16), n_rows)
        tables[table.name] = table.check({"rank": number, **joined}) if joined else table.empty()
    return Reading(source, session, Capture("node", cell.ranks), actors, names, tables)


_KEYS = (("norm", NORM), ("router", ROUTER), ("down", DOWN), ("attention", ATTENTION), ("expert", EXPERT))
"""What work is which kernel; the first three are equal work."""


def _tabulate(
    cell: Cell,
    table: str,
    rank: int,
    work: dict[str, np.ndarray[Any, np.dtype[np.int32]]],
    start: IntArray,
    end: IntArray,
) -> Columns:
    n = cell.steps * cell.positions
    after = np.tile(np.arange(cell.positions) % 2, cell.steps).astype(bool)
    spread = {name: np.repeat(values[rank].ravel(), 2) for name, values in work.items()}
    if table == "digest_ranks":
        return {"contention_ratio": np.array([np.nan]), "has_launches": np.array([True])}
    if table == "digest_keys":
        ids = [code for _, code in _KEYS]
        totals = [int(work[name][rank].sum(dtype=np.int64)) for name, _ in _KEYS]
        count = np.full(len(ids), cell.steps * cell.layers, np.int64)
        zeros = np.zeros(len(ids), np.int32)
        return {"name_id": np.array(ids, np.int32), "shape_id": zeros, "count": count, "total_ns": np.array(totals)}
    if table == "digest_parts":
        key = np.tile(np.array([0, 1, 2], np.int32), cell.steps * cell.layers)
        busy = np.stack([work[name][rank].ravel() for name, _ in _KEYS[:3]], axis=1).ravel()
        return {"key": key, "busy_ns": busy}
    if table != "digest_calls":
        return {}
    first = np.zeros((cell.steps, cell.positions), bool)
    first[:, 0] = True
    idle = first.ravel() * 150_000
    zeros, ones = np.zeros(n, np.int32), np.ones(n, np.int32)
    busy = np.where(after, spread["router"] + spread["expert"] + spread["down"], spread["attention"] + spread["norm"])
    return {
        "stream": np.full(n, 7, np.int32),
        "start_ns": start.ravel(),
        "end_ns": end.ravel(),
        "arrival_ns": start.ravel(),
        "name_id": np.where(after, SCATTER, GATHER).astype(np.int32),
        "shape_id": zeros,
        "before_id": np.where(after, DOWN, ATTENTION).astype(np.int32),
        "before_shape_id": zeros,
        "attention_ns": np.where(after, 0, spread["attention"]).astype(np.int64),
        "expert_ns": np.where(after, spread["expert"], 0).astype(np.int64),
        "work_ns": busy.astype(np.int64),
        "host_ns": np.zeros(n, np.int64),
        "content": np.where(after, 3, 5).astype(np.int64),
        "attention_names": np.where(after, 0, 4).astype(np.int64),
        "sampled": first.ravel().astype(np.int32),
        "prefill": zeros,
        "decode": np.where(after, 0, 1).astype(np.int32),
        "in_graph": np.where(after, 3, 2).astype(np.int32),
        "idle_from_ns": np.where(idle, busy + idle, 0).astype(np.int32),
        "idle_until_ns": np.where(idle, busy, 0).astype(np.int32),
        "ahead_ns": np.full(n, 20_000_000, np.int32),  # a graph is launched long before its last kernels run
        "parts": np.where(after, 2, 1) * ones,
    }


if __name__ == "__main__":
    n_ranks, n_steps, n_layers = map(int, sys.argv[2:5])
    write_cell(Cell(n_ranks, n_steps, n_layers, n_ranks * 2 // 3), Path(sys.argv[1]))
