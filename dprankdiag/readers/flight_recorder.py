"""Read a Flight Recorder dump of one rank, written as JSON. Pickles are not read: reading one may run code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.flight_dumps import COMPLETED, FLIGHT_ENTRIES, SCHEDULED, STARTED, FlightDump, Group
from dprankdiag.model.ranks import Grade
from dprankdiag.model.schema import ABSENT_NS
from dprankdiag.model.sources import Source

FLIGHT_RECORDER = "flight-recorder"

_TOP_MARKS = (b'"pg_config"', b'"pg_status"', b'"nccl_version"', b'"comm_lib_version"', b'"nccl_comm_state"')
_ENTRY_MARKS = (b'"collective_seq_id"', b'"profiling_name"', b'"time_created_ns"')
_STATES = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}
_NAMED_RANK = re.compile(r"rank[ _.-]?([0-9]+)", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]+")
_SHOWN = 120
"""Characters of an error that may repeat what the dump holds."""

_MEND = "dump it again: torch._C._distributed_c10d._dump_nccl_trace_json"


class FlightRecorderReader:
    """Reads dumps of version 1 and 2.

    Source: pytorch/pytorch torch/csrc/distributed/c10d/FlightRecorder.hpp (keys of a dump; JSON has numbers of
        `pg_status` and the members in `pg_config` as text); pytorch/tutorials flight_recorder_tutorial.rst (example).
    """

    kind = FLIGHT_RECORDER

    def can_read(self, path: Path) -> bool:
        """Say whether the file begins like a dump."""
        try:
            with path.open("rb") as file:
                return is_flight_dump(file.read(4096))
        except OSError:
            return False

    def read(self, path: Path) -> FlightDump:
        """Read one dump.

        Raises:
            InputError: the file is of another kind.
            DamagedInput: it is cut short, or an entry cannot be right.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror})", where=str(path)) from error
        return parse_dump(content, str(path))


def is_flight_dump(head: bytes) -> bool:
    """Tell a dump by its first bytes: a JSON object with entries or process groups, and no trace events."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{" or b'"traceEvents"' in head:
        return False
    marks = sum(mark in head for mark in (*_TOP_MARKS, *_ENTRY_MARKS))
    return marks >= 2 or (marks >= 1 and b'"entries"' in head)


def parse_dump(content: bytes, where: str) -> FlightDump:
    """Turn the bytes of a dump into entries and groups.

    Raises:
        DamagedInput: not whole JSON, without entries, or with an entry that lacks its sequence number or group.
    """
    import msgspec

    try:
        dump = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedInput(
            f"a Flight Recorder dump that is not whole JSON ({error})", where=where, mend=_MEND
        ) from error
    if not isinstance(dump, dict) or not isinstance(dump.get("entries", []), list):
        raise DamagedInput("a Flight Recorder dump without a list of entries", where=where, mend=_MEND)
    entries = dump.get("entries", [])
    rank, grade = _find_rank(dump, Path(where))
    try:
        collectives = [entry for entry in entries if not entry.get("is_p2p", False)]
        groups = _Groups(dump)
        table, names, sizes = _tabulate(collectives, groups)
        pending = sum(bool(entry.get("is_p2p", False)) and entry["state"] != "completed" for entry in entries)
        whole = not entries or min(int(entry.get("record_id", 0)) for entry in entries) == 0
        known = groups.freeze()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        why = f"{type(error).__name__}: {error}"[:_SHOWN]
        text = f"a Flight Recorder dump with an entry that cannot be read ({why})"
        raise DamagedInput(text, where=where, mend=_MEND) from error
    lacked = [] if dump.get("pg_config") else ["pg_config"]
    lacked += [] if entries else ["entries"]
    version = dump.get("version")
    source = Source(
        where,
        FLIGHT_RECORDER,
        "used",
        str(version) if version is not None else None,
        ranks=() if rank is None else (rank,),
        lacked=tuple(lacked),
    )
    return FlightDump(rank, grade, known, names, sizes, table, whole, pending, source)


def _find_rank(dump: Mapping[str, Any], path: Path) -> tuple[int | None, Grade]:
    """Take the rank from the dump, else from the file's name: PyTorch ends it with the rank."""
    own = dump.get("rank", dump.get("global_rank"))
    if isinstance(own, int) and own >= 0:
        return own, "sure"
    stem = path.name.split(".json")[0]
    if named := _NAMED_RANK.search(stem):
        return int(named[1]), "likely"
    numbers = _NUMBER.findall(stem)
    return (int(numbers[-1]), "likely") if numbers and len(numbers[-1]) < 7 else (None, "assumed")


class _Groups:
    """The process groups of a dump, numbered as they are met."""

    def __init__(self, dump: Mapping[str, Any]) -> None:
        self._config: Mapping[str, Any] = dump.get("pg_config") or {}
        self._status: Mapping[str, Any] = dump.get("pg_status") or {}
        self._names: list[tuple[str, str]] = []
        self._status_of: dict[str, str] = {}
        for name, entry in self._config.items():
            self.number(str(name), str(entry.get("desc", "")) if isinstance(entry, dict) else "", None)
        if len(self._config) == 1 and len(self._status) == 1:
            self._status_of[self._names[0][0]] = next(iter(self._status))

    def number(self, name: str, description: str, status: Any) -> int:
        """Return the number of a group; remember under which id the dump keeps its status."""
        if status is not None:
            self._status_of[name] = str(status)
        for position, (known, _) in enumerate(self._names):
            if known == name:
                return position
        self._names.append((name, description))
        return len(self._names) - 1

    def freeze(self) -> tuple[Group, ...]:
        return tuple(self._make(name, description) for name, description in self._names)

    def _make(self, name: str, description: str) -> Group:
        status = self._status.get(self._status_of.get(name, ""), {})
        return Group(
            name,
            description,
            _members(self._config.get(name)),
            _sequence(status.get("last_enqueued_collective")),
            _sequence(status.get("last_completed_collective")),
        )


def _members(config: Any) -> tuple[int, ...]:
    """Read the members of a group: a list, or text such as "[0, 1]"."""
    ranks = config.get("ranks", ()) if isinstance(config, dict) else config
    if isinstance(ranks, str):
        return tuple(sorted({int(number) for number in _NUMBER.findall(ranks)}))
    return tuple(sorted({int(rank) for rank in ranks})) if isinstance(ranks, (list, tuple)) else ()


def _sequence(value: Any) -> int | None:
    """Read a sequence number; PyTorch writes -1 for none yet."""
    return max(int(value), 0) if value is not None else None


def _tabulate(
    entries: Sequence[Mapping[str, Any]], groups: _Groups
) -> tuple[dict[str, np.ndarray[Any, Any]], tuple[str, ...], tuple[str, ...]]:
    names: dict[str, int] = {}
    sizes: dict[str, int] = {}
    rows = list(_list_rows(entries, groups, names, sizes))
    columns = {
        column.name: np.array([row[position] for row in rows], column.dtype)
        for position, column in enumerate(FLIGHT_ENTRIES.columns)
    }
    return FLIGHT_ENTRIES.check(columns), tuple(names), tuple(sizes)


def _list_rows(
    entries: Sequence[Mapping[str, Any]], groups: _Groups, names: dict[str, int], sizes: dict[str, int]
) -> Iterator[tuple[Any, ...]]:
    for entry in entries:
        group = entry.get("process_group")
        name, description = (str(group[0]), str(group[1])) if group else (str(entry["pg_id"]), "")
        size = f"{entry.get('input_sizes')} to {entry.get('output_sizes')}"
        times = [entry.get(f"time_{what}_ns") for what in ("created", "discovered_started", "discovered_completed")]
        known = [int(time) for time in times if time is not None]
        sequence = entry.get("collective_seq_id", entry.get("seq_id"))
        yield (
            groups.number(name, description, entry.get("pg_id")),
            int(sequence) if sequence is not None else int(entry["collective_seq_id"]),
            names.setdefault(str(entry.get("profiling_name", "")), len(names)),
            sizes.setdefault(size, len(sizes)),
            _STATES[entry["state"]],
            bool(entry.get("retired", False)),
            ABSENT_NS if times[0] is None else int(times[0]),
            max(known, default=ABSENT_NS),
        )
