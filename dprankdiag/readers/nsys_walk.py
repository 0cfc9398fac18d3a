"""Answer the questions that readers ask of a SQLite export from the pages of its tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dprankdiag.readers.base import Array
from dprankdiag.readers.nsys_export import Condition, CutText, OneOf, Packed, Wanted
from dprankdiag.readers.nsys_sql import quote_name
from dprankdiag.readers.sqlite_pages import Cells, ForeignPages, Sort, stream_cells

# A column of these types hands integers out as floats, whatever is stored.
# Source: https://www.sqlite.org/datatype3.html, section 3.1 "Determination Of Column Affinity".
_FLOAT_TYPES = ("REAL", "FLOA", "DOUB")
_ODD = -1


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the rows of a table.

    Attributes:
        table: its name.
        wanted: integer columns.
        where: which rows; all if None.
        text: one more column, of texts.
    """

    table: str
    wanted: tuple[Wanted | Packed, ...]
    where: Condition | None = None
    text: CutText | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Columns of some rows.

    Attributes:
        arrays: an int64 array for each column of the question.
        numbers: of each kept row the position of its text in `texts`.
        texts: texts, whole and undecoded.
    """

    arrays: list[Array]
    numbers: Array
    texts: tuple[bytes, ...]


def walk_rows(connection: sqlite3.Connection, path: Path, question: Question) -> Generator[Answer]:
    """Answer a question some pages at a time, in file order.

    Raises:
        ForeignPages: what comes next has to be asked of SQLite; all before it has been yielded.
        OSError: the file cannot be read.
    """
    places = _place_columns(connection, question.table)
    sorts = _sort_columns(question, places)
    for cells in stream_cells(path, _find_root(connection, question.table), sorts):
        yield _answer(cells, places, question)


def _place_columns(connection: sqlite3.Connection, table: str) -> dict[str, int]:
    """Return the place of each column in the stored records, `_ODD` where SQLite hands out other than what is stored.

    Raises:
        ForeignPages: records do not simply hold the declared columns.
    """
    try:
        facts = connection.execute(f"PRAGMA table_xinfo({quote_name(table)})").fetchall()
    except sqlite3.Error as error:
        raise ForeignPages(str(error)) from error
    if any(hidden for *_, hidden in facts):
        raise ForeignPages("columns that are computed")
    return {name: _ODD if key or _is_float(declared) else place for place, name, declared, _, _, key, _ in facts}


def _is_float(declared: str) -> bool:
    return any(part in declared.upper() for part in _FLOAT_TYPES)


def _find_root(connection: sqlite3.Connection, table: str) -> int:
    query = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?"
    try:
        row = connection.execute(query, (table,)).fetchone()
    except sqlite3.Error as error:
        raise ForeignPages(str(error)) from error
    if row is None or not isinstance(row[0], int):
        raise ForeignPages("a table without pages")
    return row[0]


def _sort_columns(question: Question, places: Mapping[str, int]) -> dict[int, Sort]:
    sorts: dict[int, Sort] = {}
    for column in question.wanted:
        for part in column.parts if isinstance(column, Packed) else (column,):
            _add(sorts, places, part.names, Sort.FLAG if part.is_flag else Sort.INTEGER)
    if question.where is not None:
        if not isinstance(question.where, OneOf) or not all(isinstance(value, int) for value in question.where.values):
            raise ForeignPages("a condition on texts")
        _add(sorts, places, (question.where.column,), Sort.INTEGER)
    if question.text is not None:
        _add(sorts, places, (question.text.column,), Sort.TEXT)
    return sorts or {0: Sort.FLAG}  # rows count even where none of the columns is there


def _add(sorts: dict[int, Sort], places: Mapping[str, int], names: Sequence[str], sort: Sort) -> None:
    for name in names:
        if places.get(name) == _ODD:
            raise ForeignPages("a column of keys or floats")
        if name in places and sorts.setdefault(places[name], sort) is not sort:
            raise ForeignPages("a column that is asked for in two ways")


def _answer(cells: Mapping[int, Cells], places: Mapping[str, int], question: Question) -> Answer:
    rows = len(next(iter(cells.values())).values)
    named = {name: cells[place] for name, place in places.items() if place in cells}
    if question.where is not None:
        named, rows = _keep_rows(named, question.where, rows)
    arrays = [_compute(named, column, rows) for column in question.wanted]
    text = None if question.text is None else named.get(question.text.column)
    if text is None:
        return Answer(arrays, np.zeros(rows, np.int64), (b"",))
    return Answer(arrays, text.values, text.texts)


def _keep_rows(named: Mapping[str, Cells], where: Condition, rows: int) -> tuple[dict[str, Cells], int]:
    if where.column not in named or not isinstance(where, OneOf):
        fits = np.zeros(rows, bool)
    else:
        cells = named[where.column]
        fits = np.isin(cells.values, np.array(where.values, np.int64))
        fits = fits if cells.nulls is None else fits & ~cells.nulls
    if fits.all():
        return dict(named), rows
    kept = {
        name: Cells(cells.values[fits], None if cells.nulls is None else cells.nulls[fits], cells.texts)
        for name, cells in named.items()
    }
    return kept, int(np.count_nonzero(fits))


def _compute(named: Mapping[str, Cells], column: Wanted | Packed, rows: int) -> Array:
    if isinstance(column, Packed):
        packed: Array = column.layout(*(_compute(named, part, rows) for part in column.parts))
        return packed
    present = [named[name] for name in column.names if name in named]
    return _flag(present, rows) if column.is_flag else _fill(present, column.absent, rows)


def _flag(columns: Sequence[Cells], rows: int) -> Array:
    found = np.zeros(rows, bool)
    for cells in columns:
        found |= True if cells.nulls is None else ~cells.nulls
    return found.astype(np.int64)


def _fill(columns: Sequence[Cells], absent: int, rows: int) -> Array:
    """Return the first of the columns that is not null, else `absent`."""
    if columns and columns[0].nulls is None:
        return columns[0].values
    filled = np.full(rows, absent, np.int64)
    for cells in reversed(columns):
        filled = cells.values if cells.nulls is None else np.where(cells.nulls, filled, cells.values)
    return filled
