"""Open an Nsight Systems SQLite export for reading only, and stream its columns as integers.

Nothing is assumed about the version: the tables and columns present are read once and every query asks that map.
A missing column is a constant, a table that breaks off keeps the rows read so far and is listed in `failures`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import numpy as np

from dprankdiag.errors import DamagedInput
from dprankdiag.readers.base import Array
from dprankdiag.readers.nsys_export import Condition, CutText, OneOf, Packed, Wanted
from dprankdiag.readers.nsys_sql import (
    ColumnFact,
    quote_name,
    split_condition,
    write_column,
    write_condition,
    write_text,
    write_value,
)
from dprankdiag.readers.nsys_walk import Answer, Question, walk_rows
from dprankdiag.readers.sqlite_batches import Query, stream_batches
from dprankdiag.readers.sqlite_pages import ForeignPages

_WAL_VERSION = 2
_IMMUTABLE = "mode=ro&immutable=1"
_SMALLEST_ROW_BYTES = 12
_VALUES_PER_QUERY = 500
_RETRY_IMMUTABLE = ("disk I/O error", "unable to open", "readonly", "locking protocol")


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a SQLite file so that nothing is ever written, not even beside it.

    A file in WAL mode is opened as immutable at once, because SQLite would otherwise create its side files.
    Source: https://www.sqlite.org/wal.html, section "Read-Only Databases"; https://www.sqlite.org/uri.html.

    Raises:
        DamagedInput: SQLite cannot read the file.
    """
    if not _has_wal_header(path):
        try:
            return _connect(path, "mode=ro")
        except sqlite3.Error as error:
            if not any(text in str(error) for text in _RETRY_IMMUTABLE):
                raise _explain(path, error) from error
    try:
        return _connect(path, _IMMUTABLE)
    except sqlite3.Error as error:
        raise _explain(path, error) from error


def locate(path: Path, mode: str) -> str:
    """Write the URI by which SQLite opens a path, whatever characters it holds."""
    return f"file:{quote(os.fsencode(os.path.abspath(path)))}?{mode}"


def list_tables(path: Path) -> list[str]:
    """Return the names of the tables of a SQLite file.

    Raises:
        DamagedInput: SQLite cannot read the file.
    """
    connection = open_read_only(path)
    try:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    except sqlite3.Error as error:
        raise _explain(path, error) from error
    finally:
        connection.close()


class NsysDatabase:
    """An open SQLite export: an `NsysExport`.

    Attributes:
        path: the file.
        columns: table name to column name to what is declared about it.
        failures: table name to what went wrong while reading it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = path.stat().st_size
        self._connection = open_read_only(path)
        self.columns = _probe_columns(path, self._connection)
        self.failures: dict[str, str] = {}

    def __enter__(self) -> NsysDatabase:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def has(self, table: str, *columns: str) -> bool:
        """Say whether the table exists and has all of these columns."""
        return table in self.columns and all(column in self.columns[table] for column in columns)

    def has_rows(self, table: str) -> bool:
        """Say whether the table exists and holds a row that can be read."""
        return table in self.columns and bool(self._fetch(table, "1", "LIMIT 1"))

    def list_remarks(self) -> list[str]:
        """Say if a write-ahead log with changes lies beside the file; it is left alone."""
        log = self.path.with_name(f"{self.path.name}-wal")
        if log.exists() and log.stat().st_size > 0:
            return ["changes that lie in its -wal file are not read; nothing is ever written beside an input"]
        return []

    def rows(
        self, table: str, columns: Sequence[str], where: Condition | None = None, limit: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Read a small table, or few rows of a long one, as `NsysExport.rows` says."""
        if table not in self.columns:
            return []
        facts = self.columns[table]
        wanted = ", ".join(write_value(facts, name) for name in columns)
        tail = "" if limit is None else f"LIMIT {limit}"
        if not isinstance(where, OneOf) or len(where.values) <= _VALUES_PER_QUERY:
            condition = write_condition(facts, where)
            return self._fetch(table, wanted, f"WHERE {condition} {tail}" if condition else tail)
        if where.column in facts and facts[where.column].is_key:
            parts = [write_condition(facts, part) for part in split_condition(where, _VALUES_PER_QUERY)]
            return [row for part in parts for row in self._fetch(table, wanted, f"WHERE {part}")][:limit]
        # Without a key one scan beats many.
        values = set(where.values)
        found = self._fetch(table, f"{write_value(facts, where.column)}, {wanted}", kept=lambda row: row[0] in values)
        return [row[1:] for row in found][:limit]

    def _fetch(
        self, table: str, wanted: str, tail: str = "", kept: Callable[[tuple[Any, ...]], bool] | None = None
    ) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        try:
            # list.extend keeps what came before an error
            rows.extend(filter(kept, self._connection.execute(f"SELECT {wanted} FROM {quote_name(table)} {tail}")))
        except sqlite3.Error as error:
            self._note_failure(table, str(error))
        return rows

    def _note_failure(self, table: str, reason: str) -> None:
        self.failures.setdefault(table, f"could be read only in part: {reason}")

    def bound_rows(self, table: str) -> int:
        """Return a number that is likely not below the number of rows, without counting them."""
        span = self._span_rowids(table)
        return 1 if span is None else span[1] - span[0] + 1

    def _span_rowids(self, table: str) -> tuple[int, int] | None:
        """Return the lowest and highest rowid; None if there are no rows or far fewer than numbers between."""
        try:
            low, high = self._connection.execute(
                f'SELECT (SELECT min(rowid) FROM "{table}"), (SELECT max(rowid) FROM "{table}")'
            ).fetchone()
        except sqlite3.Error:
            return None
        if low is None or high is None or high - low > self.size_bytes // _SMALLEST_ROW_BYTES:
            return None
        return low, high

    def batches(
        self,
        table: str,
        wanted: Sequence[Wanted | Packed],
        *,
        where: Condition | None = None,
        text: CutText | None = None,
        texts: dict[str, int] | None = None,
    ) -> Iterator[list[Array]]:
        """Stream integer columns in batches of rows, in file order, as `NsysExport.batches` says."""
        if table not in self.columns:
            return
        known: dict[str, int] = {} if texts is None else texts
        question = Question(table, tuple(wanted), where, text)
        done = 0
        try:
            for answer in walk_rows(self._connection, self.path, question):
                if rows := len(answer.numbers):
                    done += rows
                    yield answer.arrays if text is None else [*answer.arrays, _number(answer, text, known)]
            return
        except (ForeignPages, OSError):
            pass  # SQLite reads what is left, or says what is wrong with it
        query = Query(self._write(question, done), len(wanted), None if text is None else known)
        if failure := (yield from stream_batches(self._connection, query)):
            self._note_failure(table, failure)

    def _write(self, question: Question, skip: int) -> str:
        """Write a question as SQL, without its first rows."""
        facts = self.columns[question.table]
        selected = [write_column(facts, column) for column in question.wanted]
        selected += [] if question.text is None else [write_text(facts, question.text)]
        condition = write_condition(facts, question.where)
        return (
            f"SELECT {', '.join(selected)} FROM {quote_name(question.table)}"
            + (f" WHERE {condition}" if condition else "")
            + (f" LIMIT -1 OFFSET {skip}" if skip else "")
        )


def _number(answer: Answer, text: CutText, texts: dict[str, int]) -> Array:
    """Return the numbers of texts up to their marks; new ones are added as they appear."""
    used, firsts = np.unique(answer.numbers, return_index=True)
    numbers = np.zeros(len(answer.texts), np.int64)
    for place in used[np.argsort(firsts)].tolist():
        name = text.cut(answer.texts[place].decode("utf-8", "replace"))
        numbers[place] = texts.setdefault(name, len(texts))
    return np.take(numbers, answer.numbers)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(locate(path, mode), uri=True, timeout=2.0, isolation_level=None)
    connection.text_factory = _decode
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _has_wal_header(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            header = file.read(20)
    except OSError:
        return False
    return len(header) == 20 and header[18] == _WAL_VERSION


def _explain(path: Path, error: sqlite3.Error) -> DamagedInput:
    if "locked" in str(error) or "busy" in str(error):
        return DamagedInput(
            "the database is locked, so its export still runs", where=str(path), mend="wait for nsys export to end"
        )
    return DamagedInput(f"SQLite cannot read it: {error}", where=str(path), mend="export or copy the file again")


def _probe_columns(path: Path, connection: sqlite3.Connection) -> dict[str, dict[str, ColumnFact]]:
    columns: dict[str, dict[str, ColumnFact]] = {}
    try:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            facts = connection.execute(f"PRAGMA table_info({quote_name(table)})").fetchall()
            columns[table] = {fact[1]: ColumnFact(bool(fact[3]), bool(fact[5])) for fact in facts}
    except sqlite3.Error as error:
        connection.close()
        raise _explain(path, error) from error
    return columns
