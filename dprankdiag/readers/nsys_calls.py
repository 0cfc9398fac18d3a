"""Read the runtime calls of an export: when each kernel was launched, and which calls blocked their thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.model.schema import ABSENT_NS, Columns, count_rows
from dprankdiag.model.traces import CALLS
from dprankdiag.readers.base import Array
from dprankdiag.readers.call_names import is_blocking, launches_graph
from dprankdiag.readers.column_buffer import ColumnBuffer
from dprankdiag.readers.nsys_actors import ActorIndex, process_keys, thread_ids
from dprankdiag.readers.nsys_export import NsysExport, pack, want
from dprankdiag.readers.nsys_names import fetch_texts
from dprankdiag.readers.row_order import sort_rows, split_ranks
from dprankdiag.readers.vocabulary import Vocabulary

TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"
_SPARSE_SPAN = 16
_WANTED = (
    want("start", absent=ABSENT_NS),
    want("end", absent=ABSENT_NS),
    want("globalTid"),
    pack(lambda call, name: (call << 32) | (name & 0xFFFFFFFF), want("correlationId"), want("nameId", absent=-1)),
)
_DTYPES = {column.name: column.dtype for column in CALLS.columns}


@dataclass(frozen=True, slots=True)
class RuntimeCalls:
    """What the runtime calls say.

    Attributes:
        launch_ns: end of the launching call of each kernel, ABSENT_NS where none was recorded.
        copy_launch_ns: the same of each copy.
        blocking: rows of CALLS; `name_id` counts in `names`.
        names: names of the blocking calls.
        launches_graphs: a CUDA graph was launched.
    """

    launch_ns: Array
    copy_launch_ns: Array
    blocking: Columns
    names: tuple[str, ...]
    launches_graphs: bool


class LaunchTable:
    """Ends of calls by (process, correlation id), as far as kernels and copies ask for them.

    Correlation ids repeat between processes. They are dense in one process, so a plain table over their span serves;
    where they are not (a sliced export), a sorted list of the ids in use does.
    """

    def __init__(self, kernels: Columns, copies: Columns, actors: ActorIndex) -> None:
        self._correlation = kernels["correlation"]
        self._slices = _join_processes(split_ranks(kernels, len(actors)), actors)
        self._copies = copies
        self._used: dict[int, Array] = {}
        self._low = np.zeros(max(len(actors), 1), np.int64)
        self._high = np.full(max(len(actors), 1), -1, np.int64)
        self._base = np.zeros(max(len(actors), 1), np.int64)
        size = 0
        for actor, rows in self._slices.items():
            ids = self._correlation[rows]
            others = copies["correlation"][copies["owner"] == actor]
            ids = np.concatenate([ids, others]) if len(others) else ids
            low, high = int(ids.min()), int(ids.max())
            self._low[actor], self._high[actor], self._base[actor] = low, high, size - low
            span = high - low + 1
            if span > _SPARSE_SPAN * len(ids) + 1_000_000:
                self._used[actor] = np.unique(ids)
                span, self._base[actor] = len(self._used[actor]), size
            size += max(span, rows.stop - rows.start)
        self._ends = np.full(size, ABSENT_NS, np.int64)

    def note(self, actor: Array, correlation: Array, end: Array) -> None:
        """Store the ends of calls whose correlation ids are asked for; the last call of an id wins."""
        owner = np.maximum(actor, 0)
        asked = (actor >= 0) & (correlation >= self._low[owner]) & (correlation <= self._high[owner])
        for sparse, used in self._used.items():
            rows = np.flatnonzero(asked & (actor == sparse))
            place = np.searchsorted(used, correlation[rows])
            same = used[place] == correlation[rows]
            self._ends[self._base[sparse] + place[same]] = end[rows[same]]
            asked &= actor != sparse
        self._ends[self._base[owner[asked]] + correlation[asked]] = end[asked]

    def look_up_copies(self) -> Array:
        """Return the end of the call of every copy."""
        launch = np.full(count_rows(self._copies), ABSENT_NS, np.int64)
        for actor in self._slices:
            rows = np.flatnonzero((self._copies["owner"] == actor) & (self._copies["correlation"] != 0))
            ids = self._copies["correlation"][rows]
            place = np.searchsorted(self._used[actor], ids) if actor in self._used else ids
            launch[rows] = self._ends[self._base[actor] + place]
        return launch

    def look_up(self) -> Array:
        """Return the end of the call of every kernel; the table is spent afterwards.

        Each process has at least a place a kernel, so the answers go where the questions were: a long table and its
        answers are never held side by side.
        """
        done = 0
        for actor, rows in self._slices.items():
            ids = self._correlation[rows]
            place = np.searchsorted(self._used[actor], ids) if actor in self._used else ids.astype(np.int64)
            found = self._ends[self._base[actor] + place]
            found[ids == 0] = ABSENT_NS
            self._ends[done : done + len(ids)] = found
            done += len(ids)
        return self._ends[:done]


def read_calls(db: NsysExport, kernels: Columns, copies: Columns, actors: ActorIndex) -> RuntimeCalls:
    """Read the runtime table once: launches of the kernels and copies, and blocking calls of the actors.

    Args:
        copies: with `owner`, the first actor of the copying process, and `correlation`.
    """
    launches, names = LaunchTable(kernels, copies, actors), _CallNames(db)
    buffer = ColumnBuffer(_DTYPES, 1024)
    for start, end, thread, call in db.batches(TABLE, _WANTED):
        actor = actors.find_processes(process_keys(thread))
        launches.note(actor, (call >> 32) & 0xFFFFFFFF, end)
        code, blocks = names.judge((call << 32) >> 32)  # the shifts bring the sign back
        kept = np.flatnonzero(blocks & (actor >= 0) & (start != ABSENT_NS) & (end >= start))
        buffer.append(
            {
                "rank": actor[kept],
                "thread": thread_ids(thread[kept]),
                "start_ns": start[kept],
                "end_ns": end[kept],
                "name_id": code[kept],
            }
        )
    blocking = sort_rows(buffer.finish())
    used, blocking["name_id"] = np.unique(blocking["name_id"], return_inverse=True)
    blocking["name_id"] = blocking["name_id"].astype(np.int32)
    copy_launch_ns = launches.look_up_copies()
    return RuntimeCalls(
        launches.look_up(),
        copy_launch_ns,
        blocking,
        tuple(names.texts[code] for code in used.tolist()),
        names.launches_graphs,
    )


class _CallNames:
    """Looks up each call name once and says whether the call blocks its thread."""

    def __init__(self, db: NsysExport) -> None:
        self._db, self._ids, self._blocks = db, Vocabulary(), np.empty(0, bool)
        self.texts: list[str] = []
        self.launches_graphs = False

    def judge(self, name_ids: Array) -> tuple[Array, Array]:
        code = self._ids.encode(name_ids)
        fresh = self._ids.values()[len(self.texts) :].tolist()
        if fresh:
            found = fetch_texts(self._db, fresh)
            self.texts += [found[number] for number in fresh]
            self._blocks = np.array([is_blocking(text) for text in self.texts])
            self.launches_graphs |= any(launches_graph(found[number]) for number in fresh)
        return code, self._blocks[code]


def _join_processes(slices: list[slice], actors: ActorIndex) -> dict[int, slice]:
    """Join the rows of all devices of one process (they are neighbours) under its first actor."""
    joined: dict[int, slice] = {}
    first = 0
    for actor, rows in enumerate(slices):
        if actor and actors.process_key(actor) != actors.process_key(first):
            first = actor
        start = joined[first].start if first in joined else rows.start
        joined[first] = slice(start, rows.stop)
    return {actor: rows for actor, rows in joined.items() if rows.stop > rows.start}
