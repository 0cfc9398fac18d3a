"""Read the NVTX rows of an export in one pass: ranges, thread names, domain names."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from dprankdiag.model.schema import ABSENT_NS, Columns, take_rows
from dprankdiag.model.traces import RANGES
from dprankdiag.readers.base import Array
from dprankdiag.readers.column_buffer import ColumnBuffer
from dprankdiag.readers.nsys_actors import ActorIndex, process_keys, thread_ids
from dprankdiag.readers.nsys_export import CutText, NsysExport, OneOf, want, want_flag
from dprankdiag.readers.nsys_names import fetch_texts
from dprankdiag.readers.row_order import sort_rows
from dprankdiag.readers.vocabulary import Vocabulary

TABLE = "NVTX_EVENTS"
# Source: ENUM_NSYS_EVENT_TYPE of exports since schema 3.0.0.
_THREAD_NAME, _PUSH_POP, _START_END, _DOMAIN_NAME = 39, 59, 60, 75
_NO_TEXT = -1
# PyTorch appends serial numbers and shapes: each call would be a name of its own.
# Source: pytorch@v2.4 torch/csrc/profiler/standalone/nvtx_observer.cpp, and the exports it leaves behind.
_SERIALS = (", seq = ", ", op_id = ", ", sizes = ")
_SERIAL_TAIL = re.compile(r", (?:seq|op_id) = -?\d+.*|, sizes = .*", re.DOTALL)
_ROWS = OneOf("eventType", (_THREAD_NAME, _PUSH_POP, _START_END, _DOMAIN_NAME))
_WANTED = (
    want("start", absent=ABSENT_NS),
    want("end", absent=ABSENT_NS),
    want("eventType"),
    want("globalTid"),
    want("domainId"),
    want("textId", absent=-1),
    want("int64Value", "uint64Value", "int32Value", "uint32Value", absent=ABSENT_NS),
    want_flag("jsonText", "jsonTextId"),
)
_DTYPES = {
    "start_ns": "int64",
    "end_ns": "int64",
    "kind": "int8",
    "thread": "int32",
    "domain": "int32",
    "text": "int32",
    "value": "int64",
}


@dataclass(frozen=True, slots=True)
class RawRanges:
    """NVTX rows before their actors are known.

    Attributes:
        columns: as `_DTYPES`; `thread` is a position in `threads`, `text` one in `texts` (-1 for none), `domain` one
            in `domains`.
        threads: globalTids.
        texts: names without serial numbers.
        domains: `(process key, domain id)`.
        domain_names: names of the domains that announce themselves.
        thread_names: `(globalTid, name)` that programs gave their threads.
        has_payloads: rows carry JSON payloads.
    """

    columns: Columns
    threads: Array
    texts: tuple[str, ...]
    domains: list[tuple[int, int]]
    domain_names: dict[tuple[int, int], str]
    thread_names: tuple[tuple[int, str], ...]
    has_payloads: bool

    def process_keys(self) -> list[int]:
        """Return the processes that have ranges."""
        used = np.unique(self.columns["thread"])
        return sorted(set(process_keys(self.threads[used]).tolist())) if len(used) else []


@dataclass(frozen=True, slots=True)
class PlacedRanges:
    """Ranges of the actors, as the RANGES table, with the names its ids point to."""

    columns: Columns
    names: tuple[str, ...]
    domain_names: tuple[str, ...]
    opened: int


def read_ranges(db: NsysExport) -> RawRanges:
    """Read all ranges, in file order, and the names of threads and domains."""
    texts: dict[str, int] = {"": 0}
    ids, threads, domains = Vocabulary(), Vocabulary(), Vocabulary()
    buffer = ColumnBuffer(_DTYPES, min(db.bound_rows(TABLE), 1 << 22) if db.has(TABLE, "eventType") else 0)
    payloads = False
    if not db.has(TABLE, "eventType"):
        return RawRanges(buffer.finish(), threads.values(), (), [], {}, (), False)
    for start, end, kind, thread, domain, text_id, value, payload, text in db.batches(
        TABLE, _WANTED, where=_ROWS, text=CutText("text", _SERIALS), texts=texts
    ):
        payloads |= bool(payload.any())
        by_id = (text == 0) & (text_id >= 0)
        named = np.where(text == 0, _NO_TEXT, text << 1)
        named[by_id] = (ids.encode(text_id[by_id]).astype(np.int64) << 1) | 1
        buffer.append(
            {
                "start_ns": start,
                "end_ns": end,
                "kind": kind,
                "thread": threads.encode(thread),
                "domain": domains.encode((process_keys(thread) << 24) | (domain & 0xFFFFFF)),
                "text": named,
                "value": value,
            }
        )
    columns = buffer.finish()
    names = _join_names(db, columns, list(texts), ids)
    keys = [(key >> 24, key & 0xFFFFFF) for key in domains.values().tolist()]
    return _split_rows(columns, threads.values(), names, keys, payloads)


def place_ranges(raw: RawRanges, actors: ActorIndex, capture_end_ns: int) -> PlacedRanges:
    """Put actors in place of threads, close what was never popped, and sort by (actor, start)."""
    columns = raw.columns
    owner = (
        actors.find_processes(process_keys(raw.threads))[columns["thread"]]
        if len(raw.threads)
        else np.empty(0, np.int16)
    )
    is_open = columns["end_ns"] == ABSENT_NS
    end = np.where(is_open, np.maximum(capture_end_ns, columns["start_ns"]), columns["end_ns"])
    kept = np.flatnonzero((owner >= 0) & (columns["start_ns"] != ABSENT_NS) & (end >= columns["start_ns"]))
    names, name_id = _keep_used(raw.texts, columns["text"][kept])
    domain_names, domain_id = _name_domains(raw, columns["domain"][kept], names, name_id)
    placed = {
        "rank": owner[kept].astype(np.int16),
        "thread": (thread_ids(raw.threads)[columns["thread"][kept]] if len(kept) else kept).astype(np.int32),
        "start_ns": columns["start_ns"][kept],
        "end_ns": end[kept],
        "name_id": name_id,
        "domain_id": domain_id,
        "value": columns["value"][kept],
        "is_open": is_open[kept],
    }
    return PlacedRanges(RANGES.check(sort_rows(placed)), names, domain_names, int(is_open[kept].sum()))


def strip_serials(name: str) -> str:
    """Remove the serial numbers and shapes that PyTorch appends to a range's name."""
    return _SERIAL_TAIL.sub("", name)


def _join_names(db: NsysExport, columns: Columns, texts: list[str], ids: Vocabulary) -> tuple[str, ...]:
    """Turn the column `text` (even: number of a text, odd: code of a text id) into positions of one list of names."""
    looked_up = fetch_texts(db, ids.values().tolist())
    pool: dict[str, int] = {}
    by_text = [pool.setdefault(text.split("\0", 1)[0], len(pool)) for text in texts]
    by_id = [pool.setdefault(strip_serials(looked_up[number]), len(pool)) for number in ids.values().tolist()]
    code = columns["text"]
    positions = np.full(2 * max(len(by_text), len(by_id)) + 1, _NO_TEXT, np.int32)
    positions[0 : 2 * len(by_text) : 2] = by_text
    positions[1 : 2 * len(by_id) + 1 : 2] = by_id
    columns["text"] = np.where(code < 0, _NO_TEXT, positions[np.maximum(code, 0)])
    return tuple(pool)


def _split_rows(
    columns: Columns, threads: Array, names: tuple[str, ...], domains: list[tuple[int, int]], payloads: bool
) -> RawRanges:
    kind = columns["kind"]
    thread_names: list[tuple[int, str]] = []
    domain_names: dict[tuple[int, int], str] = {}
    for row in np.flatnonzero(((kind == _THREAD_NAME) | (kind == _DOMAIN_NAME)) & (columns["text"] >= 0)).tolist():
        name = names[columns["text"][row]]
        if kind[row] == _THREAD_NAME:
            thread_names.append((int(threads[columns["thread"][row]]), name))
        else:
            domain_names[domains[columns["domain"][row]]] = name
    is_range = (kind == _PUSH_POP) | (kind == _START_END)
    if not is_range.all():
        columns = take_rows(columns, is_range)
    return RawRanges(columns, threads, names, domains, domain_names, tuple(thread_names), payloads)


def _keep_used(texts: tuple[str, ...], codes: Array) -> tuple[tuple[str, ...], Array]:
    """Keep the names in use; ranges without any text share the name "" (-1 in `codes`)."""
    used, name_id = np.unique(codes, return_inverse=True)
    return tuple(texts[code] if code >= 0 else "" for code in used.tolist()), name_id.astype(np.int32)


def _name_domains(
    raw: RawRanges, codes: Array, names: tuple[str, ...], name_id: Array
) -> tuple[tuple[str, ...], Array]:
    """Number domains by name; domain 0 of every process is the unnamed default domain.

    The row that names a domain is missing in exports cut by time; then the names of its ranges tell NCCL's.
    """
    pool = {"": 0}
    numbers = np.zeros(len(raw.domains) + 1, np.int32)
    for code in np.unique(codes).tolist():
        process, domain = raw.domains[code]
        name = raw.domain_names.get((process, domain), "")
        if domain and not name:
            seen = {names[number] for number in np.unique(name_id[codes == code]).tolist()}
            name = "NCCL" if seen and all(text.startswith("nccl") for text in seen) else f"#{domain}"
        numbers[code] = pool.setdefault(name, len(pool))
    return tuple(pool), numbers[codes]
