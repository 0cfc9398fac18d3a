"""The small tables of a bundle, on which views and joins rest when the recording is gone.

`group` is the ordinal of the lockstep group in the diagnosis, `step` the ordinal of a step in its group, `kind` the
ordinal of the kind of step in its group (0 is the most frequent), `position` the ordinal of a rank's own meeting in its
step, and `rank` the rank's number. Times are ns, moments on the deployment's axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dprankdiag.model.schema import ABSENT_ID, Column, Columns, Table

WORK = ("attention", "expert", "probe", "other", "contention")
"""What a rank is busy with: attention and KV writes, expert GEMMs, work equal on all ranks, other work, and how much
longer all that took because collectives ran beside it."""

IDLE = ("host", "rest")
"""Idle time before the launch had returned, and all other idle time."""

COMPONENTS = (*WORK, *IDLE)
"""What a segment consists of; the parts add up to it."""

_GROUP = Column("group", "int16", "id", "lockstep group")
_STEP = Column("step", "int32", "id", "step of the group, in order of time")
_KIND = Column("kind", "int16", "id", "kind of step")
_POSITION = Column("position", "int32", "id", "meeting of the step")
_RANK = Column("rank", "int32", "id", "rank number")
_START = Column("start_ns", "int64", "ns", "start")
_END = Column("end_ns", "int64", "ns", "end")
_PARTS = (
    *(Column(f"{name}_ns", "int64", "ns", f"{name} time between meetings") for name in COMPONENTS),
    Column(
        "wait_ns", "int64", "ns", "from the own arrival to the last one, and between steps for the hosts of other ranks"
    ),
    Column("exit_ns", "int64", "ns", "end of the own call after the median end; may be negative"),
    Column("transfer_ns", "int64", "ns", "from the last arrival to the median end"),
)

MEMBERS = Table(
    "members",
    "one rank of a lockstep group",
    (_GROUP, _RANK, Column("engine", "object", "name", "engine as in the diagnosis; unique together with rank")),
)

KINDS = Table(
    "kinds",
    "one kind of step of a group",
    (
        _GROUP,
        _KIND,
        Column("name", "object", "name", "decode, prefill, mixed, ..."),
        Column("steps", "int32", "count", "steps of that kind"),
        Column("median_ns", "int64", "ns", "median length of such a step"),
    ),
)

STEPS = Table("steps", "one step of a group", (_GROUP, _STEP, _KIND, _START, _END))

RANK_STEPS = Table("rank_steps", "one rank's step, summed over its meetings", (_GROUP, _STEP, _RANK, *_PARTS))

POSITIONS = Table(
    "positions",
    "one meeting of a kind of step",
    (
        _GROUP,
        _KIND,
        _POSITION,
        Column("layer", "int32", "id", "gather-scatter pair, -1 before the first attention"),
        Column("side", "object", "name", "pre (before the gather), post, both or none"),
        Column("operation", "object", "name", "what the ranks meet for"),
    ),
)

LAYERS = Table(
    "layers",
    "one rank's meeting of a kind of step, mean over the steps of that kind",
    (_GROUP, _KIND, _POSITION, Column("layer", "int32", "id", "as in positions"), _RANK, *_PARTS),
)

ARRIVALS = Table(
    "arrivals",
    "one rank's lag behind the median arrival of its meetings, over all steps; negative is early",
    (
        _GROUP,
        _RANK,
        Column("meetings", "int64", "count", "meetings it took part in"),
        Column("last", "int64", "count", "of them, those that it reached last"),
        *(
            Column(f"lag_p{percent:02d}_ns", "int64", "ns", f"{percent} per cent of its lags are at most so large")
            for percent in (5, 25, 50, 75, 95)
        ),
        Column("lag_max_ns", "int64", "ns", "its largest lag"),
    ),
)

WORST_STEPS = Table(
    "worst_steps",
    "the worst step of a group: the longest mean wait against the median length of its kind of step",
    (
        _GROUP,
        _STEP,
        _KIND,
        Column("wait_ns", "int64", "ns", "mean over the ranks of what they wait in it"),
        Column("median_ns", "int64", "ns", "median length of its kind of step"),
    ),
)

WORST_MEETINGS = Table(
    "worst_meetings",
    "one rank's meeting in the worst step, with the segment before it: start <= arrival <= arrival + wait <= end",
    (
        _GROUP,
        _POSITION,
        _RANK,
        _START,
        Column("arrival_ns", "int64", "ns", "moment at which its segment ends and its call begins"),
        Column("wait_ns", "int64", "ns", "from its arrival to the last one"),
        Column("end_ns", "int64", "ns", "end of its call; what follows the wait is transfer"),
        Column("work_ns", "int64", "ns", "work in its segment; the rest of the segment is idle"),
        Column("last_rank", "int32", "id", "rank that came last to what is waited for; -1 if unknown", nullable=True),
        Column(
            "awaited",
            "int32",
            "id",
            "position of the meeting waited for: the own, of a join that of its call; -1 if unknown",
            nullable=True,
        ),
    ),
)

REPLAY_FAMILY = "graph replay"
"""Family of a CUDA graph that was recorded as a whole."""

STEP_KERNELS = Table(
    "step_kernels",
    "one kernel, copy or whole-graph replay of the worst step, of the ranks there is room for, sorted by (rank, start)",
    (
        _GROUP,
        _STEP,
        _RANK,
        Column("stream", "int32", "id", "CUDA stream as the file numbers it"),
        _START,
        _END,
        Column("own_ns", "int64", "ns", "its time after the rows before it on its stream had ended"),
        Column("idle_ns", "int64", "ns", "right before it, in which nothing ran on the GPU"),
        Column("host_ns", "int64", "ns", "part of that before its launch had returned; -1 if unknown"),
        Column("family", "object", "name", "family of the kernel; `graph replay` of a CUDA graph recorded as a whole"),
        Column("name", "object", "name", "demangled name as recorded"),
    ),
)

BLAME = Table(
    "blame",
    "one rank that waits and one that it waits for, over all steps; both times add up to what the rank waits",
    (
        _GROUP,
        Column("rank", "int32", "id", "rank that waits"),
        Column(
            "blamed",
            "int32",
            "id",
            "rank that it waits for; -1 of those that are not known, or of very many ranks not told apart",
            nullable=True,
        ),
        Column("last_ns", "int64", "ns", "waited at meetings to which the other came last"),
        Column(
            "caused_ns",
            "int64",
            "ns",
            "waited, as far as that leads back to the other; what came last may have inherited its lateness",
        ),
    ),
)

BLAME_STEPS = Table(
    "blame_steps",
    "one rank's step in which others wait because of it",
    (
        _GROUP,
        _STEP,
        _RANK,
        Column("caused_ns", "int64", "ns", "waited by all others together, as far as that leads back to it"),
    ),
)

RESULT_TABLES = (
    MEMBERS,
    KINDS,
    STEPS,
    RANK_STEPS,
    POSITIONS,
    LAYERS,
    ARRIVALS,
    WORST_STEPS,
    WORST_MEETINGS,
    STEP_KERNELS,
    BLAME,
    BLAME_STEPS,
)


def find_table(tables: Mapping[str, Mapping[str, np.ndarray[Any, Any]]], table: Table) -> Columns | None:
    """Return the declared columns of a saved table; None if the table or a column of it was not saved.

    Columns that a newer version added are left out; ids that may be absent are, where an older version saved none.

    Raises:
        TableError: a column is of another kind of dtype or of another length.
    """
    saved = dict(tables.get(table.name, {}))
    names = [column.name for column in table.columns]
    if saved:
        absent = np.full(len(next(iter(saved.values()))), ABSENT_ID)
        saved = {column.name: absent.astype(column.dtype) for column in table.columns if column.nullable} | saved
    if any(name not in saved for name in names):
        return None
    return table.check({name: saved[name] for name in names})
