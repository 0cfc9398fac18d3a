"""Take the calls, keys and segments of ranks from digests, in place of their kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from dprankdiag.analysis.calls import PLACE_FACTOR, Calls, part_calls
from dprankdiag.analysis.clocks import ClockFit
from dprankdiag.analysis.lanes import MEMORY, Naming
from dprankdiag.analysis.observations import BatchSeries
from dprankdiag.analysis.segments import KeyTimes, Segments
from dprankdiag.model.schema import Columns
from dprankdiag.model.sources import Trace

IntArray = np.ndarray[Any, np.dtype[np.int64]]

_SUMS = ("attention_ns", "expert_ns", "work_ns", "host_ns", "content", "sampled", "prefill", "decode", "in_graph")


class DigestShelf:
    """The digests of the ranks that have one, by position of the rank."""

    def __init__(self, trace: Trace, naming: Naming) -> None:
        self._naming = naming
        self._n_shapes = max(1, len(trace.names.shapes))
        self._digests = trace.digests

    def __contains__(self, rank: int) -> bool:
        """Tell whether a digest stands in for the kernels of a rank."""
        return bool(self._digests[rank])

    def list_calls(self, rank: int, messages: Columns) -> dict[tuple[int, int], Calls]:
        """List a rank's calls, as `calls.extract_calls` does of a lane that has all on one stream."""
        rows, naming = self._digests[rank]["digest_calls"], self._naming
        before = rows["before_id"]
        known = before >= 0
        before_key = np.where(known, self._join_key(before, rows["before_shape_id"]), -1)
        channel = np.where(known, naming.channel[before], -1)
        family = np.where(known, naming.family[before], MEMORY).astype(np.int64)
        near = np.where(channel >= 0, channel, -2 - family)
        every = Calls(
            rank,
            rows["start_ns"],
            rows["arrival_ns"],
            rows["end_ns"],
            self._join_key(rows["name_id"], rows["shape_id"]) * PLACE_FACTOR + before_key,
            before=np.where(before >= -1, near, -1),
        )
        return part_calls(every, naming.channel[rows["name_id"]], rows["stream"], messages)

    def list_keys(self, rank: int) -> KeyTimes:
        """List a rank's kernel keys, as `segments.measure_keys` does."""
        rows = self._digests[rank]["digest_keys"]
        every = self._join_key(rows["name_id"], rows["shape_id"])
        key, first, where = np.unique(every, return_index=True, return_inverse=True)
        count, total = np.zeros(len(key), np.int64), np.zeros(len(key), np.int64)
        np.add.at(count, where, rows["count"])
        np.add.at(total, where, rows["total_ns"])
        return KeyTimes(key, count, total, self._naming.family[rows["name_id"][first]])

    def tell_contention(self, rank: int) -> float | None:
        """Tell how much slower a rank's work is beside calls, as `overlap.measure_contention` does."""
        ratio = float(self._digests[rank]["digest_ranks"]["contention_ratio"][0])
        return None if np.isnan(ratio) else ratio

    def list_batches(self, rank: int) -> BatchSeries | None:
        """List a rank's annotated batches, as `batches.read_batches` does."""
        rows = self._digests[rank]["digest_batches"]
        if not len(rows["start_ns"]):
            return None
        return BatchSeries(rows["start_ns"], rows["requests"], rows["held_tokens"], rows["prompt_tokens"])

    def cut(
        self, rank: int, arrival_ns: IntArray, end_ns: IntArray, probe_keys: IntArray, fit: ClockFit | None
    ) -> Segments:
        """Account for a rank's time between meetings, as `segments.cut_segments` does of a lane.

        Args:
            arrival_ns, end_ns: `(n,)` the rank's meetings on the common axis, sorted by arrival.
            probe_keys: sorted keys of equal work.
            fit: carries the rank's own clock there.
        """
        rows = self._digests[rank]["digest_calls"]
        own = rows["arrival_ns"] if fit is None else fit.apply(rows["arrival_ns"])
        edges = np.concatenate([[0], np.searchsorted(own, arrival_ns, side="right")])
        probe = self._sum_probes(rank, edges, probe_keys)
        has_launches = bool(self._digests[rank]["digest_ranks"]["has_launches"][0])
        if len(own) == len(arrival_ns) and bool((np.diff(edges) == 1).all()):
            columns = {name: rows[name] for name in (*_SUMS, "attention_names", "ahead_ns")}
            idle = rows["idle_from_ns"], rows["idle_until_ns"]
        else:
            columns, idle = _merge(rows, own, arrival_ns, edges)
        return Segments(
            arrival_ns=arrival_ns,
            end_ns=end_ns,
            probe_ns=probe,
            contention_ns=np.zeros(len(arrival_ns), np.int64),
            has_launches=has_launches,
            idle_from_ns=idle[0],
            idle_until_ns=idle[1],
            **columns,
        )

    def _join_key(self, name_id: np.ndarray[Any, Any], shape_id: np.ndarray[Any, Any]) -> IntArray:
        return np.asarray(name_id.astype(np.int64) * self._n_shapes + shape_id)

    def _sum_probes(self, rank: int, edges: IntArray, probe_keys: IntArray) -> IntArray:
        """Sum the time in keys of equal work between edges that count the rank's calls."""
        parts, keys = self._digests[rank]["digest_parts"], self._digests[rank]["digest_keys"]
        is_probe = np.isin(self._join_key(keys["name_id"], keys["shape_id"]), probe_keys)
        busy = parts["busy_ns"] if is_probe.all() else parts["busy_ns"] * is_probe[parts["key"]]
        total = np.concatenate([[0], np.cumsum(busy, dtype=np.int64)])
        bounds = np.concatenate([[0], np.cumsum(self._digests[rank]["digest_calls"]["parts"], dtype=np.int64)])
        return np.asarray(np.diff(total[bounds[edges]]))


def _merge(
    rows: Columns, own_ns: IntArray, arrival_ns: IntArray, edges: IntArray
) -> tuple[dict[str, np.ndarray[Any, Any]], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Merge segments between calls into those between meetings; also the longest idle time within each.

    Args:
        own_ns: arrivals of the calls on the common axis.
        arrival_ns: of the meetings.
        edges: how many calls have come by each meeting, the first entry 0.
    """
    merged: dict[str, np.ndarray[Any, Any]] = {}
    for name in _SUMS:
        total = np.concatenate([[0], np.cumsum(rows[name], dtype=np.int64)])
        merged[name] = np.diff(total[edges]).astype(rows[name].dtype)
    n, most = len(arrival_ns), np.iinfo(np.int32).max
    filled = np.flatnonzero(edges[1:] > edges[:-1])
    names, ahead = np.zeros(n, np.int64), np.full(n, most, np.int32)
    idle_from, idle_until = np.zeros(n, np.int32), np.zeros(n, np.int32)
    if len(filled):
        first = edges[:-1][filled]
        stop = int(edges[-1])
        names[filled] = np.bitwise_or.reduceat(rows["attention_names"][:stop], first)
        lead = np.where(rows["host_ns"] > 0, most, rows["ahead_ns"])[:stop]
        ahead[filled] = np.minimum.reduceat(lead, first)
        idle = (rows["idle_from_ns"] - rows["idle_until_ns"])[:stop]
        longest = np.repeat(np.maximum.reduceat(idle, first), np.diff(edges)[filled])
        places = np.flatnonzero(idle == longest)
        place = places[np.searchsorted(places, first)]
        later = np.where(idle[place] > 0, arrival_ns[filled] - own_ns[place], 0)
        idle_from[filled] = np.clip(rows["idle_from_ns"][place] + later, -most, most)
        idle_until[filled] = np.clip(rows["idle_until_ns"][place] + later, -most, most)
    late = np.clip(merged["host_ns"], 0, most).astype(np.int32)
    merged |= {"attention_names": names, "ahead_ns": np.where(late > 0, -late, ahead)}
    return merged, (idle_from, idle_until)
