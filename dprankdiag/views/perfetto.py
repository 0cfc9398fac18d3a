"""The worst step of every lockstep group as a Chrome JSON trace that Perfetto opens.

A group is a process, a rank a thread. Every meeting of the worst step gives its members slices: the segment before it
(called work or idle after what fills most of it), the wait for the last to arrive, and the transfer; an arrow leads
from the last rank's segment to each wait that it ends; where work waits for a call that ran beside it, from the segment
before that call. Below a rank stand the kernels of its streams in that step, a thread a stream. Beside them stand all
steps of the group, and a counter for every rank: what it waits in each step.

Source: Trace Event Format (Google document CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): phases X, C, M, s and f, times
in µs; flows bind to the slice that encloses their time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dprankdiag.model import results
from dprankdiag.model.bundle import describe_tool, publish_value
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.results import find_table
from dprankdiag.model.schema import ABSENT_ID, Columns, Table, count_rows
from dprankdiag.units import NS_PER_US
from dprankdiag.views.base import DEFAULT_WIDTH, Tables
from dprankdiag.views.meetings import name_meetings, name_rank

STEPS_THREAD = 0
"""Thread of a group's steps; the thread of rank r is r + 1."""

FIRST_STREAM = 1_000_000
"""Thread of the first stream with kernels; the others follow."""

TRACKS_A_RANK = 1_000
"""Places a rank has in the order of tracks: its own, then its streams."""

MAX_COUNTS = 100_000
"""Values of all counters together; more make files that viewers load slowly."""

Event = dict[str, Any]


def render(diagnosis: Diagnosis, tables: Tables, *, width: int = DEFAULT_WIDTH, color: bool = False) -> str:
    """Write one JSON object, an event a line; width and colour do not apply."""
    origin_ns = _find_origin(tables)
    events = [*_name_tracks(tables), *_list_steps(tables, origin_ns), *count_waits(tables, origin_ns)]
    events += [*_list_worst(tables, origin_ns), *_list_kernels(tables, origin_ns)]
    missing = [
        table.name
        for table in (
            results.STEPS,
            results.RANK_STEPS,
            results.WORST_STEPS,
            results.WORST_MEETINGS,
            results.STEP_KERNELS,
        )
        if find_table(tables, table) is None
    ]
    about = {
        "tool": describe_tool(),
        "status": diagnosis.status,
        "headline": diagnosis.headline,
        "clock": diagnosis.time.clock,
        "origin_ns": origin_ns,
        "not in this input": missing,
    }
    lines = ",\n".join(_write(event) for event in events)
    return f'{{"displayTimeUnit":"ns","otherData":{_write(publish_value(about))},"traceEvents":[\n{lines}\n]}}\n'


def _find_origin(tables: Tables) -> int:
    """Return the first moment drawn, so that no time is negative and none has too many digits for a double."""
    timed = (results.STEPS, results.WORST_MEETINGS, results.STEP_KERNELS)
    found = [find_table(tables, table) for table in timed]
    return min((int(columns["start_ns"].min()) for columns in found if columns and count_rows(columns)), default=0)


def _write(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace("\x7f", "\\u007f")


def _rows(tables: Tables, table: Table) -> Iterator[Mapping[str, Any]]:
    """Walk through a table's rows as plain values; nothing if it was not saved."""
    columns: Columns = find_table(tables, table) or {}
    values = {name: column.tolist() for name, column in columns.items()}
    for row in range(count_rows(columns)):
        yield {name: column[row] for name, column in values.items()}


def _name_tracks(tables: Tables) -> Iterator[Event]:
    members = [(row["group"], row["rank"], row["engine"]) for row in _rows(tables, results.MEMBERS)]
    if not members:
        # An older version saved no members: the engine is unknown, the ranks are those of the steps.
        seen = {(row["group"], row["rank"]) for row in _rows(tables, results.RANK_STEPS)}
        members = [(group, rank, "") for group, rank in sorted(seen)]
    for group in sorted({group for group, _, _ in members}):
        engines = sorted({engine for where, _, engine in members if where == group and engine})
        yield _name("process_name", group, 0, f"lockstep group {group} {' '.join(engines)}".rstrip())
        yield _name("thread_name", group, STEPS_THREAD, "steps")
    for group, rank, _ in members:
        yield _name("thread_name", group, rank + 1, f"rank {rank}")
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": group + 1,
            "tid": rank + 1,
            "args": {"sort_index": (rank + 1) * TRACKS_A_RANK},
        }


def _name(what: str, group: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": group + 1, "tid": thread, "args": {"name": name}}


def _list_steps(tables: Tables, origin_ns: int) -> Iterator[Event]:
    kinds = {(row["group"], row["kind"]): row["name"] for row in _rows(tables, results.KINDS)}
    worst = {(row["group"], row["step"]): row for row in _rows(tables, results.WORST_STEPS)}
    for row in _rows(tables, results.STEPS):
        name = f"step {row['step']}"
        arguments = {"kind": kinds.get((row["group"], row["kind"]), "unknown")}
        if found := worst.get((row["group"], row["step"])):
            name += ", the worst"
            arguments |= {"mean_wait_ns": found["wait_ns"], "median_of_its_kind_ns": found["median_ns"]}
        yield _slice(row["group"], STEPS_THREAD, name, "step", (row["start_ns"], row["end_ns"]), origin_ns, arguments)


def count_waits(tables: Tables, origin_ns: int, most: int = MAX_COUNTS) -> Iterator[Event]:
    """Count what each rank waits in every step, at the step's start.

    Neighbouring steps are added up where there are more than about `most` values.
    """
    start = {(row["group"], row["step"]): row["start_ns"] for row in _rows(tables, results.STEPS)}
    rows = find_table(tables, results.RANK_STEPS)
    if rows is None or not count_rows(rows):
        return
    each = -(-count_rows(rows) // most)
    order = np.lexsort((rows["step"], rows["rank"], rows["group"]))
    group, rank, step, wait = (rows[name][order] for name in ("group", "rank", "step", "wait_ns"))
    begins = (np.diff(group, prepend=-1) != 0) | (np.diff(rank, prepend=-1) != 0) | (step % each == 0)
    first = np.flatnonzero(begins)
    what = "the step" if each == 1 else f"{each} steps"
    values = (group[first], rank[first], step[first], np.add.reduceat(wait, first))
    for of_group, of_rank, of_step, sum_ns in zip(*(value.tolist() for value in values), strict=True):
        yield {
            "ph": "C",
            "name": f"rank {of_rank} waits in {what}",
            "pid": of_group + 1,
            "ts": _in_us(start.get((of_group, of_step), origin_ns) - origin_ns),
            "args": {"wait_ns": sum_ns},
        }


def _list_worst(tables: Tables, origin_ns: int) -> Iterator[Event]:
    names = name_meetings(tables)
    kinds = {row["group"]: row["kind"] for row in _rows(tables, results.WORST_STEPS)}
    rows = list(_rows(tables, results.WORST_MEETINGS))
    segments = {(row["group"], row["position"], row["rank"]): row for row in rows}
    for number, row in enumerate(rows, 1):
        group, rank = row["group"], row["rank"]
        meeting = names.get((group, kinds.get(group, 0), row["position"]), f"meeting {row['position']}")
        arrival, released = row["arrival_ns"], row["arrival_ns"] + row["wait_ns"]
        filling = "work" if 2 * row["work_ns"] >= arrival - row["start_ns"] else "idle"
        about = {"meeting": row["position"], "last_to_arrive": name_rank(row["last_rank"])}
        spans = (
            (f"{filling}: {meeting}", "segment", (row["start_ns"], arrival), {"work_ns": row["work_ns"]}),
            (f"wait: {meeting}", "wait", (arrival, released), about),
            (f"transfer: {meeting}", "transfer", (released, row["end_ns"]), about),
        )
        yield from (
            _slice(group, rank + 1, name, kind, span, origin_ns, arguments)
            for name, kind, span, arguments in spans
            if span[1] > span[0]
        )
        awaited = row["awaited"] if row["awaited"] != ABSENT_ID else row["position"]
        late = segments.get((group, awaited, row["last_rank"]))
        if late is not None and row["wait_ns"] > 0 and late["arrival_ns"] - late["start_ns"] > 1:
            yield from _list_flow(number, late, row, origin_ns)


def _list_kernels(tables: Tables, origin_ns: int) -> Iterator[Event]:
    """List the kernels of the worst step by stream, each from where its stream was free: slices must not overlap."""
    threads: dict[tuple[int, int, int], int] = {}
    for row in _rows(tables, results.STEP_KERNELS):
        group, rank, stream = key = row["group"], row["rank"], row["stream"]
        if key not in threads:
            thread = threads[key] = FIRST_STREAM + len(threads)
            place = (rank + 1) * TRACKS_A_RANK + sum(known[:2] == key[:2] for known in threads)
            yield _name("thread_name", group, thread, f"rank {rank}, stream {stream}")
            yield {**_name("thread_sort_index", group, thread, ""), "args": {"sort_index": place}}
        span = (row["end_ns"] - row["own_ns"], row["end_ns"])
        about = {"family": row["family"], "idle_before_ns": row["idle_ns"]}
        if row["own_ns"] > 0:
            yield _slice(group, threads[key], row["name"], "kernel", span, origin_ns, about)


def _list_flow(number: int, late: Mapping[str, Any], waiting: Mapping[str, Any], origin_ns: int) -> Iterator[Event]:
    """Lead an arrow from the late rank's segment to a wait that it ends; both ends lie just inside their slices."""
    group = waiting["group"]
    flow = {"cat": "late", "name": "keeps waiting", "id": number, "pid": group + 1}
    yield {**flow, "ph": "s", "tid": late["rank"] + 1, "ts": _in_us(late["arrival_ns"] - 2 - origin_ns)}
    released = waiting["arrival_ns"] + waiting["wait_ns"]
    yield {**flow, "ph": "f", "bp": "e", "tid": waiting["rank"] + 1, "ts": _in_us(released - 1 - origin_ns)}


def _slice(
    group: int, thread: int, name: str, kind: str, span: tuple[int, int], origin_ns: int, arguments: Mapping[str, Any]
) -> Event:
    return {
        "ph": "X",
        "cat": kind,
        "name": name,
        "pid": group + 1,
        "tid": thread,
        "ts": _in_us(span[0] - origin_ns),
        "dur": _in_us(span[1] - span[0]),
        "args": dict(arguments),
    }


def _in_us(time_ns: int) -> float:
    """Write a time as the format counts it; three decimals hold each ns."""
    return round(time_ns / NS_PER_US, 3)
