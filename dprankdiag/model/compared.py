"""What a bundle keeps of a recording so that another can be held against it: tables of steps, work and transfers.

`group` is the position of a lockstep group in the diagnosis, `kind` that of a kind of step within its group.
"""

from __future__ import annotations

from dprankdiag.model.schema import Column, Table

_GROUP = Column("group", "int16", "id", "lockstep group")
_KIND = Column("kind", "int16", "id", "kind of step within the group")
_STEP = Column("step", "int32", "id", "ordinal of the step within the group")

GROUPS = Table(
    "groups",
    "one lockstep group of ranks",
    (
        _GROUP,
        Column("engine", "object", "text", "engine of its ranks, as in the diagnosis"),
        Column("ranks", "int16", "count", "ranks that were recorded"),
        Column("missing", "int16", "count", "ranks of the deployment that were not recorded"),
        Column("team", "int16", "count", "ranks that share one DP rank's requests"),
        Column("basis", "object", "text", "how its steps were cut"),
        Column("has_kernels", "bool", "flag", "GPU kernels were recorded, not annotated ranges"),
        Column("trusted", "bool", "flag", "the replay predicts steps well enough to give lost time"),
    ),
)

COMPARED_KINDS = Table(
    "compared_kinds",
    "one kind of step of a group, by what tells it from others",
    (
        _GROUP,
        _KIND,
        Column("name", "object", "text", "decode, prefill, mixed ..."),
        Column("order", "object", "text", "digest of the operations a step meets in, with the size of each meeting"),
        Column("meetings", "int32", "count", "collectives a step"),
        Column("requests", "float64", "count", "mean requests of all ranks in a step, from annotations", nullable=True),
        Column("held_tokens", "float64", "tokens", "mean KV tokens of all ranks in a step, likewise", nullable=True),
        Column("prefill_tokens", "float64", "tokens", "mean prompt tokens of all ranks in a step", nullable=True),
    ),
)

STEP_WALLS = Table(
    "step_walls",
    "one step of a group, in order of time",
    (
        _GROUP,
        _STEP,
        _KIND,
        Column("measured_ns", "float64", "ns", "wall time, replayed as measured"),
        Column("balanced_ns", "float64", "ns", "wall time, replayed without every claim"),
    ),
)

STEP_LOSSES = Table(
    "step_losses",
    "what one finding costs in one step",
    (
        _GROUP,
        _STEP,
        Column("finding", "int16", "id", "number of the finding: 1 for f1"),
        Column("lost_ns", "float64", "ns", "its share of the lost time"),
        Column("spread_ns", "float64", "ns", "how far that may be off in all steps alike (a standard deviation)"),
        Column("is_covered", "bool", "flag", "the finding is about this step"),
    ),
)

KERNELS_USED = Table(
    "kernels_used",
    "one kernel (name and launch shape) on one rank of a group; the ones that take longest",
    (
        _GROUP,
        Column("name", "object", "text", "demangled name"),
        Column("shape", "object", "text", "grid and block, x,y,z each"),
        Column("family", "object", "text", "family of the name"),
        Column("is_equal_work", "bool", "flag", "equal work on every rank of the group"),
        Column("rank", "int32", "id", "rank"),
        Column("calls", "int64", "count", "calls in the whole recording"),
        Column("total_ns", "int64", "ns", "their time together"),
    ),
)

STEP_TRANSFERS = Table(
    "step_transfers",
    "the transfers of one operation in one step of a group",
    (
        _GROUP,
        _STEP,
        Column("operation", "object", "text", "all_gather, reduce_scatter ..."),
        Column("members", "int16", "count", "ranks that meet"),
        Column("calls", "int32", "count", "meetings of a rank in the step"),
        Column("transfer_ns", "float64", "ns", "from the last arrival to the group's end, summed, mean of the ranks"),
    ),
)

COMPARED_TABLES = (GROUPS, COMPARED_KINDS, STEP_WALLS, STEP_LOSSES, KERNELS_USED, STEP_TRANSFERS)
