"""Read the shared-memory file in which SGLang's ranks leave their loads; read-only, under a shared lock.

Layout: 12 bytes of header (`SLNS`, version 2, number of ranks, size of a slot), then a slot a rank: length of the
payload, the payload, zeros. Length 0 is a rank that never wrote. The payload is a msgpack map without the entries that
have their default value; from 0.5.16 on its sections are lists in the order of their declaration, before it is flat.

Source: sglang 0.5.23, 0.5.18 and 0.5.13.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dprankdiag.collectors.load_rows import flatten_load, read_loads, read_role
from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.ledgers import LedgerAnswer, NoData

FOLDER = Path("/dev/shm")
PATTERN = "sglang_loads_*.shm"
MAGIC = b"SLNS"
VERSION = 2
HEADER = struct.Struct("<4sHHI")
LENGTH = struct.Struct("<I")
MOST_BYTES = 64 * 1024 * 1024
TRIES = 20
PAUSE_S = 0.005

SECTIONS: Mapping[str, tuple[str, ...]] = {
    "memory": ("weight_gb", "kv_cache_gb", "graph_gb", "token_capacity"),
    "speculative": ("accept_length", "accept_rate"),
    "disaggregation": (
        "mode", "prefill_bootstrap_queue_reqs", "prefill_inflight_queue_reqs", "decode_prealloc_queue_reqs",
        "decode_transfer_queue_reqs", "decode_retracted_queue_reqs", "kv_transfer_speed_gb_s",
        "kv_transfer_latency_ms",
    ),
    "queues": ("waiting", "grammar", "paused", "retracted", "prealloc_ready"),
}  # fmt: skip
"""Section → its entries in order. Source: sglang 0.5.23."""

ALWAYS = ("num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "num_used_tokens", "num_total_tokens",
          "token_usage")  # fmt: skip
"""Entries that every release with this file has: left out, they are 0."""
SINCE_LATER = ("total_prefill_uncached_tokens", "total_prefill_busy_us")
"""Entries of later releases: left out, they are 0 only if another rank shows one."""


class SglangShm:
    """Collects the shared-memory file; `read_all` finds those of this machine."""

    interface = "sglang-shm"
    path = ""

    def parse(self, body: bytes, where: str, taken_ns: int | None = None) -> tuple[LedgerAnswer, ...]:
        """Turn a file into one answer; see `Collector.parse`."""
        n_ranks, slot_bytes = _read_header(body, where)
        loads: dict[int, dict[str, Any]] = {}
        damaged = []
        for rank in range(n_ranks):
            try:
                load = _read_slot(body, HEADER.size + rank * slot_bytes, slot_bytes)
            except (ValueError, struct.error, msgspec.DecodeError, RecursionError):
                damaged.append(rank)
                continue
            if load is not None:
                loads[rank] = load
        if damaged and not loads:
            raise DamagedInput("no slot can be read", where=where)
        roles = {read_role(load) for load in loads.values()} - {None}
        role = roles.pop() if len(roles) == 1 else None
        values, warnings = read_loads(_fill_defaults(loads), role)
        if damaged:
            warnings = (*warnings, f"passed over: damaged slots of ranks {', '.join(map(str, damaged))}")
        return (
            LedgerAnswer(
                interface=self.interface,
                where=where,
                engine="sglang",
                role=role,
                taken_ns=taken_ns,
                ranks=tuple(loads),
                values=values,
                facts={"dp_rank_count": n_ranks},
                warnings=warnings,
            ),
        )


def read_all(taken_ns: int, folder: Path = FOLDER) -> list[LedgerAnswer | NoData]:
    """Read the files of all engines of this machine, dead ones among them: their stamps tell."""
    collector, answers = SglangShm(), list[LedgerAnswer | NoData]()
    for path in sorted(folder.glob(PATTERN)):
        try:
            answers.extend(collector.parse(_read_locked(path), str(path), taken_ns))
        except InputError as error:
            answers.append(NoData(collector.interface, str(path), taken_ns, error.what))
    return answers


def _read_locked(path: Path) -> bytes:
    """Read a file while no rank writes.

    Raises:
        InputError: it cannot be read, or a writer never lets go of it.
    """
    import fcntl
    import time

    try:
        with path.open("rb") as file:
            for _ in range(TRIES):
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return file.read(MOST_BYTES)
                except BlockingIOError:
                    time.sleep(PAUSE_S)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    raise InputError(f"a writer holds it for longer than {TRIES * PAUSE_S:g} s", where=str(path))


def _read_header(body: bytes, where: str) -> tuple[int, int]:
    if len(body) < HEADER.size or body[:4] != MAGIC:
        raise InputError("expected a load snapshot of SGLang, which begins with SLNS", where=where)
    _, version, n_ranks, slot_bytes = HEADER.unpack_from(body)
    if version != VERSION:
        raise InputError(f"expected version {VERSION} of the load snapshot, got {version}", where=where)
    if len(body) < HEADER.size + n_ranks * slot_bytes or slot_bytes <= LENGTH.size:
        raise DamagedInput(f"is shorter than its {n_ranks} slots", where=where)
    return n_ranks, slot_bytes


def _read_slot(body: bytes, start: int, slot_bytes: int) -> dict[str, Any] | None:
    """Read a rank's load with named sections; None if it never wrote."""
    (length,) = LENGTH.unpack_from(body, start)
    if length == 0:
        return None
    if length > slot_bytes - LENGTH.size:
        raise ValueError("payload larger than its slot")
    load = msgspec.msgpack.decode(body[start + LENGTH.size : start + LENGTH.size + length])
    if not isinstance(load, dict) or not all(isinstance(key, str) for key in load):
        raise ValueError("payload is no map")
    for section, names in SECTIONS.items():
        if isinstance(load.get(section), list):
            load[section] = dict(zip(names, load[section], strict=False))
    return load


def _fill_defaults(loads: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """Put back the entries that were left out because they are 0; a rank that only made its slot stays silent."""
    shown = {name for load in loads.values() for name in load}
    defaults = dict.fromkeys((*ALWAYS, *(name for name in SINCE_LATER if name in shown)), 0.0)
    filled = {}
    for rank, load in loads.items():
        is_silent = not set(load) - {"dp_rank"} or ("timestamp" in shown and not load.get("timestamp"))
        filled[rank] = {"timestamp": 0.0} if is_silent else {**defaults, **flatten_load(load)}
    return filled
