"""What is left of a recording in a digest: each rank's communication calls, and its work between them summed.

A digest stands in for the kernels when the recordings of many nodes are joined. Its tables are tables of a `Reading`
and of a `Trace` like those of `model.traces`, and ids in them point to the same names.
"""

from __future__ import annotations

from collections.abc import Mapping

from dprankdiag.model.schema import Column, Columns, Table, count_rows

DIGEST = "digest"
"""Kind of input."""

_RANK = Column("rank", "int16", "id", "position of the rank (in a Reading: of the actor)")
_NAME = Column("name_id", "int32", "id", "index into kernel_names")
_SHAPE = Column("shape_id", "int32", "id", "index into shapes")

DIGEST_CALLS = Table(
    "digest_calls",
    "one communication call of a rank with the segment of work before it, sorted by (rank, arrival_ns, start_ns)",
    (
        _RANK,
        Column("stream", "int32", "id", "CUDA stream as the file numbers it"),
        Column("start_ns", "int64", "ns", "start"),
        Column("end_ns", "int64", "ns", "end"),
        Column("arrival_ns", "int64", "ns", "when it could really begin"),
        _NAME,
        _SHAPE,
        Column("before_id", "int32", "id", "name of the row before it on its stream, -1 a copy, -2 none"),
        Column("before_shape_id", "int32", "id", "shape of that row; 0 where it is no kernel"),
        Column("attention_ns", "int32", "ns", "attention and KV writes in the segment"),
        Column("expert_ns", "int32", "ns", "expert GEMMs in the segment"),
        Column("work_ns", "int32", "ns", "work of all families in the segment, each instant once"),
        Column("host_ns", "int32", "ns", "idle time before the next launch had returned"),
        Column("content", "int64", "id", "equal for segments of equally many rows of each family; sums add up"),
        Column("attention_names", "int64", "id", "bit k stands for attention rows of phase k"),
        Column("sampled", "int16", "count", "sampling rows in the segment"),
        Column("prefill", "int16", "count", "prefill attention rows"),
        Column("decode", "int16", "count", "decode attention rows"),
        Column("in_graph", "int16", "count", "rows launched by a CUDA graph"),
        Column("idle_from_ns", "int32", "ns", "how long before the arrival the longest idle time begins"),
        Column("idle_until_ns", "int32", "ns", "how long before the arrival it ends"),
        Column("ahead_ns", "int32", "ns", "how much earlier the segment could begin before it stood idle for a launch"),
        Column("parts", "int16", "count", "rows of digest_parts that belong to the segment"),
    ),
)

DIGEST_PARTS = Table(
    "digest_parts",
    "the time of one kernel key in one segment, of keys that may turn out to be equal work, in the order of the calls",
    (
        _RANK,
        Column("key", "int32", "id", "row of digest_keys, counted within the rank"),
        Column("busy_ns", "int32", "ns", "time in the segment"),
    ),
)

DIGEST_KEYS = Table(
    "digest_keys",
    "one kernel key of a rank: work kernels of one name and launch shape",
    (
        _RANK,
        _NAME,
        _SHAPE,
        Column("count", "int64", "count", "kernels"),
        Column("total_ns", "int64", "ns", "their time, what overlaps on a stream once"),
    ),
)

DIGEST_BATCHES = Table(
    "digest_batches",
    "one annotated batch of a rank",
    (
        _RANK,
        Column("start_ns", "int64", "ns", "start of the first row launched after it was announced"),
        Column("requests", "float64", "count", "requests; NaN where not said"),
        Column("held_tokens", "float64", "tokens", "KV tokens held; NaN where not said"),
        Column("prompt_tokens", "float64", "tokens", "prompt tokens; NaN where not said"),
    ),
)

DIGEST_RANKS = Table(
    "digest_ranks",
    "one rank whose kernels were digested",
    (
        _RANK,
        Column("contention_ratio", "float64", "ratio", "how much slower work is beside calls; NaN if unknown"),
        Column("has_launches", "bool", "flag", "launch calls were recorded"),
    ),
)

DIGEST_TABLES = (DIGEST_CALLS, DIGEST_PARTS, DIGEST_KEYS, DIGEST_BATCHES, DIGEST_RANKS)


def is_digested(tables: Mapping[str, Columns]) -> bool:
    """Tell whether digests stand in for some or all kernels of a trace."""
    return count_rows(tables.get(DIGEST_RANKS.name, {})) > 0
