"""Two ways to turn a SQLite query into numpy columns behind one function.

The ADBC driver hands whole Arrow batches over without a Python object a value, and lets several threads read spans of
rows at once; it is an extra, and its import only pays on large files. The standard library is the other way, and takes
over where ADBC stops.
"""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from dprankdiag.readers.arrow_columns import number_texts, view_integers
from dprankdiag.readers.base import Array

_ARROW_ROWS = 8_192
_PYTHON_ROWS = 20_000
_WORTH_ADBC_BYTES = 32 * 1024 * 1024
_MOST_THREADS = 4


class _AdbcStopped(Exception):
    """ADBC could not go on after some rows."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of integer columns and perhaps one text column at the end.

    Attributes:
        select: the statement up to its table.
        where: condition on the rows; empty for all.
        integers: number of integer columns.
        texts: numbers of the distinct texts; None if there is no text column.
        rowids: lowest and highest rowid, if they number the rows about densely.
    """

    select: str
    where: str
    integers: int
    texts: dict[str, int] | None = None
    rowids: tuple[int, int] | None = None

    def write(self, span: str = "") -> str:
        """Write the SQL, perhaps of a span of rows."""
        condition = " AND ".join(f"({part})" for part in (self.where, span) if part)
        return f"{self.select} WHERE {condition}" if condition else self.select

    def write_spans(self) -> list[str]:
        """Write one SQL statement for each span of rows, in row order."""
        if self.rowids is None:
            return [self.write()]
        low, high = self.rowids
        starts = range(low, high + 1, _ARROW_ROWS)
        return [self.write(f"rowid BETWEEN {start} AND {start + _ARROW_ROWS - 1}") for start in starts]


def stream_batches(
    connection: sqlite3.Connection, query: Query, uri: str, size_bytes: int
) -> Generator[list[Array], None, str]:
    """Yield batches of columns in row order; return what broke the reading off, empty if nothing did."""
    done = 0
    if size_bytes >= _WORTH_ADBC_BYTES and find_spec("adbc_driver_sqlite") and find_spec("pyarrow"):
        try:
            for batch in _stream_arrow(query, uri):
                split = _split_arrow(batch, query)
                done += batch.num_rows
                yield split
            return ""
        except _AdbcStopped:
            pass
    return (yield from _stream_python(connection, query, done))


class _ArrowReader:
    """Runs queries through ADBC, each thread on a connection of its own."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._idle: SimpleQueue[Any] = SimpleQueue()

    def fetch(self, sql: str) -> list[Any]:
        """Return the record batches of a query.

        Raises:
            _AdbcStopped: the driver is missing or failed.
        """
        try:
            # Not their dbapi module: it would import pandas, which takes longer than many a file.
            from adbc_driver_manager import AdbcStatement, Error
            from pyarrow import ArrowException, RecordBatchReader
        except (ImportError, OSError) as error:
            raise _AdbcStopped from error
        try:
            database, connection = self._take() or _connect(self._uri)
            try:
                with AdbcStatement(connection) as statement:
                    statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_ARROW_ROWS)})
                    statement.set_sql_query(sql)
                    stream, _ = statement.execute_query()
                    batches = list(RecordBatchReader.from_stream(stream))
            finally:
                self._idle.put((database, connection))
        except (Error, ArrowException, OSError) as error:
            raise _AdbcStopped from error
        return batches

    def close(self) -> None:
        """Close the connections that no thread uses any more."""
        while pair := self._take():
            for part in reversed(pair):
                part.close()

    def _take(self) -> Any:
        try:
            return self._idle.get_nowait()
        except Empty:
            return None


def _connect(uri: str) -> tuple[Any, Any]:
    """Open a database, and a connection to it; both have to be closed."""
    from adbc_driver_manager import AdbcConnection
    from adbc_driver_sqlite import connect

    database = connect(uri)
    return database, AdbcConnection(database)


def _stream_arrow(query: Query, uri: str) -> Iterator[Any]:
    """Yield record batches in row order, a few spans ahead of the consumer."""
    reader = _ArrowReader(uri)
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    waiting: deque[Future[list[Any]]] = deque()
    spans = iter(query.write_spans())
    with ThreadPoolExecutor(threads, thread_name_prefix="sqlite") as pool:
        try:
            waiting.extend(pool.submit(reader.fetch, sql) for sql in islice(spans, threads + 1))
            while waiting:
                batches = waiting.popleft().result()
                waiting.extend(pool.submit(reader.fetch, sql) for sql in islice(spans, 1))
                while batches:
                    yield batches.pop(0)
        finally:
            pool.shutdown(cancel_futures=True)
            reader.close()


def _split_arrow(batch: Any, query: Query) -> list[Array]:
    import pyarrow as pa

    columns = batch.columns
    if any(column.type != pa.int64() or column.null_count for column in columns[: query.integers]):
        raise _AdbcStopped("a column that is not all integers")
    split = [view_integers(column, np.int64) for column in columns[: query.integers]]
    if query.texts is not None:
        if columns[-1].type != pa.string() or columns[-1].null_count:
            raise _AdbcStopped("a column that is not all text")
        split.append(number_texts(columns[-1].cast(pa.binary()), query.texts))
    return split


def _stream_python(connection: sqlite3.Connection, query: Query, skip: int) -> Generator[list[Array], None, str]:
    failure = ""
    try:
        cursor = connection.execute(query.write() + (f" LIMIT -1 OFFSET {skip}" if skip else ""))
    except sqlite3.Error as error:
        return str(error)
    while not failure:
        rows: list[tuple[Any, ...]] = []
        try:
            # list.extend keeps what came before an error, fetchmany would lose it
            rows.extend(islice(cursor, _PYTHON_ROWS))
        except sqlite3.Error as error:
            failure = str(error)
        if not rows:
            break
        try:
            yield _split_rows(rows, query)
        except (TypeError, ValueError, OverflowError) as error:
            failure = f"a value that is not an integer ({type(error).__name__})"
    return failure


def _split_rows(rows: list[tuple[Any, ...]], query: Query) -> list[Array]:
    if query.texts is None:
        return list(np.array(rows, np.int64).T)
    columns = list(zip(*rows, strict=True))
    split: list[Array] = [np.array(column, np.int64) for column in columns[: query.integers]]
    texts = query.texts
    split.append(np.array([texts.setdefault(_as_text(value), len(texts)) for value in columns[-1]], np.int64))
    return split


def _as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
