"""Read a recording back: exactly what was told, without leaving a trace beside the file."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import numpy as np

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.ledgers import EngineName, Fact, FloatArray, LedgerAnswer, NoData, Role
from dprankdiag.model.recordings import HEAD_BYTES, is_recording_head
from dprankdiag.store import recording_schema as schema
from dprankdiag.store.recording_rows import read_fact, read_numbers

_MEND = "make one with: dprankdiag record TARGET -o FILE"
_SHOWN = 120
"""Characters of an error that may repeat what the file holds."""


def is_recording(path: Path) -> bool:
    """Tell by its first bytes whether a file is a recording."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return is_recording_head(file.read(HEAD_BYTES))
    except OSError:
        return False


def read_recording(
    path: Path, *, since_ns: int | None = None, until_ns: int | None = None, by_tick: bool = False
) -> tuple[tuple[LedgerAnswer, ...], tuple[NoData, ...]]:
    """Read answers and failed polls in the order they were recorded; a recorder may be writing meanwhile.

    Args:
        since_ns, until_ns: only ticks from then on, and before then, by the recorder's clock.
        by_tick: answers are of the moment of their tick, whatever the clocks of the engines' hosts said; not those that
            a Prometheus server stored.

    Raises:
        InputError: it is no recording, or one of a newer version.
        DamagedInput: it is broken.
    """
    if not is_recording(path):
        raise InputError("no recording of dprankdiag", where=str(path), mend=_MEND)
    try:
        with _open_read_only(path) as database:
            return _read_all(database, path, (since_ns, until_ns), by_tick)
    except sqlite3.Error as error:
        raise DamagedInput(f"a broken recording ({error})", where=str(path), mend="copy it again") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"[:_SHOWN]
        raise DamagedInput(f"a broken recording ({why})", where=str(path), mend="record again") from error


@contextmanager
def _open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open without making files beside it.

    Without a log the file cannot change and is opened as such; with a log and its index it is opened as by any reader;
    with a log alone (a copy) a copy of both is opened, because reading would make the index.
    """
    log, index = (path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm"))
    if not log.exists():
        with _connect(path, "mode=ro&immutable=1") as database:
            yield database
    elif index.exists():
        with _connect(path, "mode=ro") as database:
            yield database
    else:
        with tempfile.TemporaryDirectory(prefix="dprankdiag-") as folder:
            copy = Path(folder) / "recording"
            shutil.copyfile(path, copy)
            shutil.copyfile(log, copy.with_name(f"{copy.name}-wal"))
            with _connect(copy, "mode=ro") as database:
                yield database


@contextmanager
def _connect(path: Path, options: str) -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(f"file:{quote(str(path.resolve()))}?{options}", uri=True, isolation_level=None)
    with closing(database):
        # One transaction, so that what is read is one state of the file.
        database.execute("BEGIN")
        yield database


def _read_all(
    database: sqlite3.Connection, path: Path, span: tuple[int | None, int | None], by_tick: bool
) -> tuple[tuple[LedgerAnswer, ...], tuple[NoData, ...]]:
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    if version > schema.SCHEMA_VERSION:
        raise InputError(
            f"recorded by a newer version (schema {version}, expected {schema.SCHEMA_VERSION})",
            where=str(path),
            mend="read it with the version that made it",
        )
    _check_kinds(database)
    shared = _load_shared(database)
    answers: list[LedgerAnswer] = []
    gaps: list[NoData] = []
    first, last = _find_span(database, *span)
    query = (
        f"SELECT answer, {'recorded_ns' if by_tick else 'taken_ns'}, target, status, reason, unlabelled, field_set, "
        "fact_set, warnings, taken_ns FROM answers WHERE answer BETWEEN ? AND ? ORDER BY answer"
    )
    loads, experts = _Follower(_group_loads(database, first, last)), _Follower(_group_experts(database, first, last))
    for row in database.execute(query, (first, last)):
        if row[3] in schema.NOT_AN_ANSWER:
            address, interface, *_ = shared.targets[row[2]]
            gaps.append(NoData(interface, address, row[1], row[4], absent=row[3] == "absent"))
        else:
            answer = _make_answer(row[:9], shared, loads.take(row[0]), experts.take(row[0]))
            answers.append(replace(answer, taken_ns=row[9]) if answer.is_stored else answer)
    return tuple(answers), tuple(gaps)


def _check_kinds(database: sqlite3.Connection) -> None:
    """Check that columns hold what they are declared to; SQLite itself keeps whatever it is given.

    Numbers of ranks are checked where they are read.

    Raises:
        ValueError: one holds something else.
    """
    for table in schema.list_tables():
        for column in table.columns:
            kinds = _HELD.get(column.declared.partition(" ")[0])
            if kinds is None:
                continue
            may_be_null = "NOT NULL" not in column.declared and "KEY" not in column.declared
            held = ", ".join(f"'{kind}'" for kind in (kinds, *(["null"] if may_be_null else [])))
            name = schema.quote_name(column.name)
            query = f"SELECT typeof({name}) FROM {table.name} WHERE typeof({name}) NOT IN ({held}) LIMIT 1"
            if found := database.execute(query).fetchone():
                raise ValueError(f"{table.name}.{column.name} holds {found[0]}")


_HELD = {"INTEGER": "integer", "TEXT": "text"}
"""What a column that is declared so may hold besides NULL."""


def _find_span(database: sqlite3.Connection, since_ns: int | None, until_ns: int | None) -> tuple[int, int]:
    """Find the first and last answer between two moments."""
    conditions = [
        f"recorded_ns {sign} {moment:d}" for sign, moment in ((">=", since_ns), ("<", until_ns)) if moment is not None
    ]
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    first, last = database.execute(f"SELECT min(answer), max(answer) FROM answers {where}").fetchone()
    return (0, -1) if first is None else (int(first), int(last))


@dataclass(frozen=True, slots=True)
class _Shared:
    """What answers refer to."""

    targets: dict[int, tuple[str, str, str | None, str | None, str | None]]
    field_sets: dict[int, list[str]]
    columns: dict[str, int]
    facts: dict[int, dict[str, Fact]] = field(default_factory=dict)


def _load_shared(database: sqlite3.Connection) -> _Shared:
    columns = [str(row[1]) for row in database.execute("PRAGMA table_info(loads)")]
    shared = _Shared(
        {row[0]: row[1:] for row in database.execute("SELECT * FROM targets")},
        {key: json.loads(names) for key, names in database.execute("SELECT * FROM field_sets")},
        {name: place for place, name in enumerate(columns)},
    )
    for fact_set, name, value, kind in database.execute("SELECT * FROM facts ORDER BY fact_set, name"):
        shared.facts.setdefault(fact_set, {})[name] = read_fact(value, kind)
    return shared


class _Follower:
    """Hand out the rows of each answer from groups in the same order."""

    def __init__(self, groups: Iterator[tuple[int, list[Any]]]) -> None:
        self._groups = groups
        self._waiting: tuple[int, list[Any]] | None = next(groups, None)

    def take(self, answer: int) -> list[Any]:
        """Return the rows of an answer; answers are asked for in ascending order."""
        while self._waiting is not None and self._waiting[0] < answer:
            self._waiting = next(self._groups, None)
        return self._waiting[1] if self._waiting is not None and self._waiting[0] == answer else []


def _group_loads(database: sqlite3.Connection, first: int, last: int) -> Iterator[tuple[int, list[Any]]]:
    query = "SELECT * FROM loads WHERE answer BETWEEN ? AND ? ORDER BY answer, rank"
    for answer, group in groupby(database.execute(query, (first, last)), key=lambda row: cast(int, row[0])):
        yield answer, list(group)


def _group_experts(database: sqlite3.Connection, first: int, last: int) -> Iterator[tuple[int, list[Any]]]:
    query = "SELECT answer, tokens FROM experts WHERE answer BETWEEN ? AND ? ORDER BY answer, layer"
    for answer, group in groupby(database.execute(query, (first, last)), key=lambda row: cast(int, row[0])):
        yield answer, [tokens for _, tokens in group]


def _make_answer(row: tuple[Any, ...], shared: _Shared, loads: list[Any], experts: list[str]) -> LedgerAnswer:
    _, taken_ns, target, _, _, unlabelled, field_set, fact_set, warnings = row
    address, interface, engine, model, role = shared.targets[target]
    names = shared.field_sets[field_set]
    return LedgerAnswer(
        interface=interface,
        where=address,
        engine=cast(EngineName, engine),
        model=model,
        role=cast("Role | None", role),
        taken_ns=taken_ns,
        ranks=tuple(int(load[1]) for load in loads),
        values=_make_values(loads, names, shared.columns),
        expert_tokens=np.stack([read_numbers(tokens) for tokens in experts]) if experts else None,
        facts=shared.facts[fact_set] if fact_set is not None else {},
        unlabelled=bool(unlabelled),
        warnings=tuple(json.loads(warnings)) if warnings else (),
    )


def _make_values(loads: list[Any], names: list[str], columns: dict[str, int]) -> Mapping[str, FloatArray]:
    block = np.array([[load[columns[name]] for load in loads] for name in names], np.float64)
    return FieldBlock(names, block.reshape(len(names), len(loads)))


class FieldBlock(Mapping[str, FloatArray]):
    """Fields of one answer as rows of one block: a day of answers fits into memory."""

    __slots__ = ("_block", "_names")

    def __init__(self, names: Sequence[str], block: FloatArray) -> None:
        self._names = names
        self._block = block

    def __getitem__(self, name: str) -> FloatArray:
        try:
            row: FloatArray = self._block[self._names.index(name)]
        except ValueError:
            raise KeyError(name) from None
        return row

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def items(self) -> ItemsView[str, FloatArray]:
        """List the fields with their numbers, without looking each one up."""
        return dict(zip(self._names, self._block, strict=True)).items()
