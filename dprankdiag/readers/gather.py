"""Join the readings of several files into deployments: one time axis, ranks in place of processes, one set of names."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dprankdiag.errors import InputError
from dprankdiag.model.digests import DIGEST, DIGEST_CALLS, DIGEST_TABLES, is_digested
from dprankdiag.model.schema import ABSENT_NS, Columns, Table, take_rows
from dprankdiag.model.sources import Names, Reading, Source, Trace
from dprankdiag.model.traces import TRACE_TABLES
from dprankdiag.readers.base import Array
from dprankdiag.readers.engines import name_times, part_engines
from dprankdiag.readers.rank_map import Seat, find_seats
from dprankdiag.readers.rank_order import RankOrder, order_ranks
from dprankdiag.readers.row_order import split_ranks
from dprankdiag.readers.session_clocks import Placement, group_by_time, place_sessions

_TIMES = ("start_ns", "end_ns", "launch_ns", "arrival_ns")
_IDS = {
    ("kernels", "name_id"): "kernel_names",
    ("kernels", "shape_id"): "shapes",
    ("calls", "name_id"): "call_names",
    ("os_calls", "name_id"): "call_names",
    ("ranges", "name_id"): "range_names",
    ("ranges", "domain_id"): "domain_names",
    ("messages", "group_id"): "group_names",
    ("digest_calls", "name_id"): "kernel_names",
    ("digest_calls", "shape_id"): "shapes",
    ("digest_calls", "before_id"): "kernel_names",
    ("digest_calls", "before_shape_id"): "shapes",
    ("digest_keys", "name_id"): "kernel_names",
    ("digest_keys", "shape_id"): "shapes",
}
_POOLS = ("kernel_names", "shapes", "call_names", "range_names", "domain_names", "group_names")


def gather(
    readings: Sequence[Reading], *, rank_map: Mapping[str, int] | None = None, expect_ranks: int | None = None
) -> tuple[Trace, ...]:
    """Join readings into one deployment for each span of time.

    Takes the tables of the readings over; they are empty or shared afterwards.

    Args:
        readings: one a file.
        rank_map: ranks by ``pid:PID``, ``FILE``, ``FILE:PID`` or ``FILE:PID:DEVICE``; they win over all evidence.
        expect_ranks: how many ranks there should be; else what the files announce.

    Returns:
        One trace a deployment. Recordings whose known UTC spans do not overlap come apart, with a note, and so do those
        of one time that claim the same ranks and lie in different folders, or are of different kinds or names.

    Raises:
        InputError: a recording is given twice, or two files claim the same rank.
        UsageError: the rank map does not fit the files.
    """
    if not readings:
        return ()
    readings = _leave_out_digested(readings)
    _refuse_twins(readings)
    readings = _leave_out_merged(readings)
    mapped = find_seats(rank_map, readings) if rank_map else {}
    groups = group_by_time(readings)
    traces = []
    for group, name in zip(groups, name_times(readings, groups), strict=True):
        engines = [(name, group)] if mapped else part_engines(readings, group, name)
        for engine, members in engines:
            own = {(members.index(n), actor): rank for (n, actor), rank in mapped.items() if n in members}
            trace = _join([readings[number] for number in members], own, expect_ranks, engine)
            traces.append(_note_parting(trace, len(groups), [name for name, _ in engines]))
    return _name_engines(traces)


def _join(readings: Sequence[Reading], mapped: Mapping[Seat, int], expect_ranks: int | None, engine: str) -> Trace:
    order = order_ranks(readings, mapped, expect_ranks, engine)
    # In the order of ranks, so that the order in which files are given changes nothing, not even whose clock counts.
    used = list(dict.fromkeys(number for number, _ in order.seats))
    placements = dict(zip(used, place_sessions([readings[number].session for number in used]), strict=True))
    moves: list[dict[str, Array]] = [{}]
    if _keeps_everything(readings, order):
        names, tables = readings[0].names, {table.name: readings[0].tables[table.name] for table in TRACE_TABLES}
    else:
        names, moves = _join_names(readings)
        tables = {table.name: _join_table(table, readings, order, placements, moves) for table in TRACE_TABLES}
    domain = {number: position for position, number in enumerate(used)}
    spans = [(readings[number].session, placements[number].offset_ns) for number in used]
    return Trace(
        ranks=order.ranks,
        clock_domain=np.array([domain[number] for number, _ in order.seats], np.int16),
        domain_hosts=tuple(readings[number].session.host for number in used),
        domain_precision=tuple(placements[number].precision for number in used),
        names=names,
        tables=tables,
        sources=tuple(_fill_source(reading, number, order) for number, reading in enumerate(readings)),
        captures=tuple(readings[number].capture for number in used),
        start_ns=min((session.start_ns + offset for session, offset in spans), default=0),
        end_ns=max((session.end_ns + offset for session, offset in spans), default=0),
        missing_ranks=order.missing,
        notes=order.notes + _note_clocks(readings, placements),
        digests=_take_digests(readings, order, placements, moves),
    )


def _keeps_everything(readings: Sequence[Reading], order: RankOrder) -> bool:
    """Say whether the only reading has its actors in the order of the ranks, so that its tables serve as they are."""
    return len(readings) == 1 and [actor for _, actor in order.seats] == list(range(len(order.seats)))


def _join_table(
    table: Table,
    readings: Sequence[Reading],
    order: RankOrder,
    placements: Mapping[int, Placement],
    moves: Sequence[Mapping[str, Array]],
) -> Columns:
    rows = {
        number: split_ranks(readings[number].tables[table.name], len(readings[number].actors)) for number in placements
    }
    joined: Columns = {}
    for column in table.columns:
        # Column by column: a long table is never there twice.
        parts = []
        for rank, (number, actor) in enumerate(order.seats):
            values = readings[number].tables[table.name][column.name][rows[number][actor]]
            if column.name == "rank":
                values = np.full(len(values), rank, np.int16)
            elif column.name in _TIMES:
                values = _shift(values, placements[number].offset_ns)
            elif (table.name, column.name) in _IDS and len(values):
                values = _renumber(values, moves[number][_IDS[table.name, column.name]])
            parts.append(values)
        joined[column.name] = np.concatenate(parts) if parts else np.empty(0, column.dtype)
        for reading in readings:
            del reading.tables[table.name][column.name]
    return joined


def _take_digests(
    readings: Sequence[Reading],
    order: RankOrder,
    placements: Mapping[int, Placement],
    moves: Sequence[Mapping[str, Array]],
) -> tuple[dict[str, Columns], ...]:
    """Take each rank's rows of digests, most of them as they lie in their reading; nothing if there is no digest."""
    digested = {number for number in placements if is_digested(readings[number].tables)}
    rows = {
        (number, table.name): split_ranks(readings[number].tables[table.name], len(readings[number].actors))
        for number in digested
        for table in DIGEST_TABLES
    }
    return tuple(
        {
            table.name: _place(
                table.name,
                take_rows(readings[number].tables[table.name], rows[number, table.name][actor]),
                placements[number].offset_ns,
                moves[number],
            )
            for table in DIGEST_TABLES
        }
        if number in digested
        else {}
        for number, actor in (order.seats if digested else ())
    )


def _place(table: str, columns: Columns, offset_ns: int, move: Mapping[str, Array]) -> Columns:
    """Carry a rank's rows to the common axis and names."""
    for name, values in columns.items():
        if name in _TIMES:
            columns[name] = _shift(values, offset_ns)
        elif (table, name) in _IDS and move and len(values):
            columns[name] = _renumber(values, move[_IDS[table, name]])
    return columns


def _renumber(values: Array, move: Array) -> Array:
    """Carry ids to where they went; what is no id, below 0, stays."""
    if (move == np.arange(len(move))).all():
        return values
    return np.where(values < 0, values, move[values])


def _shift(times_ns: Array, offset_ns: int) -> Array:
    return np.where(times_ns == ABSENT_NS, ABSENT_NS, times_ns + offset_ns) if offset_ns else times_ns


def _join_names(readings: Sequence[Reading]) -> tuple[Names, list[dict[str, Array]]]:
    """Join the names of all readings; return them and, by reading and kind, where each old id went."""
    pools: dict[str, dict[Hashable, int]] = {pool: {} for pool in _POOLS}
    pools["domain_names"][""] = 0
    moves = []
    for reading in readings:
        old = {pool: getattr(reading.names, pool) for pool in _POOLS}
        moves.append(
            {
                pool: np.array([pools[pool].setdefault(name, len(pools[pool])) for name in names], np.int32)
                for pool, names in old.items()
            }
        )
    return Names(**{pool: tuple(found) for pool, found in pools.items()}), moves  # type: ignore[arg-type]


def _fill_source(reading: Reading, number: int, order: RankOrder) -> Source:
    pairs = zip(order.seats, order.ranks, strict=True)
    return replace(reading.source, ranks=tuple(rank.rank for (owner, _), rank in pairs if owner == number))


def _refuse_twins(readings: Sequence[Reading]) -> None:
    seen: dict[Hashable, str] = {}
    for reading in readings if len(readings) > 1 else ():
        marks: list[Hashable] = [Path(reading.source.path).resolve()]
        if reading.actors:
            marks.append(_fingerprint(reading))
        for mark in marks:
            if mark in seen:
                raise InputError(
                    f"the same recording twice, {seen[mark]} and {reading.source.path}", mend="give each file once"
                )
            seen[mark] = reading.source.path


def _leave_out_digested(readings: Sequence[Reading]) -> list[Reading]:
    """Leave out digests of what is given besides: a folder may hold them next to their traces, and in two bundles."""
    given: dict[Hashable, str] = {}
    for reading in sorted(readings, key=lambda reading: reading.source.kind == DIGEST):  # traces tell more
        given.setdefault(_identify(reading), reading.source.path)
    owner = [given[_identify(reading)] for reading in readings]
    return [
        _leave_out(reading, f"digest of {path}, which is given too")
        if reading.source.kind == DIGEST and path != reading.source.path
        else reading
        for reading, path in zip(readings, owner, strict=True)
    ]


def _leave_out_merged(readings: Sequence[Reading]) -> list[Reading]:
    """Leave out what is there twice: a recording merged from others that are all given, else those that are in it.

    SGLang's merge_profiles writes a file of all ranks beside those of each.
    """
    own = [[_sum_kernels(reading, actor) for actor in range(len(reading.actors))] for reading in readings]
    alone = {sums[0] for sums in own if len(sums) == 1}
    whole = [number for number, sums in enumerate(own) if len(sums) > 1 and alone.issuperset(sums)]
    merged = {found for n, sums in enumerate(own) if len(sums) > 1 and n not in whole for found in sums}
    held = [number for number, sums in enumerate(own) if len(sums) == 1 and sums[0] in merged]
    return [
        _leave_out(reading, "merged from other files that are given" if number in whole else "part of a merged file")
        if number in (*whole, *held)
        else reading
        for number, reading in enumerate(readings)
    ]


def _leave_out(reading: Reading, reason: str) -> Reading:
    warnings = (*reading.source.warnings, f"{reason}; left out")
    return replace(reading, actors=(), source=replace(reading.source, status="skipped", warnings=warnings))


def _sum_kernels(reading: Reading, actor: int) -> Hashable:
    """Return how many kernels an actor ran and how long in all, with the span they lie in."""
    kernels = reading.tables["kernels"]
    rows = slice(*np.searchsorted(kernels["rank"], [actor, actor + 1]).tolist())
    start, end = kernels["start_ns"][rows], kernels["end_ns"][rows]
    if not len(start):
        return reading.source.path, actor
    return len(start), int((end - start).sum()), int(start[0]), int(end.max())


def _identify(reading: Reading) -> Hashable:
    """Return what a recording and its digest share."""
    return reading.session, tuple((actor.pid, actor.device) for actor in reading.actors)


def _fingerprint(reading: Reading) -> Hashable:
    """Return what two copies of one recording share and two recordings do not."""
    told = ("kernels", "graph_replays", "ranges", DIGEST_CALLS.name)
    rows = [reading.tables[name] for name in told if name in reading.tables]
    sums = tuple(int(columns[time].sum()) for columns in rows for time in ("start_ns", "end_ns"))
    return _identify(reading), sums


def _name_engines(traces: Sequence[Trace]) -> tuple[Trace, ...]:
    """Number engines whose name another one has before them, so that ranks stay unique."""
    named: list[Trace] = []
    used: set[str] = set()
    for number, trace in enumerate(traces, 1):
        names = {rank.engine for rank in trace.ranks}
        if names & used:
            trace = replace(trace, ranks=tuple(replace(rank, engine=f"{rank.engine}-{number}") for rank in trace.ranks))
        used |= {rank.engine for rank in trace.ranks}
        named.append(trace)
    return tuple(named)


def _note_parting(trace: Trace, n_times: int, engines: Sequence[str]) -> Trace:
    notes = []
    if n_times > 1:
        notes.append(f"the recordings given share no time and are judged apart ({n_times} groups)")
    if len(engines) > 1:
        notes.append(f"several recordings claim the same ranks and are judged apart as engines {', '.join(engines)}")
    return replace(trace, notes=(*notes, *trace.notes))


def _note_clocks(readings: Sequence[Reading], placements: Mapping[int, Placement]) -> tuple[str, ...]:
    unknown = [readings[number].source.path for number, placed in placements.items() if placed.precision == "unknown"]
    return (f"no clock places {', '.join(unknown)} beside the other recordings",) if unknown else ()
