"""Turn a SQLite query into numpy columns, some rows at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from dprankdiag.readers.base import Array

_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Query:
    """A query of integer columns and perhaps one text column at the end.

    Attributes:
        sql: the statement.
        integers: number of integer columns.
        texts: numbers of the distinct texts; None if there is no text column.
    """

    sql: str
    integers: int
    texts: dict[str, int] | None = None


def stream_batches(connection: sqlite3.Connection, query: Query) -> Generator[list[Array], None, str]:
    """Yield batches of columns in row order; return what broke the reading off, empty if nothing did."""
    failure = ""
    try:
        cursor = connection.execute(query.sql)
    except sqlite3.Error as error:
        return str(error)
    while not failure:
        rows: list[tuple[Any, ...]] = []
        try:
            # list.extend keeps what came before an error, fetchmany would lose it
            rows.extend(islice(cursor, _ROWS))
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
