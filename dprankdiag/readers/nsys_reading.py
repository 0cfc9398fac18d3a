"""Read an open Nsight Systems export of any version, however it is stored, into a `Reading`.

Only the tables and columns present decide what is read, never the version.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.model.schema import Columns, count_rows
from dprankdiag.model.sources import Actor, Names, Reading, Session, Source
from dprankdiag.model.traces import CALLS, COPIES, KERNELS, OS_CALLS, TRACE_TABLES
from dprankdiag.readers import nsys_kernels, nsys_ranges, nsys_tables
from dprankdiag.readers.nsys_actors import ActorIndex
from dprankdiag.readers.nsys_calls import TABLE as RUNTIME_TABLE
from dprankdiag.readers.nsys_calls import RuntimeCalls, read_calls
from dprankdiag.readers.nsys_export import NsysExport
from dprankdiag.readers.nsys_identity import describe_actors
from dprankdiag.readers.nsys_kernels import RawKernels
from dprankdiag.readers.nsys_ranges import PlacedRanges, RawRanges
from dprankdiag.readers.nsys_session import (
    ExportFacts,
    read_capture,
    read_export_facts,
    read_session,
)

# What a diagnosis would use, under the name the user knows it by.
_WISHED = {
    "KERNEL": nsys_kernels.TABLE,
    "RUNTIME": RUNTIME_TABLE,
    "NVTX_EVENTS": nsys_ranges.TABLE,
    "OSRT_API": "OSRT_API",
    "SCHED_EVENTS": "SCHED_EVENTS",
    "GPU_METRICS": "GPU_METRICS",
}


@dataclass(frozen=True, slots=True)
class _Found:
    """What was read before it is put together."""

    actors: ActorIndex
    described: tuple[Actor, ...]
    tables: dict[str, Columns]
    names: Names
    calls: RuntimeCalls
    ranges: PlacedRanges
    session: Session


def read_export(db: NsysExport, kind: str) -> Reading:
    """Read an open export: tables by actor, names, clock, capture, and the evidence of who is which rank.

    A table that breaks off keeps the rows read so far; the source is then "partial".
    """
    facts = read_export_facts(db)
    raw_kernels = nsys_kernels.read_kernels(db)
    raw_ranges = nsys_ranges.read_ranges(db)
    found = _read_tables(db, facts, raw_kernels, raw_ranges)
    capture = read_capture(db, bool(count_rows(found.tables["graph_replays"])))
    source = _describe_source(db, kind, facts, found, raw_kernels)
    return Reading(source, found.session, capture, found.described, found.names, found.tables)


def _read_tables(db: NsysExport, facts: ExportFacts, raw: RawKernels, raw_ranges: RawRanges) -> _Found:
    replays = nsys_tables.read_graph_replays(db)
    actors = _find_actors(raw, replays, raw_ranges)
    kernels = nsys_kernels.place_kernels(raw, actors)
    copies = nsys_tables.read_copies(db, actors)
    calls = read_calls(db, kernels, copies, actors)
    kernels["launch_ns"], copies["launch_ns"] = calls.launch_ns, calls.copy_launch_ns
    del kernels["correlation"], copies["correlation"], copies["owner"]
    os_calls, os_names = nsys_tables.read_os_calls(db, actors)
    tables: dict[str, Columns] = {
        "kernels": KERNELS.check(kernels),
        "copies": COPIES.check(copies),
        "syncs": nsys_tables.read_syncs(db, actors),
        "graph_replays": nsys_tables.place_graph_replays(replays, actors),
        "overheads": nsys_tables.read_overheads(db, actors),
    }
    call_names = _join_call_names(calls, os_calls, os_names)
    tables |= {"calls": CALLS.check(calls.blocking), "os_calls": OS_CALLS.check(os_calls)}
    start_ns, end_ns = _find_span(tables, raw_ranges)
    ranges = nsys_ranges.place_ranges(raw_ranges, actors, end_ns)
    tables["ranges"] = ranges.columns
    names = Names(
        kernel_names=nsys_kernels.name_kernels(db, raw),
        shapes=raw.shapes,
        call_names=call_names,
        range_names=ranges.names,
        domain_names=ranges.domain_names,
    )
    session = read_session(db, facts, start_ns, end_ns)
    ordered = {table.name: tables.get(table.name, table.empty()) for table in TRACE_TABLES}
    return _Found(actors, describe_actors(db, actors, raw_ranges), ordered, names, calls, ranges, session)


def _find_actors(raw: RawKernels, replays: Columns, ranges: RawRanges) -> ActorIndex:
    """Take the processes and devices that ran kernels or graphs; without any, the processes that have ranges."""
    pairs = {*raw.pairs.tolist(), *nsys_tables.find_pairs(replays).tolist()}
    return ActorIndex(pairs) if pairs else ActorIndex.of_processes(ranges.process_keys())


def _join_call_names(calls: RuntimeCalls, os_calls: Columns, os_names: tuple[str, ...]) -> tuple[str, ...]:
    """Put the names of runtime and system calls into one list, and let the system calls count in it."""
    pool = {name: number for number, name in enumerate(dict.fromkeys(calls.names))}
    own = np.array([pool[name] for name in calls.names], np.int32)
    calls.blocking["name_id"] = own[calls.blocking["name_id"]] if len(own) else calls.blocking["name_id"]
    place = np.array([pool.setdefault(name, len(pool)) for name in os_names], np.int32)
    os_calls["name_id"] = place[os_calls["name_id"]] if len(place) else os_calls["name_id"]
    return tuple(pool)


def _find_span(tables: dict[str, Columns], ranges: RawRanges) -> tuple[int, int]:
    """Return the first start and last end of the rows read, ends of open ranges left out."""
    spans = [columns for columns in (*tables.values(), ranges.columns) if count_rows(columns)]
    if not spans:
        return 0, 0
    return min(int(columns["start_ns"].min()) for columns in spans), max(
        max(int(columns["end_ns"].max()), int(columns["start_ns"].max())) for columns in spans
    )


def _describe_source(db: NsysExport, kind: str, facts: ExportFacts, found: _Found, raw: RawKernels) -> Source:
    lacked = _find_lacked(db, found.calls.launches_graphs and not count_rows(found.tables["graph_replays"]))
    warnings = [f"{name} {reason}" for name, reason in sorted(db.failures.items())]
    if raw.dropped:
        warnings.append(f"{raw.dropped} of {raw.rows} kernels left out: no end, or an end before their start")
    if found.ranges.opened:
        warnings.append(f"{found.ranges.opened} annotated ranges never ended; taken to last until the capture ended")
    if facts.is_unknown:
        warnings.append(f"export schema {facts.schema} is newer than any known; read by the tables present")
    if facts.is_filtered:
        warnings.append("the export holds only the tables or times that were selected when it was made")
    warnings += db.list_remarks()
    return Source(
        path=str(db.path),
        kind=kind,
        status="partial" if db.failures else "used" if len(found.actors) else "unused",
        producer=facts.producer,
        kernels=raw.rows,
        lacked=lacked,
        warnings=tuple(warnings),
    )


def _find_lacked(db: NsysExport, lacks_graphs: bool) -> tuple[str, ...]:
    lacked = [name for name, table in _WISHED.items() if not db.has_rows(table)]
    return tuple(lacked + (["GRAPH_TRACE"] if lacks_graphs else []))
