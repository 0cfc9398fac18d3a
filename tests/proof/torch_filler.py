"""Write a scenario's events as torch profiler traces, one file a rank.

Source: public traces of torch 2.x (Chrome JSON as kineto writes it): a launch and its kernel share a correlation, a
kernel's pid is its device, times are microseconds with three decimals after `baseTimeNanoseconds`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.proof.filler import FIRST_PID, KERNEL_NAMES
from tests.proof.scenario import Event

BASE_NS = 1_770_000_000_000_000_000
STREAM, THREAD = 7, 7_001
TITLE = "sglang::scheduler_DP{0}_TP{0}_EP{0}"

Row = dict[str, Any]


def fill_traces(
    folder: Path,
    events: Iterable[Event],
    *,
    title: str | None = TITLE,
    distributed: bool = True,
    name: str = "trace-{0}.json",
    replayed: Collection[int] = (),
    shows_nodes: bool = True,
    extra: Mapping[int, Iterable[Row]] | None = None,
) -> list[Path]:
    """Write a trace a rank.

    Args:
        folder: where to; made if it is not there.
        events: kernels of all ranks.
        title: of a rank's process, `{0}` its number; None for none.
        distributed: the header tells rank and world.
        name: of a rank's file.
        replayed: steps that are one launch of a graph.
        shows_nodes: the kernels of such a step are recorded.
        extra: further rows by rank.

    Returns:
        The files, by rank.
    """
    folder.mkdir(parents=True, exist_ok=True)
    of_rank: dict[int, list[Event]] = {}
    for event in events:
        of_rank.setdefault(event.rank, []).append(event)
    paths = []
    for rank, mine in sorted(of_rank.items()):
        rows = list(_list_work(mine, replayed, shows_nodes))
        rows += (extra or {}).get(rank, ())
        if title is not None:
            rows += _name_process(rank, title.format(rank))
        head: Row = {"schemaVersion": 1, "deviceProperties": [{"id": rank, "name": "GPU"}]}
        if distributed:
            head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": len(of_rank)}
        tail = {"baseTimeNanoseconds": BASE_NS, "displayTimeUnit": "ms"}
        path = folder / name.format(rank)
        path.write_text(json.dumps({**head, **tail, "traceEvents": rows}))
        paths.append(path)
    return paths


def make_row(category: str, name: str, rank: int, start_ns: int, end_ns: int, *, on_gpu: bool, **told: Any) -> Row:
    """Make an event that lasts."""
    where = {"pid": rank, "tid": STREAM} if on_gpu else {"pid": FIRST_PID + rank, "tid": THREAD}
    times = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
    return {"ph": "X", "cat": category, "name": name, **where, **times, "args": told}


def mark_steps(events: Iterable[Event], tell: Callable[[int, int], str]) -> dict[int, list[Row]]:
    """Make an annotation of every step of every rank, from its first launch to its last.

    Args:
        tell: text by step and rank.
    """
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for event in events:
        begin, end = spans.get((event.rank, event.step), (event.call_start_ns, event.call_end_ns))
        spans[event.rank, event.step] = min(begin, event.call_start_ns), max(end, event.call_end_ns)
    found: dict[int, list[Row]] = {}
    for (rank, step), (begin, end) in spans.items():
        row = make_row("user_annotation", tell(step, rank), rank, begin - 500, end + 500, on_gpu=False)
        found.setdefault(rank, []).append(row)
    return found


def _list_work(events: Iterable[Event], replayed: Collection[int], shows_nodes: bool) -> Iterable[Row]:
    launch_of: dict[int, int] = {}
    for number, event in enumerate(events, 1):
        is_graph = event.step in replayed
        if not is_graph:
            yield _call("cudaLaunchKernel", event, number)
        elif event.step not in launch_of:
            launch_of[event.step] = number
            yield _call("cudaGraphLaunch", event, number)
        if shows_nodes or not is_graph:
            yield _kernel(event, launch_of.get(event.step, number))


def _kernel(event: Event, launch: int) -> Row:
    told = {"device": event.rank, "stream": STREAM, "correlation": launch, "grid": [132, 1, 1], "block": [256, 1, 1]}
    name, _ = KERNEL_NAMES[event.key]
    return make_row("kernel", name, event.rank, event.start_ns, event.end_ns, on_gpu=True, **told)


def _call(name: str, event: Event, number: int) -> Row:
    return make_row(
        "cuda_runtime", name, event.rank, event.call_start_ns, event.call_end_ns, on_gpu=False, correlation=number
    )


def _name_process(rank: int, title: str) -> list[Row]:
    mark = {"ph": "M", "pid": FIRST_PID + rank, "tid": 0, "ts": 0}
    return [
        {**mark, "name": "process_name", "args": {"name": title}},
        {**mark, "name": "process_labels", "args": {"labels": "CPU"}},
    ]
