"""Open an Nsight Systems export for reading only, and stream its columns as integers.

Nothing is assumed about the version: the tables and columns present are read once and every query asks that map.
A missing column is a constant, a table that breaks off keeps the rows read so far and is listed in `failures`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from dprankdiag.errors import DamagedInput
from dprankdiag.readers.base import Array
from dprankdiag.readers.sqlite_batches import Query, stream_batches

_WAL_VERSION = 2
_IMMUTABLE = "mode=ro&immutable=1"
_SMALLEST_ROW_BYTES = 12
_RETRY_IMMUTABLE = ("disk I/O error", "unable to open", "readonly", "locking protocol")


@dataclass(frozen=True, slots=True)
class Wanted:
    """An integer column to read: the first of `names` that is not null, else `absent`.

    As a flag: 1 where any of `names` is not null.
    """

    names: tuple[str, ...]
    absent: int = 0
    is_flag: bool = False


@dataclass(frozen=True, slots=True)
class Packed:
    """Several columns in the bits of one integer: SQLite packs them for less than it costs to hand each over.

    Attributes:
        layout: SQL with `{0}`, `{1}` ... where the columns stand; its precedence knows no difference between shifts,
            `|` and `&`, so every step wants its brackets.
        parts: the columns.
    """

    layout: str
    parts: tuple[Wanted, ...]


@dataclass(frozen=True, slots=True)
class ColumnFact:
    """What the file declares about a column."""

    not_null: bool
    is_key: bool


def want(*names: str, absent: int = 0) -> Wanted:
    """Describe an integer column to read."""
    return Wanted(names, absent)


def pack(layout: str, *parts: Wanted) -> Packed:
    """Describe an integer made of several columns."""
    return Packed(layout, parts)


def want_flag(*names: str) -> Wanted:
    """Describe a column that tells whether any of these is not null."""
    return Wanted(names, is_flag=True)


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
    """An open export.

    Attributes:
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
        return bool(self.rows(table, (), "LIMIT 1"))

    def has_unmerged_changes(self) -> bool:
        """Say whether a write-ahead log with changes lies beside the file; it is left alone."""
        log = self.path.with_name(f"{self.path.name}-wal")
        return log.exists() and log.stat().st_size > 0

    def rows(self, table: str, columns: Sequence[str], tail: str = "") -> list[tuple[Any, ...]]:
        """Read a small table; a missing column is None, a missing table has no rows.

        Args:
            table: table name.
            columns: columns to read; none reads the constant 1.
            tail: SQL after the table name; must name existing columns only.
        """
        if table not in self.columns:
            return []
        present = self.columns[table]
        wanted = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns) or "1"
        kept: list[tuple[Any, ...]] = []
        try:
            kept.extend(self._connection.execute(f'SELECT {wanted} FROM "{table}" {tail}'))
        except sqlite3.Error as error:
            self.failures.setdefault(table, str(error))
        return kept

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
        where: str = "",
        text: str = "",
        texts: dict[str, int] | None = None,
    ) -> Iterator[list[Array]]:
        """Stream integer columns in batches of rows, in file order.

        Args:
            table: table name; a missing one gives no batch.
            wanted: the integer columns.
            where: SQL condition on existing columns.
            text: SQL expression of one more column, a text that is never null.
            texts: numbers the distinct texts; it grows while reading.

        Yields:
            One int64 array a wanted column, then, if `text` is given, the int64 numbers of the texts.
        """
        if table not in self.columns:
            return
        selected = [self._express(table, column) for column in wanted]
        select = f'SELECT {", ".join(selected + ([text] if text else []))} FROM "{table}"'
        query = Query(select, where, len(wanted), texts if text else None, self._span_rowids(table))
        failure = yield from stream_batches(self._connection, query, locate(self.path, _IMMUTABLE), self.size_bytes)
        if failure:
            self.failures.setdefault(table, failure)

    def _express(self, table: str, column: Wanted | Packed) -> str:
        if isinstance(column, Packed):
            return column.layout.format(*(self._express(table, part) for part in column.parts))
        present = self.columns[table]
        names = [name for name in column.names if name in present]
        if not names:
            return str(column.absent)
        if column.is_flag:
            return " OR ".join(f'"{name}" IS NOT NULL' for name in names)
        if present[names[0]].not_null:
            return f'"{names[0]}"'
        return f"COALESCE({', '.join(_quoted(names))}, {column.absent})"


def _quoted(names: Sequence[str]) -> list[str]:
    return [f'"{name}"' for name in names]


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
            facts = connection.execute(f'PRAGMA table_info("{table.replace(chr(34), chr(34) * 2)}")').fetchall()
            columns[table] = {fact[1]: ColumnFact(bool(fact[3]), bool(fact[5])) for fact in facts}
    except sqlite3.Error as error:
        connection.close()
        raise _explain(path, error) from error
    return columns
