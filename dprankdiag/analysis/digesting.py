"""Digest the kernels of a recording: each rank's calls, and its work between them summed.

What a join needs of a rank is known only when all ranks are there: which calls met, which kernels are equal work. So
calls are kept one by one, work is summed between any two of them, and kernels that may be equal work are summed by key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dprankdiag.analysis.batches import find_begins, parse_batches
from dprankdiag.analysis.calls import extract_calls, find_rows_before
from dprankdiag.analysis.lanes import FAMILY_CODE, IS_WORK, Lane, name_kernels
from dprankdiag.analysis.overlap import BESIDE_WORK, measure_contention
from dprankdiag.analysis.probes import PROBE_FAMILIES
from dprankdiag.analysis.segments import cut_segments, measure_busy, measure_keys
from dprankdiag.analysis.shelf import KernelShelf
from dprankdiag.catalog.kernels import KernelCatalog
from dprankdiag.catalog.ranges import RangeCatalog
from dprankdiag.model.digests import DIGEST_BATCHES, DIGEST_CALLS, DIGEST_KEYS, DIGEST_PARTS, DIGEST_RANKS
from dprankdiag.model.schema import Columns, Table, count_rows, join_rows, take_rows
from dprankdiag.model.sources import Names
from dprankdiag.model.traces import TRACE_TABLES

IntArray = np.ndarray[Any, np.dtype[np.int64]]

NO_ROW = -2
"""`before_id` of a call that is the first on its stream."""

KEPT = ("messages", "overheads", "os_calls")
"""Tables that are kept as they are; of the ranges, those that are meetings."""

MAY_BE_EQUAL = np.array([*PROBE_FAMILIES, FAMILY_CODE["other"]])
"""Families whose kernels may turn out to be equal work when all ranks are known."""


def digest_tables(
    tables: Mapping[str, Columns], names: Names, n_ranks: int, catalog: KernelCatalog, ranges: RangeCatalog
) -> dict[str, Columns] | None:
    """Digest the tables of one recording.

    Args:
        tables: of `TRACE_TABLES`, by name; left as they are.

    Returns:
        The tables that stand in for them; None where a digest would lose what the diagnosis needs: without kernels,
        with graphs recorded as a whole, with calls of unknown name, with calls that run beside work, or with a stall of
        seconds.
    """
    naming = name_kernels(names, catalog)
    if not count_rows(tables["kernels"]) or count_rows(tables["graph_replays"]) or not naming.channels:
        return None
    told = parse_batches(names.range_names)
    shelf = KernelShelf({name: dict(columns) for name, columns in tables.items()}, names, n_ranks, naming)
    parts: dict[str, list[Columns]] = {}
    for rank in range(n_ranks):
        lane = shelf.lane(rank)
        if _runs_beside_work(lane):
            return None
        digested = _digest_lane(lane, max(1, len(names.shapes)))
        if not _fits(digested):
            return None
        digested[DIGEST_BATCHES.name] = _digest_batches(tables["ranges"], told, rank, lane)
        del lane
        for name, columns in digested.items():
            parts.setdefault(name, []).append(columns)
    kept = {table.name: tables[table.name] if table.name in KEPT else table.empty() for table in TRACE_TABLES}
    kept["ranges"] = _keep_meetings(tables["ranges"], names, ranges)
    for table in (DIGEST_CALLS, DIGEST_PARTS, DIGEST_KEYS, DIGEST_BATCHES, DIGEST_RANKS):
        kept[table.name] = join_rows(table, [_number(table, part, rank) for rank, part in enumerate(parts[table.name])])
    return kept


def _fits(digested: Mapping[str, Columns]) -> bool:
    """Tell whether every number of a rank's digest fits the column that keeps it; a stall of seconds does not."""
    for table in (DIGEST_CALLS, DIGEST_PARTS):
        for column in table.columns:
            values = digested[table.name].get(column.name)
            if values is not None and len(values) and values.dtype != column.dtype:
                held = np.iinfo(column.dtype)
                if values.min() < held.min or values.max() > held.max:
                    return False
    return True


def _number(table: Table, columns: Columns, rank: int) -> Columns:
    n = count_rows(columns)
    return table.check({"rank": np.full(n, rank, np.int16), **columns})


def _runs_beside_work(lane: Lane) -> bool:
    """Tell whether calls run beside work so much that each kernel counts; with a margin to what a diagnosis asks."""
    for calls in extract_calls(lane, 0).values():
        if calls.overlap is None:
            continue
        length = float((calls.end_ns - calls.arrival_ns).sum())
        if float(calls.overlap.busy_ns.sum()) > BESIDE_WORK / 2 * length:
            return True
    return False


def _digest_lane(lane: Lane, n_shapes: int) -> dict[str, Columns]:
    rows = np.flatnonzero(lane.channel >= 0)
    start, end = lane.start_ns[rows], lane.end_ns[rows]
    arrival = np.minimum(np.maximum(start, lane.same_stream_ready()[rows]), end)
    order = np.lexsort((start, arrival))
    rows, start, end, arrival = rows[order], start[order], end[order], arrival[order]
    before = find_rows_before(lane, rows)
    key = lane.key[before]
    is_kernel = (before >= 0) & (key >= 0)
    keys = measure_keys(lane)
    segments = cut_segments(lane, arrival, end, np.empty(0, np.int64))
    parts, counts = _sum_parts(lane, arrival, keys.key)
    contention = measure_contention(lane)
    own = ("attention_ns", "expert_ns", "work_ns", "host_ns", "content", "attention_names", "sampled", "prefill")
    more = ("decode", "in_graph", "idle_from_ns", "idle_until_ns", "ahead_ns")
    calls = {name: getattr(segments, name) for name in (*own, *more)} | {
        "stream": lane.stream[rows],
        "start_ns": start,
        "end_ns": end,
        "arrival_ns": arrival,
        "name_id": (lane.key[rows] // n_shapes).astype(np.int32),
        "shape_id": (lane.key[rows] % n_shapes).astype(np.int32),
        "before_id": np.where(is_kernel, key // n_shapes, np.where(before >= 0, -1, NO_ROW)).astype(np.int32),
        "before_shape_id": np.where(is_kernel, key % n_shapes, 0).astype(np.int32),
        "parts": counts,
    }
    listed = {
        "name_id": (keys.key // n_shapes).astype(np.int32),
        "shape_id": (keys.key % n_shapes).astype(np.int32),
        "count": keys.count,
        "total_ns": keys.total_ns,
    }
    rank = {
        "contention_ratio": np.array([np.nan if contention is None else contention]),
        "has_launches": np.array([lane.launch_ns is not None]),
    }
    return {
        DIGEST_CALLS.name: calls,
        DIGEST_PARTS.name: parts,
        DIGEST_KEYS.name: listed,
        DIGEST_RANKS.name: rank,
    }


def _sum_parts(lane: Lane, arrival_ns: IntArray, keys: IntArray) -> tuple[Columns, IntArray]:
    """Sum the work of every key that may be equal work by segment.

    Args:
        arrival_ns: sorted ends of the segments.
        keys: sorted, all work keys of the lane.

    Returns:
        Rows of DIGEST_PARTS by segment and key, and `(n_segments,)` how many each segment has.
    """
    work = np.flatnonzero(IS_WORK[lane.family])
    begin, busy = measure_busy(lane, work)
    chosen = np.isin(lane.family[work], MAY_BE_EQUAL) & (lane.key[work] >= 0)
    segment = np.searchsorted(arrival_ns, begin[chosen], side="right")
    inside = segment < len(arrival_ns)
    segment = segment[inside]
    key = np.searchsorted(keys, lane.key[work[chosen][inside]])
    code, where = np.unique(segment * max(len(keys), 1) + key, return_inverse=True)
    total = np.bincount(where, busy[chosen][inside], minlength=len(code)).astype(np.int64)
    seg, own = np.divmod(code, max(len(keys), 1))
    parts = {"key": own.astype(np.int32), "busy_ns": total}
    return parts, np.bincount(seg, minlength=len(arrival_ns))


def _digest_batches(ranges: Columns, told: np.ndarray[Any, Any], rank: int, lane: Lane) -> Columns:
    rows = np.flatnonzero(ranges["rank"] == rank)
    if len(told):
        rows = rows[~np.isnan(told[ranges["name_id"][rows], 0])]
    if not len(rows) or not len(told):
        return {name: values for name, values in DIGEST_BATCHES.empty().items() if name != "rank"}
    requests, held, prompt = told[ranges["name_id"][rows]].T
    begins = find_begins(lane, ranges["start_ns"][rows])
    return {"start_ns": begins, "requests": requests, "held_tokens": held, "prompt_tokens": prompt}


def _keep_meetings(ranges: Columns, names: Names, catalog: RangeCatalog) -> Columns:
    meets = np.array([catalog.classify(name).role == "meeting" for name in names.range_names], bool)
    return take_rows(ranges, meets[ranges["name_id"]]) if len(meets) else take_rows(ranges, slice(0))
