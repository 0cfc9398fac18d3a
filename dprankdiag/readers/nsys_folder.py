"""Open an Nsight Systems parquetdir export for reading only: a folder with one Parquet file a table.

Tables and columns are named as in the SQLite export. Only files and columns that are asked for are opened, so what
nobody needs may be broken: builds of 2026 mark the raw bytes of `binaryData` as UTF-8, and the tables of samples can
be larger than all others. A file that breaks off keeps the rows read so far and is listed in `failures`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dprankdiag.errors import DamagedInput
from dprankdiag.readers.arrow_columns import (
    ForeignColumn,
    as_bytes,
    as_integers,
    as_values,
    number_texts,
    view_integers,
)
from dprankdiag.readers.base import Array
from dprankdiag.readers.nsys_export import Condition, CutText, OneOf, Packed, Wanted

SUFFIX = ".parquet"
_MAGIC = b"PAR1"
_SMALLEST_FILE_BYTES = 12
_BATCH_ROWS = 1 << 13
_SPAN_ROWS = 1 << 16
_BUFFER_BYTES = 1 << 18
"""Bytes of a column that are read ahead; without this bound a whole row group is, however long the writer made it."""
_SHOWN_FILES = 4


class _Unreadable(Exception):
    """A file of which nothing can be read."""


@dataclass(frozen=True, slots=True)
class _Footer:
    """What the end of a Parquet file says about it.

    Attributes:
        path: the file.
        size_bytes: its size.
        columns: names of its columns.
        metadata: pyarrow's account of its row groups.
    """

    path: Path
    size_bytes: int
    columns: tuple[str, ...]
    metadata: Any


def list_tables(path: Path) -> list[str]:
    """Return the tables that a folder has files for, in order of their names; nothing is opened.

    Raises:
        OSError: the folder cannot be listed.
    """
    names = (entry.name for entry in path.iterdir())
    return sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX) and not name.startswith("."))


class NsysFolder:
    """An open parquetdir export: an `NsysExport`.

    Attributes:
        path: the folder.
        failures: file name to what went wrong while reading it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failures: dict[str, str] = {}
        self._tables = frozenset(list_tables(path))
        self._footers: dict[str, _Footer | None] = {}

    def list_remarks(self) -> list[str]:
        """Name the files beside the tables: the folder is read as one export, and they are no part of it."""
        entries = sorted(entry.name for entry in self.path.iterdir())
        others = [name for name in entries if not name.endswith(SUFFIX) and not name.startswith(".")]
        if not others:
            return []
        shown = ", ".join(others[:_SHOWN_FILES]) + (", ..." if len(others) > _SHOWN_FILES else "")
        return [f"what lies beside its tables is not read: {shown}"]

    def refuse_if_nothing_opens(self) -> None:
        """Check that not every table that was asked for is broken.

        Raises:
            DamagedInput: every one is; names the first.
        """
        if self.failures and not any(self._footers.values()):
            name, reason = min(self.failures.items())
            raise DamagedInput(
                f"none of its tables can be read; {name} {reason}", where=str(self.path), mend="copy or export it again"
            )

    def has(self, table: str, *columns: str) -> bool:
        """Say whether the table exists and has all of these columns."""
        footer = self._open(table)
        return footer is not None and all(column in footer.columns for column in columns)

    def has_rows(self, table: str) -> bool:
        """Say whether the table exists and holds a row."""
        footer = self._open(table)
        return footer is not None and footer.metadata.num_rows > 0

    def bound_rows(self, table: str) -> int:
        """Return the number of rows, or of the file's bytes if that is less: the number may be broken."""
        footer = self._open(table)
        return 1 if footer is None else max(1, min(footer.metadata.num_rows, footer.size_bytes))

    def rows(
        self, table: str, columns: Sequence[str], where: Condition | None = None, limit: int | None = None
    ) -> list[tuple[Any, ...]]:
        """Read a small table, or few rows of a long one, as `NsysExport.rows` says."""
        kept: list[tuple[Any, ...]] = []
        names = [*columns, *([] if where is None else [where.column])]
        for batch in self._stream(table, names, where):
            kept += zip(*(as_values(_find_column(batch, name)) for name in columns), strict=True)
            if limit is not None and len(kept) >= limit:
                return kept[:limit]
        return kept

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
        names = [name for column in wanted for name in _list_names(column)]
        names += [item.column for item in (where, text) if item is not None]
        for batch in self._stream(table, names, where):
            try:
                arrays = [_compute(batch, column) for column in wanted]
                if text is not None:
                    arrays.append(_number(batch, text, {} if texts is None else texts))
            except ForeignColumn as error:
                self._note_failure(table, f"could be read only in part: {error}")
                return
            yield arrays

    def _stream(self, table: str, names: Sequence[str], where: Condition | None) -> Iterator[Any]:
        """Yield record batches with the columns among `names` that are there, and the rows that fulfil `where`."""
        import pyarrow as pa

        footer = self._open(table)
        if footer is None:
            return
        present = [name for name in dict.fromkeys(names) if name in footer.columns]
        # Rows of a table that has none of the columns still count, so that one column is read to count them by.
        batches = _iterate(footer, present or footer.columns[:1])
        while True:
            try:
                batch = next(batches, None)
                kept = None if batch is None else _keep_rows(batch, where)
            except (pa.ArrowException, OSError, ForeignColumn) as error:
                self._note_failure(table, f"could be read only in part: {_shorten(error)}")
                return
            if kept is None:
                return
            if kept.num_rows:
                yield kept

    def _open(self, table: str) -> _Footer | None:
        """Return the footer of a table's file; None if there is no file, or none that can be read."""
        if table not in self._tables:
            return None
        if table not in self._footers:
            try:
                self._footers[table] = _read_footer(self.path / f"{table}{SUFFIX}")
            except _Unreadable as error:
                self._footers[table] = None
                self._note_failure(table, f"could not be read: {error}")
        return self._footers[table]

    def _note_failure(self, table: str, reason: str) -> None:
        self.failures.setdefault(f"{table}{SUFFIX}", reason)


def _read_footer(path: Path) -> _Footer:
    """Read the footer of a Parquet file; never blocks.

    Source: https://parquet.apache.org/docs/file-format/ (magic number at both ends).

    Raises:
        _Unreadable: it is no whole Parquet file.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise _Unreadable("not a regular file")
        if status.st_size == 0:
            raise _Unreadable("empty file (0 bytes)")
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
            file.seek(-min(len(_MAGIC), status.st_size), os.SEEK_END)
            tail = file.read()
            if head != _MAGIC:
                raise _Unreadable("not a Parquet file")
            if tail != _MAGIC or status.st_size < _SMALLEST_FILE_BYTES:
                raise _Unreadable(f"incomplete copy or export, {status.st_size} bytes without a footer")
            opened = ParquetFile(file)
            return _Footer(path, status.st_size, tuple(map(str, opened.schema_arrow.names)), opened.metadata)
    except PermissionError as error:
        raise _Unreadable("no permission to read it") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _Unreadable(_shorten(error)) from error


def _iterate(footer: _Footer, columns: Sequence[str]) -> Iterator[Any]:
    """Yield the record batches of a file, a span of row groups at a time: what a span needs stays until its end.

    Row groups shorter than a batch are joined. Threads would decode a column each for no gain in time, at twice the
    memory. What the allocator would keep for later goes back, for the tables made of the batches need it more.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    # Opened here, for pyarrow takes no path that is not UTF-8.
    with footer.path.open("rb") as source:
        file = ParquetFile(source, metadata=footer.metadata, buffer_size=_BUFFER_BYTES)
        span: list[int] = []
        rows = 0
        for group in range(file.num_row_groups):
            span.append(group)
            rows += footer.metadata.row_group(group).num_rows
            if rows >= _SPAN_ROWS or group == file.num_row_groups - 1:
                yield from file.iter_batches(_BATCH_ROWS, row_groups=span, columns=columns, use_threads=False)
                span, rows = [], 0
    del file
    pa.default_memory_pool().release_unused()


def _list_names(column: Wanted | Packed) -> list[str]:
    parts = column.parts if isinstance(column, Packed) else (column,)
    return [name for part in parts for name in part.names]


def _find_column(batch: Any, name: str) -> Any:
    """Return a column by name, the first of several; nulls where it is missing."""
    import pyarrow as pa

    places = batch.schema.get_all_field_indices(name)
    return batch.column(places[0]) if places else pa.nulls(batch.num_rows)


def _keep_rows(batch: Any, where: Condition | None) -> Any:
    """Return the rows that fulfil a condition.

    Raises:
        ForeignColumn: its column holds another type than the values it is compared with.
    """
    if where is None:
        return batch
    import pyarrow as pa
    from pyarrow import compute

    column = _find_column(batch, where.column)
    try:
        if isinstance(where, OneOf) and all(isinstance(value, int) for value in where.values):
            fits = compute.is_in(as_integers(column), value_set=pa.array(where.values, pa.int64()))
        elif isinstance(where, OneOf):
            wanted = [str(value).encode() for value in where.values]
            fits = compute.is_in(as_bytes(column), value_set=pa.array(wanted, as_bytes(column).type))
        else:
            fits = compute.match_like(as_bytes(column), where.pattern, ignore_case=True)
            fits = compute.invert(fits) if where.is_opposite else fits
    except ForeignColumn as error:
        raise ForeignColumn(f"column {where.column} {error}") from error
    return batch if compute.all(fits, skip_nulls=False).as_py() else batch.filter(fits)


def _compute(batch: Any, column: Wanted | Packed) -> Array:
    if isinstance(column, Packed):
        packed: Array = column.layout(*(_compute(batch, part) for part in column.parts))
        return packed
    names = [name for name in column.names if batch.schema.get_all_field_indices(name)]
    return _flag(batch, names) if column.is_flag else _fill(batch, names, column.absent)


def _flag(batch: Any, names: Sequence[str]) -> Array:
    found = np.zeros(batch.num_rows, bool)
    for name in names:
        column = _find_column(batch, name)
        if column.null_count < len(column):
            found |= view_integers(column.is_valid().cast("int8"), np.int8) != 0
    return found.astype(np.int64)


def _fill(batch: Any, names: Sequence[str], absent: int) -> Array:
    """Return the first of the columns that is not null, else `absent`, as int64."""
    from pyarrow import compute

    columns = []
    for name in names:
        try:
            column = as_integers(_find_column(batch, name))
        except ForeignColumn as error:
            raise ForeignColumn(f"column {name} {error}") from error
        if column.null_count == len(column):
            continue
        columns.append(column)
        if not column.null_count:
            break
    if not columns:
        return np.full(batch.num_rows, absent, np.int64)
    whole = columns[0] if not columns[0].null_count else compute.coalesce(*columns, absent)
    return view_integers(whole, np.int64)


def _number(batch: Any, text: CutText, texts: dict[str, int]) -> Array:
    try:
        column = as_bytes(_find_column(batch, text.column))
    except ForeignColumn as error:
        raise ForeignColumn(f"column {text.column} {error}") from error
    return number_texts(column.fill_null(b""), texts, text.cut)


def _shorten(error: Exception) -> str:
    """Return the first line of what an error says, without the path."""
    text = getattr(error, "strerror", None) or str(error)
    return (text.splitlines() or [type(error).__name__])[0]
