"""Write a recording: one transaction a tick, the oldest forgotten bit by bit, one recorder a file."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from dprankdiag import __version__
from dprankdiag.errors import DamagedInput, UsageError
from dprankdiag.model.ledgers import LedgerAnswer, NoData
from dprankdiag.model.recordings import APPLICATION_ID, HEAD_BYTES, is_recording_head
from dprankdiag.store import recording_rows as rows
from dprankdiag.store import recording_schema as schema
from dprankdiag.store.first_time import FirstTime

Told = LedgerAnswer | NoData

MIN_BYTES = 4 * 2**20
"""The least that a recording may be held to: below, the write-ahead log alone would be most of it."""

_LOG_PAGES = 128
_LOG_BYTES = 2**20
"""What the write-ahead log may hold beside the file before it is brought in; part of the size that is kept to."""

_FORGET_TIMES = 4
"""At most so many times what came is forgotten in a tick, so that it is not held up and no more goes than has to."""

_SPARE_PAGES = 256
_GIVEN_BACK_PAGES = 256
"""Free pages kept for what comes next, and pages given back to the system in one tick."""

_FACT_SETS_KEPT = 256


class Recorder:
    """Append what was told to a recording, and forget what is older or larger than asked for."""

    def __init__(self, path: Path, *, keep_s: float | None = None, max_bytes: int | None = None) -> None:
        """Open or make the recording.

        Raises:
            UsageError: another recorder writes it, it is something else, it cannot be written.
            DamagedInput: it is a recording, but broken.
        """
        if max_bytes is not None and max_bytes < MIN_BYTES:
            raise UsageError(f"a recording of {max_bytes} bytes at most, expected {MIN_BYTES} or more")
        self.path = path
        self._keep_ns = None if keep_s is None else round(keep_s * 1e9)
        self._max_bytes = max_bytes
        self._targets: dict[tuple[str | None, ...], int] = {}
        self._field_sets: dict[str, int] = {}
        self._facts: dict[str, int] = {}
        self._columns: set[str] = set()
        self._first_time = FirstTime()
        self._next_answer = self._tick = 1
        self._lock, is_new = _lock_file(path)
        self._database: sqlite3.Connection | None = None
        try:
            self._database = _open_database(path, is_new)
            self._load_known()
        except BaseException:
            self.close()
            if is_new:
                path.unlink(missing_ok=True)
            raise

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, told: Sequence[Told], moment_ns: int | None = None) -> None:
        """Keep the answers of one tick; all of them or, if that fails, none.

        Raises:
            UsageError: the disk is full or the file cannot be written any more.
        """
        moment_ns = time.time_ns() if moment_ns is None else moment_ns
        told = self._first_time.pick(told)
        with self._transaction() as database:
            first = self._next_answer
            for answer, item in enumerate(told, first):
                self._insert(database, answer, moment_ns, item)
            self._forget(database, first, moment_ns, _FORGET_TIMES * max(len(told), 1))
            crowded = _ask(database, "PRAGMA freelist_count") > _SPARE_PAGES
        self._next_answer = first + len(told)
        self._tick += 1
        if crowded:
            self._give_back_room(database)
        if len(self._facts) > _FACT_SETS_KEPT:
            self._forget_facts()

    def close(self) -> None:
        """Bring the log into the file and let others record."""
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = self._database
        if database is None:
            raise UsageError("the recording is closed", where=str(self.path))
        try:
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            self._load_known()
            raise _explain(error, self.path) from error
        except BaseException:
            database.execute("ROLLBACK")
            self._load_known()
            raise

    def _load_known(self) -> None:
        """Load what is kept once and the last numbers given, from a file that may have been written before."""
        database = self._database
        if database is None:
            return
        try:
            self._targets = {tuple(row[1:]): int(row[0]) for row in database.execute("SELECT * FROM targets")}
            self._field_sets = {str(names): int(key) for key, names in database.execute("SELECT * FROM field_sets")}
            self._facts = _load_facts(database)
            self._columns = {str(row[1]) for row in database.execute("PRAGMA table_info(loads)")}
            ((last, tick),) = database.execute("SELECT max(answer), max(tick) FROM answers")
        except sqlite3.Error as error:
            raise _explain(error, self.path) from error
        self._next_answer = 1 + (last or 0)
        self._tick = 1 + (tick or 0)

    def _insert(self, database: sqlite3.Connection, answer: int, moment_ns: int, item: Told) -> None:
        if isinstance(item, NoData):
            target = self._number_target(database, (rows.clean_address(item.where), item.interface, None, None, None))
            status = "absent" if item.absent else "failed"
            told: tuple[object, ...] = (status, rows.clean_text(item.reason), 0, None, None, None)
        else:
            who = (rows.clean_address(item.where), item.interface, item.engine, item.model, item.role)
            target = self._number_target(database, who)
            fields, facts = self._number_fields(database, list(item.values)), self._number_facts(database, item)
            warnings = json.dumps([rows.clean_text(text) for text in item.warnings]) if item.warnings else None
            told = ("answered", None, int(item.unlabelled), fields, facts, warnings)
        line = (answer, self._tick, moment_ns, item.taken_ns, target, *told)
        database.execute(f"INSERT INTO answers VALUES ({_marks(line)})", line)
        if isinstance(item, LedgerAnswer):
            _insert_loads(database, answer, item)

    def _number_target(self, database: sqlite3.Connection, who: tuple[str | None, ...]) -> int:
        if who not in self._targets:
            self._targets[who] = 1 + max(self._targets.values(), default=0)
            database.execute("INSERT INTO targets VALUES (?, ?, ?, ?, ?, ?)", (self._targets[who], *who))
        return self._targets[who]

    def _number_fields(self, database: sqlite3.Connection, names: Sequence[str]) -> int:
        for name in names:
            if name not in self._columns:
                database.execute(f"ALTER TABLE loads ADD COLUMN {schema.quote_name(name)} REAL")
                self._columns.add(name)
        key = json.dumps(names)
        if key not in self._field_sets:
            self._field_sets[key] = 1 + max(self._field_sets.values(), default=0)
            database.execute("INSERT INTO field_sets VALUES (?, ?)", (self._field_sets[key], key))
        return self._field_sets[key]

    def _number_facts(self, database: sqlite3.Connection, item: LedgerAnswer) -> int | None:
        told = rows.make_fact_rows(item.facts)
        if not told:
            return None
        key = repr(told)
        if key not in self._facts:
            number = self._facts[key] = 1 + max(self._facts.values(), default=0)
            database.executemany("INSERT INTO facts VALUES (?, ?, ?, ?)", [(number, *row) for row in told])
        return self._facts[key]

    def _give_back_room(self, database: sqlite3.Connection) -> None:
        try:
            # As a script, because a single statement is only run as far as its first page.
            database.executescript(f"PRAGMA incremental_vacuum({_GIVEN_BACK_PAGES})")
        except sqlite3.Error as error:
            raise _explain(error, self.path) from error

    def _forget_facts(self) -> None:
        """Forget facts that no answer refers to any more."""
        with self._transaction() as database:
            database.execute("DELETE FROM facts WHERE fact_set NOT IN (SELECT fact_set FROM answers WHERE fact_set)")
        self._load_known()

    def _forget(self, database: sqlite3.Connection, first: int, moment_ns: int, most: int) -> None:
        """Forget the oldest answers, at most `most` of them and none of this tick."""
        oldest = database.execute(
            "SELECT answer, recorded_ns FROM answers WHERE answer < ? ORDER BY answer LIMIT ?", (first, most)
        ).fetchall()
        last = 0
        if self._keep_ns is not None:
            last = max((answer for answer, taken in oldest if taken < moment_ns - self._keep_ns), default=0)
        if oldest and self._max_bytes is not None and _count_bytes(database) > self._max_bytes - 2 * _LOG_BYTES:
            last = oldest[-1][0]
        if last:
            for table in ("answers", "loads", "experts"):
                database.execute(f"DELETE FROM {table} WHERE answer <= ?", (last,))


def _lock_file(path: Path) -> tuple[int | None, bool]:
    """Open the file and take it for this recorder; say whether it is new.

    The descriptor stays open as long as the database does: closing it earlier would drop the database's own locks.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        mend = "name a file in a folder that is there and can be written"
        raise UsageError(f"cannot be written ({error.strerror or error})", where=str(path), mend=mend) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size, head = os.fstat(descriptor).st_size, os.pread(descriptor, HEAD_BYTES, 0)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise UsageError(
                "another recorder writes it", where=str(path), mend="end that one or choose another name"
            ) from error
        raise UsageError(f"cannot be written ({error.strerror or error})", where=str(path)) from error
    if size and not is_recording_head(head):
        os.close(descriptor)
        raise UsageError("exists and is no recording", where=str(path), mend="choose another name")
    return descriptor, size == 0


def _open_database(path: Path, is_new: bool) -> sqlite3.Connection:
    # Whoever opens a recorder may let another thread write with it, as long as only one does at a time.
    database = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
    try:
        if is_new:
            _make_tables(database)
        version = _ask(database, "PRAGMA user_version")
        if version > schema.SCHEMA_VERSION:
            raise UsageError(
                f"recorded by a newer version (schema {version}, expected {schema.SCHEMA_VERSION})",
                where=str(path),
                mend="choose another name",
            )
        # The header is written whole before the log exists, so that the file is known by its first bytes at any time.
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        database.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
    except sqlite3.Error as error:
        database.close()
        raise _explain(error, path) from error
    except BaseException:
        database.close()
        raise
    return database


def _make_tables(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    database.execute("BEGIN")
    for table in schema.list_tables():
        database.execute(table.declare())
    database.execute(schema.VIEW)
    known = {
        "schema_version": schema.SCHEMA_VERSION,
        "tool": "dprankdiag",
        "tool_version": __version__,
        "created_ns": time.time_ns(),
    }
    database.executemany("INSERT INTO meta VALUES (?, ?)", list(known.items()))
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION}")
    database.execute("COMMIT")


def _load_facts(database: sqlite3.Connection) -> dict[str, int]:
    sets: dict[int, list[rows.FactRow]] = {}
    for number, name, value, kind in database.execute("SELECT * FROM facts ORDER BY fact_set, name"):
        read = rows.read_fact(value, kind)
        sets.setdefault(number, []).append((name, read if kind == "truth" else value, kind))
    return {repr(tuple(sorted(told))): number for number, told in sets.items()}


def _insert_loads(database: sqlite3.Connection, answer: int, item: LedgerAnswer) -> None:
    names = ", ".join(schema.quote_name(name) for name in ("answer", "rank", *item.values))
    marks = ", ".join("?" * (2 + len(item.values)))
    database.executemany(
        f"INSERT INTO loads ({names}) VALUES ({marks})", rows.make_load_rows(answer, item.ranks, item.values)
    )
    if item.expert_tokens is not None:
        lines = [(answer, layer, rows.write_numbers(tokens)) for layer, tokens in enumerate(item.expert_tokens)]
        database.executemany("INSERT INTO experts VALUES (?, ?, ?)", lines)


def _marks(line: Sequence[object]) -> str:
    return ", ".join("?" * len(line))


def _count_bytes(database: sqlite3.Connection) -> int:
    pages = _ask(database, "PRAGMA page_count") - _ask(database, "PRAGMA freelist_count")
    return pages * _ask(database, "PRAGMA page_size")


def _ask(database: sqlite3.Connection, question: str) -> int:
    return int(database.execute(question).fetchone()[0])


def _explain(error: sqlite3.Error, path: Path) -> UsageError | DamagedInput:
    """Say in one line what the database could not do."""
    code = getattr(error, "sqlite_errorcode", None)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DamagedInput(f"a broken recording ({error})", where=str(path), mend="choose another name")
    if code == sqlite3.SQLITE_FULL:
        return UsageError("the disk is full", where=str(path), mend="make room or set --max-size; it keeps what it has")
    return UsageError(f"cannot be written ({error})", where=str(path))
