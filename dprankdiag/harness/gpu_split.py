"""Split the torch profiler's trace of one process whose streams are ranks into one trace a rank.

A rank's trace holds its stream and its launching thread, exactly as they were recorded: no time is changed, and nothing
is added but the rank's number and a note of what it is. A stream tells whose it is by a kernel that each rank launches
first, with as many blocks as its number and one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MARKER = "mark_rank_kernel"

Event = dict[str, Any]

NOTE = "ranks are streams of one GPU; each trace holds one stream and its launching thread of the same recording"

_GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")
_NO_ROW = -1
_CALLS = ("cuda_runtime", "cuda_driver")


def split_trace(trace: Mapping[str, Any], threads: Sequence[int]) -> list[dict[str, Any]]:
    """Split a trace by rank.

    Args:
        trace: as the torch profiler wrote it.
        threads: by rank, the number by which the system knows the thread that launched its work.

    Returns:
        A trace a rank. Events of other threads and streams are in none, those of neither in all.

    Raises:
        ValueError: a rank's stream was not recorded, or two ranks share one.
    """
    events: list[Event] = list(trace["traceEvents"])
    streams = _find_streams(events, len(threads))
    callers = _find_callers(events, streams, threads)
    ranks = len(threads)
    told = {"backend": "streams", "world_size": ranks}
    split: list[list[Event]] = [[] for _ in threads]
    arrows = {event["id"]: rank for event in events if (rank := _launched(event, streams, callers)) is not None}
    for event in events:
        for rank in _owners(event, streams, callers, arrows, ranks):
            split[rank].append(_put_on_thread(event, threads[rank], callers))
    head = {name: value for name, value in trace.items() if name not in ("traceEvents", "distributedInfo")}
    return [
        head | {"dprankdiag": NOTE, "distributedInfo": {**told, "rank": rank}, "traceEvents": own}
        for rank, own in enumerate(split)
    ]


def _find_streams(events: Iterable[Event], ranks: int) -> dict[int, int]:
    """Find each stream's rank by the grid of its marker."""
    found: dict[int, int] = {}
    for event in events:
        if event.get("cat") == "kernel" and MARKER in event["name"]:
            stream, rank = int(event["args"]["stream"]), int(event["args"]["grid"][0]) - 1
            if found.setdefault(stream, rank) != rank:
                raise ValueError(f"stream {stream} is marked as that of ranks {found[stream]} and {rank}")
    if missing := sorted(set(range(ranks)) - set(found.values())):
        raise ValueError(f"the trace holds no stream of ranks {missing}")
    return found


def _find_callers(events: Iterable[Event], streams: Mapping[int, int], threads: Sequence[int]) -> dict[int, int]:
    """Find each thread's rank: by its number, and by the calls whose kernels ran on the rank's stream.

    CUPTI may know a thread by another number than the system does.
    """
    kernels = {
        event["args"]["correlation"]: streams[int(event["args"]["stream"])]
        for event in events
        if event.get("cat") == "kernel" and int(event["args"]["stream"]) in streams
    }
    found = {thread: rank for rank, thread in enumerate(threads)}
    for event in events:
        if event.get("cat") in _CALLS:
            rank = kernels.get(event.get("args", {}).get("correlation"))
            if rank is not None and found.setdefault(event["tid"], rank) != rank:
                raise ValueError(f"thread {event['tid']} launched work of ranks {found[event['tid']]} and {rank}")
    return found


def _launched(event: Event, streams: Mapping[int, int], callers: Mapping[int, int]) -> int | None:
    """Tell whose launch an arrow starts from."""
    return callers.get(event.get("tid", -1)) if event.get("ph") == "s" else None


def _owners(
    event: Event,
    streams: Mapping[int, int],
    callers: Mapping[int, int],
    arrows: Mapping[Any, int],
    ranks: int,
) -> Iterable[int]:
    """List the ranks in whose traces an event belongs."""
    phase, row = event.get("ph"), _number(event.get("tid"))
    if event.get("cat") in _GPU_CATEGORIES:
        owner = streams.get(_number(event.get("args", {}).get("stream", row)))
    elif phase in ("s", "f", "t"):
        owner = arrows.get(event.get("id"))
    elif row == _NO_ROW or (phase == "M" and event["name"].startswith("process")):
        return range(ranks)  # the profiler's span, the end of its window, and what processes and GPUs are called
    else:
        owner = callers.get(row, streams.get(row) if phase == "M" else None)
    return () if owner is None else (owner,)


def _put_on_thread(event: Event, thread: int, callers: Mapping[int, int]) -> Event:
    """Put a call on the row of its thread, by whichever number CUPTI knows it."""
    is_call = event.get("cat") in _CALLS or event.get("ph") == "s"
    return event | {"tid": thread} if is_call and event.get("tid") in callers else event


def _number(row: object) -> int:
    """Read the number of a thread or stream; what has none is of the whole recording."""
    return int(row) if isinstance(row, int) or (isinstance(row, str) and row.isdigit()) else _NO_ROW


def split_file(whole: Path, threads: Sequence[int], folder: Path, name: str) -> list[Path]:
    """Split a trace's file into one a rank.

    Args:
        whole: the file.
        threads: as in `split_trace`.
        folder: where the traces go.
        name: of a trace, with a place for its `rank`.

    Raises:
        ValueError: as in `split_trace`.
    """
    paths = []
    for rank, trace in enumerate(split_trace(json.loads(whole.read_text("utf-8")), threads)):
        paths.append(folder / name.format(rank=rank))
        paths[-1].write_text(json.dumps(trace), "utf-8")
    return paths
