"""Read the smaller tables of an export: copies, synchronisations, graph replays, system calls, profiler overhead."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dprankdiag.model.schema import ABSENT_ID, ABSENT_NS, Columns, Table, join_rows, take_rows
from dprankdiag.model.traces import COPIES, GRAPH_REPLAYS, OS_CALLS, OVERHEADS, SYNCS
from dprankdiag.readers.base import Array
from dprankdiag.readers.column_buffer import ColumnBuffer
from dprankdiag.readers.nsys_actors import ActorIndex, pair_keys, process_keys, thread_ids
from dprankdiag.readers.nsys_export import NsysExport, Wanted, want
from dprankdiag.readers.nsys_names import fetch_texts
from dprankdiag.readers.row_order import sort_rows

GRAPH_TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_TIMES = {"start_ns": want("start", absent=ABSENT_NS), "end_ns": want("end", absent=ABSENT_NS)}
_DEVICE = {"pid": want("globalPid"), "device": want("deviceId"), "stream": want("streamId", absent=ABSENT_ID)}
_WHOLE_CONTEXT = 0xFFFFFFFF
# CUPTI_ACTIVITY_OVERHEAD types that are the tracer's own work: buffer flush, instrumentation, resource. Type 8 (command
# buffer full) is the application's back-pressure and must not be hidden here.
# Source: CUPTI 13.0 reference, CUpti_ActivityOverheadKind; ENUM_CUDA_OVERHEAD_TYPE of exports since schema 3.24.0.
_TRACER_OVERHEADS = (3, 4, 5)


def read_copies(db: NsysExport, actors: ActorIndex) -> Columns:
    """Read memory copies, and memory sets as copies of kind 0.

    In place of `launch_ns` come `owner`, the first actor of the process, and `correlation`, to find the launch by.
    """
    wanted = _DEVICE | {"size_bytes": want("bytes"), "correlation": want("correlationId")}
    copies = _read(db, "CUPTI_ACTIVITY_KIND_MEMCPY", wanted | {"kind": want("copyKind")})
    sets = _read(db, "CUPTI_ACTIVITY_KIND_MEMSET", wanted | {"kind": Wanted((), 0)})
    parts = [_place_device_rows(columns, actors) for columns in (copies, sets)]
    for part in parts:
        part["owner"] = actors.find_processes(process_keys(part["pid"])).astype(np.int64)
        part["correlation"] &= 0xFFFFFFFF
    names = [column.name for column in COPIES.columns if column.name != "launch_ns"]
    dtypes = {column.name: column.dtype for column in COPIES.columns}
    joined = {name: np.concatenate([part[name] for part in parts]).astype(dtypes[name]) for name in names}
    joined |= {name: np.concatenate([part[name] for part in parts]) for name in ("owner", "correlation")}
    return sort_rows(joined)


def read_syncs(db: NsysExport, actors: ActorIndex) -> Columns:
    """Read synchronisations; a wait for the whole context has no stream.

    Exports give device 0 for waits of processes that work on another device, so the process decides where the device
    is no actor's.
    """
    columns = _read(db, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", _DEVICE | {"kind": want("syncType")})
    return join_sorted(SYNCS, [_place_device_rows(columns, actors, by_process=True)])


def read_graph_replays(db: NsysExport) -> Columns:
    """Read whole-graph replays with their process and device, actors not yet known."""
    return _read(db, GRAPH_TABLE, _DEVICE | {"graph_id": want("graphId", "graphExecId", absent=ABSENT_ID)})


def place_graph_replays(columns: Columns, actors: ActorIndex) -> Columns:
    """Put actors in place of process and device."""
    return join_sorted(GRAPH_REPLAYS, [_place_device_rows(columns, actors)])


def read_os_calls(db: NsysExport, actors: ActorIndex) -> tuple[Columns, tuple[str, ...]]:
    """Read the system calls of the actors' processes, and the names that their `name_id` counts in."""
    columns = _read(db, "OSRT_API", {"tid": want("globalTid"), "name": want("nameId", absent=-1)}, actors)
    used, name_id = np.unique(columns.pop("name"), return_inverse=True)
    columns["thread"], columns["name_id"] = thread_ids(columns.pop("tid")), name_id
    texts = fetch_texts(db, used.tolist())
    return join_sorted(OS_CALLS, [columns]), tuple(texts[number] for number in used.tolist())


def read_overheads(db: NsysExport, actors: ActorIndex) -> Columns:
    """Read the time that the profiler itself took in the actors' processes."""
    thread = {"tid": want("globalTid")}
    cupti = _read(db, "CUPTI_ACTIVITY_KIND_OVERHEAD", thread | {"kind": want("overheadType")}, actors)
    cupti = take_rows(cupti, np.isin(cupti["kind"], _TRACER_OVERHEADS))
    own = _read(db, "PROFILER_OVERHEAD", thread, actors)
    return join_sorted(OVERHEADS, [cupti, own])


def join_sorted(table: Table, parts: list[Columns]) -> Columns:
    """Join parts of a table, drop what it does not declare, and sort by (rank, start)."""
    narrowed = [{c.name: part[c.name].astype(c.dtype, copy=False) for c in table.columns} for part in parts]
    return sort_rows(join_rows(table, narrowed))


def _read(db: NsysExport, table: str, wanted: Mapping[str, Wanted], actors: ActorIndex | None = None) -> Columns:
    """Read columns as int64; rows without a valid span are dropped, with `actors` also those of other processes."""
    columns = _TIMES | dict(wanted)
    buffer = ColumnBuffer(dict.fromkeys(columns, "int64") | ({} if actors is None else {"rank": "int16"}), 1024)
    for arrays in db.batches(table, list(columns.values())):
        batch = dict(zip(columns, arrays, strict=True))
        kept = (batch["start_ns"] != ABSENT_NS) & (batch["end_ns"] >= batch["start_ns"])
        if actors is not None:
            batch["rank"] = actors.find_processes(process_keys(batch["tid"]))
            kept &= batch["rank"] >= 0
        buffer.append(batch if kept.all() else take_rows(batch, kept))
    return buffer.finish()


def _place_device_rows(columns: Columns, actors: ActorIndex, *, by_process: bool = False) -> Columns:
    actor = actors.find_device_rows(columns["pid"], columns["device"], by_process=by_process)
    columns = take_rows(columns | {"rank": actor}, actor >= 0)
    columns["stream"] = _narrow_streams(columns["stream"])
    return columns


def _narrow_streams(stream: Array) -> Array:
    whole: Array = (stream == _WHOLE_CONTEXT) | (stream < 0)
    return np.where(whole, ABSENT_ID, stream & 0x7FFFFFFF)


def find_pairs(columns: Columns) -> Array:
    """Return the pair key of each row of a table that has process and device."""
    return np.unique(pair_keys(columns["pid"], columns["device"]))
