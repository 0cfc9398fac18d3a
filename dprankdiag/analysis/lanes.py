"""What each rank did, in order: kernels and copies of a GPU, or the annotated ranges of a CPU process.

A lane is a view of one rank's rows, made when needed, so that a large trace is never copied as a whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dprankdiag.analysis.intervals import ready_by_stream
from dprankdiag.catalog.kernels import COMMUNICATION_FAMILIES, FAMILIES, KernelCatalog
from dprankdiag.catalog.ranges import RangeCatalog
from dprankdiag.model.sources import Names, Trace

IntArray = np.ndarray[Any, np.dtype[np.int64]]
Int32Array = np.ndarray[Any, np.dtype[np.int32]]

COMMUNICATION = frozenset(COMMUNICATION_FAMILIES)
N_FAMILIES = len(FAMILIES)
GRAPH_REPLAY = "CUDA graph replay"
OTHER_ATTENTION = 56
"""Attention names of unknown phase that are told apart; more share a number."""
FAMILY_CODE = {name: code for code, name in enumerate(FAMILIES)}
MEMORY = FAMILY_CODE["memory"]
IS_WORK = np.array([name not in COMMUNICATION for name in FAMILIES])
"""By family code: whether rows of the family are the rank's own work."""

_PREFILL = re.compile(r"prefill|extend|context_attention|ragged|varlen|flash_fwd_kernel", re.IGNORECASE)
_DECODE = re.compile(r"decode|splitkv|split_kv|paged|_mla", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank's rows, sorted by start.

    Attributes:
        family: `(n,)` int8 code into FAMILIES.
        key: `(n,)` int64, equal for kernels of one name and launch shape; -1 for what is no kernel.
        channel: `(n,)` int32, id of the communication channel name; -1 for work.
        launch_ns: `(n,)` end of the launching call, None where the recording has no calls.
        phase: `(n,)` int8, 1 prefill attention, 2 decode attention, 3 and more other attention by name, 0 no attention.
    """

    start_ns: IntArray
    end_ns: IntArray
    stream: Int32Array
    family: np.ndarray[Any, np.dtype[np.int8]]
    key: IntArray
    channel: Int32Array
    launch_ns: IntArray | None
    in_graph: np.ndarray[Any, np.dtype[np.bool_]]
    phase: np.ndarray[Any, np.dtype[np.int8]]

    def same_stream_ready(self) -> IntArray:
        """Return, for every row, the latest end of the earlier rows of its stream."""
        return ready_by_stream(self.end_ns, self.stream)


@dataclass(frozen=True, slots=True)
class Naming:
    """Family, channel and phase of every kernel name (or range name) of a trace.

    Attributes:
        channels: channel names; a channel is one kernel base name (without template and argument text).
        channel_family: family of each channel.
        channel_operation: operation of each channel.
    """

    family: np.ndarray[Any, np.dtype[np.int8]]
    channel: Int32Array
    phase: np.ndarray[Any, np.dtype[np.int8]]
    channels: tuple[str, ...]
    channel_family: tuple[str, ...]
    channel_operation: tuple[str, ...]


def name_kernels(names: Names, catalog: KernelCatalog) -> Naming:
    """Classify the kernel names of a trace."""
    family, channel, phase = [], [], []
    others: dict[str, int] = {}
    channels: dict[str, tuple[int, str, str]] = {}
    for name in names.kernel_names:
        code, operation = catalog.classify(name.demangled, name.short)
        family.append(code)
        if FAMILIES[code] in COMMUNICATION:
            base = _base_name(name.demangled)
            channel.append(channels.setdefault(base, (len(channels), FAMILIES[code], operation))[0])
        else:
            channel.append(-1)
        text = f"{name.demangled} {name.short}" if FAMILIES[code] == "attention" else ""
        known = 2 if _DECODE.search(text) else 1 if _PREFILL.search(text) else 0
        if text and not known:
            known = others.setdefault(_base_name(name.demangled), 3 + len(others) % OTHER_ATTENTION)
        phase.append(known)
    return Naming(
        np.array(family, np.int8),
        np.array(channel, np.int32),
        np.array(phase, np.int8),
        tuple(channels),
        tuple(entry[1] for entry in channels.values()),
        tuple(entry[2] for entry in channels.values()),
    )


def add_replays(naming: Naming) -> Naming:
    """Give whole-graph replays a channel: a replay holds the collectives inside it and ends when they have ended."""
    return replace(
        naming,
        channels=(*naming.channels, GRAPH_REPLAY),
        channel_family=(*naming.channel_family, "collective"),
        channel_operation=(*naming.channel_operation, "graph"),
    )


def name_ranges(names: Names, catalog: RangeCatalog) -> tuple[Naming, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Classify range names of a recording without kernels; also mark the names that begin a step."""
    family, channel = [], []
    channels: dict[str, tuple[int, str, str]] = {}
    is_step = []
    for text in names.range_names:
        kind = catalog.classify(text)
        is_step.append(kind.role == "step")
        if kind.role == "meeting":
            channel.append(channels.setdefault(text, (len(channels), "collective", kind.operation))[0])
            family.append(FAMILY_CODE["collective"])
        else:
            channel.append(-1)
            family.append(FAMILY_CODE[kind.family] if kind.family else -1)
    naming = Naming(
        np.array(family, np.int8),
        np.array(channel, np.int32),
        np.zeros(len(family), np.int8),
        tuple(channels),
        tuple(entry[1] for entry in channels.values()),
        tuple(entry[2] for entry in channels.values()),
    )
    return naming, np.array(is_step, bool)


def range_lane(trace: Trace, naming: Naming, rank: int) -> Lane:
    """Make the lane of a rank from annotated ranges: meetings and the ranges whose family is known.

    Time outside such ranges is host time by nature, so every row counts as launched when it starts.
    """
    ranges = trace.tables["ranges"]
    family = naming.family[ranges["name_id"]] if len(naming.family) else np.empty(0, np.int8)
    rows = np.flatnonzero((ranges["rank"] == rank) & (family >= 0) & ~ranges["is_open"])
    rows = rows[~_hold_meetings(ranges["end_ns"][rows], naming.channel[ranges["name_id"][rows]])]
    name = ranges["name_id"][rows]
    start, end, channel = ranges["start_ns"][rows], ranges["end_ns"][rows], naming.channel[name]
    return Lane(
        start,
        end,
        _join_threads(start, end, ranges["thread"][rows], channel),
        family[rows],
        np.full(len(rows), -1, np.int64),
        channel,
        start,
        np.zeros(len(rows), bool),
        np.zeros(len(rows), np.int8),
    )


def _hold_meetings(end_ns: IntArray, channel: Int32Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Mark meetings, of rows in order of start, that hold another: the program's name of it around the library's.

    The inner one tells when the rank really began to wait.
    """
    marked = np.zeros(len(channel), bool)
    meetings = np.flatnonzero(channel >= 0)
    outer, inner = meetings[:-1], meetings[1:]
    marked[outer] = end_ns[inner] <= end_ns[outer]
    return marked


def _join_threads(start_ns: IntArray, end_ns: IntArray, thread: Int32Array, channel: Int32Array) -> Int32Array:
    """Take threads of which only one has an open range at any time for one, in all or on one channel.

    Gloo runs a call on the next free thread of a pool while the caller waits: which one it was tells nothing.
    """
    joined: Int32Array = thread.copy()
    for rows in [channel == one for one in np.unique(channel[channel >= 0])] + [np.ones(len(channel), bool)]:
        if (start_ns[rows][1:] >= end_ns[rows][:-1]).all():
            joined[rows] = thread[rows][:1]
    return joined


def _base_name(demangled: str) -> str:
    """Strip return type, template and argument text: one collective kernel, whatever its types."""
    head = re.split(r"[<(]", demangled.removeprefix("void ").strip(), maxsplit=1)[0].strip()
    return head or demangled
