"""Every GPU's kernels in few bytes each, from which those of any span of time can be taken again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.clocks import ClockFit
from dprankdiag.analysis.intervals import exclusive_time, ready_by_stream, running_end
from dprankdiag.model.ranks import Rank
from dprankdiag.model.schema import ABSENT_ID, ABSENT_NS, Columns

IntArray = np.ndarray[Any, np.dtype[np.int64]]
AnyArray = np.ndarray[Any, np.dtype[Any]]

BLOCK = 1024
"""Rows after which a moment is kept in full."""


@dataclass(frozen=True, slots=True)
class PackedRows:
    """One rank's rows, sorted by start, on the rank's own clock; about 15 bytes each.

    Attributes:
        block_start_ns: `(n_blocks,)` start of every block's first row.
        block_ready_ns: `(n_blocks,)` latest end before every block.
        apart: `(n,)` ns from the start of the row before.
        length: `(n,)` ns.
        name_id: `(n,)` as numbered by the shelf, which names copies and replays from the end, plus `name_shift`.
        stream: `(n,)` less `stream_shift`.
        lead: `(n,)` ns from the end of the launching call to the start, plus `lead_shift`; None without launches.
        lead_absent: value of `lead` where a row's launch is not known.
    """

    block_start_ns: IntArray
    block_ready_ns: IntArray
    apart: AnyArray
    length: AnyArray
    name_id: AnyArray
    name_shift: int
    stream: AnyArray
    stream_shift: int
    lead: AnyArray | None
    lead_shift: int
    lead_absent: int


def pack_rows(rows: Columns, *, has_launches: bool) -> PackedRows:
    """Pack a rank's kernels, copies and replays.

    Args:
        rows: start_ns, end_ns, stream, name_id and launch_ns, sorted by start.
        has_launches: whether any launch is known.
    """
    start, end = rows["start_ns"], rows["end_ns"]
    n = len(start)
    apart = np.zeros(n, np.int64)
    np.subtract(start[1:], start[:-1], out=apart[1:])
    ready = np.full(-(-n // BLOCK), ABSENT_NS, np.int64)
    if n:
        ready[1:] = np.maximum.accumulate(np.maximum.reduceat(end, np.arange(0, n, BLOCK)))[:-1]
    apart = _shrink(apart)
    length = _shrink(end - start)
    name_shift = -min(int(rows["name_id"].min(initial=0)), 0)
    stream_shift = int(rows["stream"].min()) if n else 0
    lead, shift, absent = None, 0, 0
    if has_launches:
        lead, shift, absent = _pack_lead(start, rows["launch_ns"])
    return PackedRows(
        np.asarray(start[::BLOCK].copy()),
        ready,
        apart,
        length,
        _shrink(rows["name_id"] + np.int32(name_shift)),
        name_shift,
        _shrink(rows["stream"].astype(np.int64) - stream_shift),
        stream_shift,
        lead,
        shift,
        absent,
    )


def _pack_lead(start_ns: IntArray, launch_ns: IntArray) -> tuple[AnyArray, int, int]:
    known = launch_ns != ABSENT_NS
    lead = np.where(known, start_ns - launch_ns, 0)
    shift = -min(int(lead.min(initial=0)), 0)
    lead += shift
    absent = int(lead.max(initial=0)) + 1
    lead[~known] = absent
    return _shrink(lead), shift, absent


def _shrink(values: AnyArray) -> AnyArray:
    """Store numbers that are not negative in as few bytes as the largest needs."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """The kernels, copies and whole-graph replays of all ranks that were compared.

    Attributes:
        packed: rows and clock fit by engine and rank number.
        names, families: by name_id; copies and replays count from the end.
    """

    packed: Mapping[tuple[str, int], tuple[PackedRows, ClockFit | None]]
    names: AnyArray
    families: AnyArray

    def take(self, rank: Rank, low_ns: int, high_ns: int) -> Columns:
        """Take the rows of a rank that begin in a span of the common axis, half open.

        Returns:
            stream, start_ns and end_ns on the common axis, own_ns (time since the rows before on its stream had ended),
            idle_ns (nothing ran right before it), host_ns (part of that before its launch had returned, -1 if unknown),
            family and name.
        """
        rows, fit = self.packed[rank.engine, rank.rank]
        borders = rows.block_start_ns if fit is None else fit.apply(rows.block_start_ns)
        # One block more than needed: what runs on a stream before the first row began in it.
        first = max(int(np.searchsorted(borders, low_ns, side="right")) - 2, 0)
        stop = int(np.searchsorted(borders, high_ns, side="left"))
        part = slice(first * BLOCK, max(stop, first) * BLOCK)
        apart = rows.apart[part].astype(np.int64)
        if not len(apart):
            return self._name({name: np.empty(0, np.int64) for name in _TIMES}, np.empty(0, np.int64), np.empty(0))
        apart[0] = rows.block_start_ns[first]
        start = np.cumsum(apart)
        end = start + rows.length[part]
        stream = rows.stream[part].astype(np.int64) + rows.stream_shift
        before_ns = rows.block_ready_ns[first : first + 1]
        if fit is not None:
            start, end = fit.apply(start), fit.apply(end)
            before_ns = np.where(before_ns == ABSENT_NS, ABSENT_NS, fit.apply(before_ns))
        ready = np.maximum(running_end(end), before_ns)
        idle = np.where(ready == ABSENT_NS, 0, np.maximum(start - ready, 0))
        host = np.full(len(start), ABSENT_ID, np.int64)
        if rows.lead is not None:
            lead = rows.lead[part].astype(np.int64)
            known = lead != rows.lead_absent
            host = np.where(known, np.clip(idle - np.maximum(lead - rows.lead_shift, 0), 0, None), ABSENT_ID)
        own = exclusive_time(start, end, ready_by_stream(end, stream))
        inside = slice(*np.searchsorted(start, [low_ns, high_ns], side="left").tolist())
        times = dict(zip(_TIMES, (start, end, own, idle, host), strict=True))
        name_id = rows.name_id[part].astype(np.int64) - rows.name_shift
        return self._name({name: values[inside] for name, values in times.items()}, name_id[inside], stream[inside])

    def _name(self, times: Columns, name_id: IntArray, stream: AnyArray) -> Columns:
        named = {"family": self.families[name_id], "name": self.names[name_id]}
        return {"stream": stream.astype(np.int32)} | times | named


_TIMES = ("start_ns", "end_ns", "own_ns", "idle_ns", "host_ns")
