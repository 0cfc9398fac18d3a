"""Describe the actors of an export: their process, their GPU, and all evidence of their rank, strongest first."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dprankdiag.model.ranks import RankClaim
from dprankdiag.model.schema import ABSENT_NS
from dprankdiag.model.sources import Actor
from dprankdiag.readers.nsys_actors import ActorIndex, pid_of, split_thread
from dprankdiag.readers.nsys_export import Condition, Like, NsysExport, OneOf
from dprankdiag.readers.nsys_names import fetch_texts
from dprankdiag.readers.nsys_ranges import TABLE as NVTX_TABLE
from dprankdiag.readers.nsys_ranges import RawRanges
from dprankdiag.readers.rank_evidence import (
    ENVIRONMENT_KEYS,
    read_environment,
    read_file_name,
    read_nccl_payloads,
    read_title,
)

_FROM_PROGRAM = 0
"""Priority of a ThreadNames row that the program itself gave through NVTX: never cut to 15 bytes."""
_ENTRY = re.compile(r'(\w+)="?(\d+)"?')


@dataclass(frozen=True, slots=True)
class ProcessNames:
    """Names of the actors' processes by process key.

    Attributes:
        process: names of the process and its main thread.
        threads: `(name, may be cut)` of every thread, NVTX names first.
    """

    process: Mapping[int, list[str]]
    threads: Mapping[int, list[tuple[str, bool]]]


def describe_actors(db: NsysExport, actors: ActorIndex, ranges: RawRanges) -> tuple[Actor, ...]:
    """Describe every actor; claims that hold for a whole process are given only where it has one device."""
    names = _read_names(db, actors, ranges)
    payloads, mpi = _read_payloads(db, ranges), _read_mpi_ranks(db)
    gpus = _Gpus(db, actors)
    devices = Counter(actors.process_key(actor) for actor in range(len(actors)))
    environment = _read_environment(db) if len(actors) == 1 else {}
    described = []
    for actor in range(len(actors)):
        key, device = actors.process_key(actor), actors.device(actor)
        shared = devices[key] > 1
        claims = [read_nccl_payloads(payloads.get(key, ()), device if shared else None)]
        if not shared:
            claims += [mpi.get(key), *_claim_names(names, key)]
        if len(actors) == 1:
            claims += [read_environment(environment), read_file_name(db.path.name)]
        described.append(
            Actor(
                pid=pid_of(key),
                device=device,
                process=max(names.process.get(key, ()), key=len, default=None),
                gpu=gpus.find(actor),
                claims=_order_claims(claim for claim in claims if claim is not None),
            )
        )
    return tuple(described)


def _claim_names(names: ProcessNames, key: int) -> list[RankClaim | None]:
    claims = [read_title(name, "thread-name", may_be_cut=cut) for name, cut in names.threads.get(key, ())]
    return claims + [read_title(name, "process-name", may_be_cut=True) for name in names.process.get(key, ())]


def _order_claims(claims: Iterable[RankClaim]) -> tuple[RankClaim, ...]:
    order = ("nccl", "mpi", "thread-name", "environment", "process-name", "file-name")
    return tuple(dict.fromkeys(sorted(claims, key=lambda claim: order.index(claim.source))))


def _read_names(db: NsysExport, actors: ActorIndex, ranges: RawRanges) -> ProcessNames:
    keys = {actors.process_key(actor) for actor in range(len(actors))}
    process: dict[int, list[str]] = defaultdict(list)
    threads: dict[int, list[tuple[str, bool]]] = defaultdict(list)
    for tid, name in ranges.thread_names:
        _note_thread(process, threads, tid, name, False)
    rows = [row for row in db.rows("ThreadNames", ("globalTid", "nameId", "priority")) if _are_whole(row[:2])]
    rows = [row for row in rows if _process_key(row[0]) in keys]
    texts = fetch_texts(db, {row[1] for row in rows})
    for tid, name_id, priority in rows:
        _note_thread(process, threads, tid, texts[name_id], priority != _FROM_PROGRAM)
    for pid, name in db.rows("PROCESSES", ("globalPid", "name")):
        if isinstance(pid, int) and name and _process_key(pid) in keys:
            process[_process_key(pid)].append(str(name))
    return ProcessNames(process, {key: sorted(set(found), key=lambda item: item[1]) for key, found in threads.items()})


def _note_thread(
    process: dict[int, list[str]], threads: dict[int, list[tuple[str, bool]]], tid: int, name: str, may_be_cut: bool
) -> None:
    key, thread = split_thread(tid)
    threads[key].append((name, may_be_cut))
    if thread == pid_of(key):
        process[key].append(name)


def _process_key(global_id: int) -> int:
    return split_thread(global_id)[0]


def _read_payloads(db: NsysExport, ranges: RawRanges) -> Mapping[int, list[Any]]:
    """Read the JSON payloads that name a rank, by process, in time order."""
    payloads: dict[int, list[Any]] = defaultdict(list)
    if not ranges.has_payloads:
        return payloads
    rows = _in_time_order(db.rows(NVTX_TABLE, ("start", "globalTid", "jsonText"), Like("jsonText", "%No. of ranks%")))
    if db.has(NVTX_TABLE, "jsonTextId"):
        known = db.rows("StringIds", ("id",), Like("value", "{%No. of ranks%"))
        texts = fetch_texts(db, [number for (number,) in known])
        by_id = db.rows(NVTX_TABLE, ("start", "globalTid", "jsonTextId"), OneOf("jsonTextId", tuple(sorted(texts))))
        rows += [(start, tid, texts[number]) for start, tid, number in _in_time_order(by_id)]
    for _, tid, text in rows:
        try:
            payloads[_process_key(tid)].append(json.loads(text))
        except (TypeError, ValueError):
            continue
    return payloads


def _in_time_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Sort rows by their first column, rows without it first."""
    return sorted(rows, key=lambda row: row[0] if isinstance(row[0], int) else ABSENT_NS)


def _are_whole(values: Iterable[object]) -> bool:
    return all(isinstance(value, int) for value in values)


def _read_mpi_ranks(db: NsysExport) -> dict[int, RankClaim]:
    """Read the ranks that the MPI tracer recorded, by process."""
    rows = [row for row in db.rows("MPI_RANKS", ("globalTid", "rank")) if _are_whole(row)]
    return {_process_key(tid): RankClaim("mpi", "sure", rank, f"MPI rank {rank} recorded") for tid, rank in rows}


def _read_environment(db: NsysExport) -> dict[str, str]:
    """Read the rank variables of the launched process; nothing else of its environment is kept."""
    texts: list[str] = []
    if db.has("META_DATA_CAPTURE", "name", "value"):
        where: Condition = Like("name", "PROCESS_0:ENVIRONMENT%")
        texts += [str(value) for (value,) in db.rows("META_DATA_CAPTURE", ("value",), where)]
    if not texts and db.has("TARGET_INFO_SYSTEM_ENV", "name", "value"):
        where = OneOf("name", ("DeviceEnvironment",))
        texts += [str(value) for (value,) in db.rows("TARGET_INFO_SYSTEM_ENV", ("value",), where)]
    entries = [entry for text in texts for entry in re.split(r"[\0\n]", text)]
    found = (_ENTRY.fullmatch(entry.strip()) for entry in entries)
    return {match[1]: match[2] for match in found if match and match[1] in ENVIRONMENT_KEYS}


class _Gpus:
    """Finds the physical GPU behind a process's CUDA ordinal.

    The device map of newer exports is the only sure way. Without it the ordinal counts as physical only where no two
    processes use the same one, for each may have been shown a device of its own.
    """

    def __init__(self, db: NsysExport, actors: ActorIndex) -> None:
        self._actors = actors
        rows = db.rows("TARGET_INFO_GPU", ("id", "cuDevice", "uuid", "busLocation"))
        self._names = {gpu: str(uuid or bus or f"GPU {gpu}") for gpu, _, uuid, bus in rows}
        self._by_ordinal = {ordinal: gpu for gpu, ordinal, _, _ in rows}
        self._map: dict[tuple[int, int], tuple[int, str | None]] = {}
        for gpu, ordinal, pid, uuid in db.rows("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid", "uuid")):
            self._map[(pid, ordinal)] = (gpu, uuid)
        devices = [actors.device(actor) for actor in range(len(actors))]
        self._is_physical = len(devices) == len(set(devices))

    def find(self, actor: int) -> str | None:
        device = self._actors.device(actor)
        if device is None:
            return None
        gpu, uuid = self._map.get((pid_of(self._actors.process_key(actor)), device), (None, None))
        if gpu is not None or uuid:
            return uuid or self._names.get(gpu, f"GPU {gpu}")
        return self._names.get(self._by_ordinal.get(device)) if self._is_physical else None
