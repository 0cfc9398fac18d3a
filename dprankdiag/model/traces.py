"""What a profiler recorded, as tables.

`actor` is the position of a process-and-device in its `Reading` (as a reader leaves it), `rank` its position in
`Trace.ranks` (as `gather` leaves it): the column is called `rank` in both and only its meaning narrows.
Times are ns on the clock of the recording session, after `gather` on the common axis of the deployment.
"""

from __future__ import annotations

from dprankdiag.model.schema import Column, Table

_RANK = Column("rank", "int16", "id", "position of the rank (in a Reading: of the actor)")
_START = Column("start_ns", "int64", "ns", "start")
_END = Column("end_ns", "int64", "ns", "end, never before start")
_STREAM = Column("stream", "int32", "id", "CUDA stream as the file numbers it")
_THREAD = Column("thread", "int32", "id", "operating-system thread id")

KERNELS = Table(
    "kernels",
    "one kernel on a GPU, sorted by (rank, start_ns)",
    (
        _RANK,
        _STREAM,
        _START,
        _END,
        Column("name_id", "int32", "id", "index into kernel_names"),
        Column("shape_id", "int32", "id", "index into shapes: (gridX, gridY, gridZ, blockX, blockY, blockZ)"),
        Column("launch_ns", "int64", "ns", "end of the runtime call that launched it", nullable=True),
        Column("in_graph", "bool", "flag", "launched as a node of a CUDA graph"),
    ),
)

COPIES = Table(
    "copies",
    "one memory copy or set on a GPU",
    (
        _RANK,
        _STREAM,
        _START,
        _END,
        Column("kind", "int8", "id", "CUPTI copyKind (1 H2D, 2 D2H, 8 D2D, 10 P2P ...), 0 for a memset"),
        Column("size_bytes", "int64", "bytes", "bytes moved or set"),
        Column("launch_ns", "int64", "ns", "end of the runtime call that launched it", nullable=True),
    ),
)

SYNCS = Table(
    "syncs",
    "one synchronisation seen by the GPU tracer",
    (
        _RANK,
        Column("stream", "int32", "id", "stream waited for", nullable=True),
        _START,
        _END,
        Column("kind", "int8", "id", "CUPTI syncType: 1 event, 2 stream waits for event, 3 stream, 4 context"),
    ),
)

CALLS = Table(
    "calls",
    "one runtime or driver call that blocks its thread (synchronise, blocking copy, malloc, module load)",
    (_RANK, _THREAD, _START, _END, Column("name_id", "int32", "id", "index into call_names")),
)

RANGES = Table(
    "ranges",
    "one annotated range (NVTX push/pop or start/end), sorted by (rank, start_ns)",
    (
        _RANK,
        _THREAD,
        _START,
        _END,
        Column("name_id", "int32", "id", "index into range_names"),
        Column("domain_id", "int32", "id", "index into domain_names; 0 is the unnamed default domain"),
        Column("value", "int64", "count", "integer payload", nullable=True),
        Column("is_open", "bool", "flag", "never closed by the program; its end is the end of the capture"),
    ),
)

GRAPH_REPLAYS = Table(
    "graph_replays",
    "one replay of a CUDA graph recorded as a whole (its kernels are not visible)",
    (_RANK, _STREAM, _START, _END, Column("graph_id", "int64", "id", "graph or graph-exec id", nullable=True)),
)

OS_CALLS = Table(
    "os_calls",
    "one operating-system call of a rank's process",
    (_RANK, _THREAD, _START, _END, Column("name_id", "int32", "id", "index into call_names")),
)

OVERHEADS = Table(
    "overheads",
    "time the profiler itself took; never work",
    (_RANK, _START, _END),
)

MESSAGES = Table(
    "messages",
    "what the recording says of one communication kernel; found by (rank, stream, start_ns)",
    (
        _RANK,
        _STREAM,
        _START,
        _END,
        Column("group_id", "int32", "id", "index into group_names: the process group", nullable=True),
        Column("sequence", "int64", "count", "number of the collective within its group", nullable=True),
        Column("size_bytes", "int64", "bytes", "what the rank put in; absent where not said", nullable=True),
    ),
)

TRACE_TABLES = (KERNELS, COPIES, SYNCS, CALLS, RANGES, GRAPH_REPLAYS, OS_CALLS, OVERHEADS, MESSAGES)
