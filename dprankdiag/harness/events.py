"""What happened on a deployment, event by event, before any profiler's file format.

Times are integer nanoseconds on one true clock. Rows are numpy columns of equal length, one set a rank; `name` columns
index into the texts of the `Recording`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

import numpy as np

Array = np.ndarray[Any, Any]

NO_VALUE = -1
"""A range without a payload; payloads count from 0."""

NOT_IN_GRAPH = -1
"""A kernel that was launched by a call of its own."""

NO_EVENT = -1
"""A wait for something else than an event."""

NO_DEVICE = -1
"""The device and GPU of a process that uses none."""

COPY_TO_DEVICE = 1
COPY_TO_HOST = 2
SYNC_EVENT = 1
SYNC_STREAM_WAIT = 2
SYNC_STREAM = 3

GraphMode = Literal["node", "graph"]

UTC_START_NS = 1_781_000_000_000_000_000
"""UTC time at true time 0."""


@dataclass(frozen=True, slots=True)
class KernelRows:
    """Kernels of a rank; `node` is the node inside a replayed CUDA graph or NOT_IN_GRAPH."""

    start_ns: Array
    end_ns: Array
    stream: Array
    name: Array
    grid_x: Array
    grid_y: Array
    block_x: Array
    call: Array
    node: Array


@dataclass(frozen=True, slots=True)
class CopyRows:
    """Memory copies of a rank; `kind` is COPY_TO_DEVICE or COPY_TO_HOST."""

    start_ns: Array
    end_ns: Array
    stream: Array
    kind: Array
    size_bytes: Array
    call: Array


@dataclass(frozen=True, slots=True)
class ClearRows:
    """Memory of a rank's GPU set to zero; `node` as for kernels."""

    start_ns: Array
    end_ns: Array
    stream: Array
    size_bytes: Array
    call: Array
    node: Array


@dataclass(frozen=True, slots=True)
class CallRows:
    """Runtime and driver calls of a rank's thread; `call` is what kernels and copies refer to."""

    start_ns: Array
    end_ns: Array
    name: Array
    call: Array


@dataclass(frozen=True, slots=True)
class SyncRows:
    """Waits, at the time of the call that asks for them; `kind` is SYNC_EVENT, SYNC_STREAM or SYNC_STREAM_WAIT.

    The host waits for an event or a stream; with SYNC_STREAM_WAIT `stream` waits for an event. `event` is NO_EVENT or
    the event's number, `record` that of the recording waited for.
    """

    start_ns: Array
    end_ns: Array
    stream: Array
    kind: Array
    call: Array
    event: Array
    record: Array


@dataclass(frozen=True, slots=True)
class EventRows:
    """Events recorded on a stream, at the time of the call; an event is recorded again and again, each time anew."""

    start_ns: Array
    end_ns: Array
    stream: Array
    event: Array
    record: Array
    call: Array


@dataclass(frozen=True, slots=True)
class RangeRows:
    """Push/pop annotations of a rank's thread; `value` is an integer payload or NO_VALUE."""

    start_ns: Array
    end_ns: Array
    name: Array
    value: Array


@dataclass(frozen=True, slots=True)
class ReplayRows:
    """CUDA graph replays recorded as a whole."""

    start_ns: Array
    end_ns: Array
    stream: Array
    graph: Array
    call: Array


Rows = TypeVar("Rows", KernelRows, CopyRows, ClearRows, CallRows, SyncRows, EventRows, RangeRows, ReplayRows)


def empty_rows(kind: type[Rows]) -> Rows:
    """Make rows of a kind without any row."""
    return kind(**{column.name: np.zeros(0, np.int64) for column in fields(kind)})


def join_rows(kind: type[Rows], parts: list[Rows]) -> Rows:
    """Put rows of a kind behind each other."""
    names = [column.name for column in fields(kind)]
    return kind(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def keep_rows(rows: Rows, begin_ns: int, end_ns: int) -> Rows:
    """Keep the rows that lie inside a span, in order of start."""
    inside = np.flatnonzero((rows.start_ns >= begin_ns) & (rows.end_ns <= end_ns))
    order = inside[np.argsort(rows.start_ns[inside], kind="stable")]
    return type(rows)(**{column.name: getattr(rows, column.name)[order] for column in fields(rows)})


def pick_rows(rows: Rows, chosen: Array) -> Rows:
    """Keep the rows marked in a bool column."""
    return type(rows)(**{column.name: getattr(rows, column.name)[chosen] for column in fields(rows)})


@dataclass(frozen=True, slots=True)
class RankRows:
    """All events of one rank."""

    kernels: KernelRows
    copies: CopyRows
    clears: ClearRows
    calls: CallRows
    syncs: SyncRows
    events: EventRows
    ranges: RangeRows
    replays: ReplayRows


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel's name with its template arguments, and the short one a profiler shows."""

    demangled: str
    short: str


@dataclass(frozen=True, slots=True)
class Collective:
    """What a launched collective tells a profiler that listens to the communication library.

    Attributes:
        name: the library's name for the operation.
        among: who meets: all ranks, or those that share attention.
        input_elements, output_elements: of one rank.
    """

    name: str
    among: Literal["world", "group"]
    input_elements: int
    output_elements: int
    dtype: str = "BFloat16"


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A communicator's members, under the name that all ranks count up to.

    Attributes:
        among: which collectives run in it; None for the default and for CPU groups.
    """

    name: str
    description: str
    backend: str
    ranks: tuple[int, ...]
    among: Literal["world", "group"] | None = None


@dataclass(frozen=True, slots=True)
class RangeText:
    """An annotation's text and its domain; "" is the default domain."""

    text: str
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """The process of one rank.

    Attributes:
        title: the whole process title, which names the rank.
        thread_title: the program also names its thread so, in full; otherwise only the kernel's 15 bytes are known.
        device: CUDA ordinal inside the process; NO_DEVICE if it uses no GPU.
        gpu: position of the GPU on its host; NO_DEVICE if it uses none.
        gpu_skew_ns: constant error of this GPU's time stamps against its host's clock.
    """

    pid: int
    title: str
    thread_title: bool
    device: int
    gpu: int
    host: str
    gpu_skew_ns: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands: which DP rank it belongs to, its position in the attention group and among the experts."""

    dp: int
    attention: int
    expert: int


@dataclass(frozen=True, slots=True)
class Recording:
    """A deployment's events: one process and one set of rows a rank.

    Attributes:
        graph_mode: how replays were recorded; None if none happened.
        command: command line of the launched program.
        collectives: by kernel text; None for own work and for collectives that no library announces.
        groups: every communicator of the deployment.
        places: position of every rank in the deployment, by parallel dimension.
    """

    processes: tuple[Process, ...]
    rows: tuple[RankRows, ...]
    kernel_texts: tuple[KernelText, ...]
    call_texts: tuple[str, ...]
    range_texts: tuple[RangeText, ...]
    graph_mode: GraphMode | None
    command: tuple[str, ...]
    collectives: tuple[Collective | None, ...]
    groups: tuple[ProcessGroup, ...]
    places: tuple[Place, ...]

    @property
    def kernel_count(self) -> int:
        """Count the kernels of all ranks."""
        return sum(len(rows.kernels.start_ns) for rows in self.rows)


@dataclass(frozen=True, slots=True)
class FileClock:
    """The clock of one recording session, and how it errs.

    Attributes:
        session_start_ns: true time at which the session's time 0 lies.
        wall_error_ns: error of the host's wall clock (what UTC stamps of the session carry).
        drift_ppm: how much faster than true time the session's clock runs.
        boot_ns: the host's boot-type clock at true time 0.
    """

    session_start_ns: int = 0
    wall_error_ns: int = 0
    drift_ppm: float = 0.0
    boot_ns: int = 4_000_000_000_000

    def read(self, true_ns: Array, skew_ns: int = 0) -> Array:
        """Turn true times into session times."""
        elapsed = true_ns - self.session_start_ns + skew_ns
        if self.drift_ppm == 0.0:
            return elapsed
        return elapsed + np.rint(elapsed * (self.drift_ppm * 1e-6)).astype(np.int64)

    def read_wall(self, true_ns: Array, skew_ns: int = 0) -> Array:
        """Turn true times into the host's wall clock, in ns since 1970, whenever the session started."""
        wall: Array = true_ns + (UTC_START_NS + self.wall_error_ns + skew_ns)
        if self.drift_ppm:
            wall = wall + np.rint(true_ns * (self.drift_ppm * 1e-6)).astype(np.int64)
        return wall
