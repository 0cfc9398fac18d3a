"""Make a parquetdir of a SQLite export, row by row: one file a table, with the names and types the tables have."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_TYPES = {"INTEGER": pa.int64(), "REAL": pa.float64(), "TEXT": pa.string()}
_ROWS_AT_A_TIME = 50_000


def write_parquetdir(
    source: Path, folder: Path, types: Mapping[str, Any] | None = None, rows_a_group: int = 1 << 20
) -> Path:
    """Write every table of a SQLite export as `<TABLE>.parquet`.

    Args:
        source: the export.
        folder: where to; made if it is not there.
        types: Arrow types by column name, in place of int64, double and string.
        rows_a_group: about how many rows make a row group.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    connection.text_factory = bytes
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        table = name.decode()
        _write_table(connection, table, folder / f"{table}.parquet", types or {}, rows_a_group)
    connection.close()
    return folder


def _write_table(
    connection: sqlite3.Connection, table: str, path: Path, types: Mapping[str, Any], rows_a_group: int
) -> None:
    quoted = '"' + table.replace('"', '""') + '"'
    facts = connection.execute(f"PRAGMA table_info({quoted})").fetchall()
    fields = []
    for _, name, declared, not_null, _, _ in facts:
        plain = _TYPES.get(declared.decode().upper() or "INTEGER", pa.int64())
        fields.append(pa.field(name.decode(), types.get(name.decode(), plain), not not_null))
    schema = pa.schema(fields)
    cursor = connection.execute(f"SELECT * FROM {quoted}")
    with pq.ParquetWriter(path, schema) as writer:
        waiting: list[pa.Table] = []
        while rows := cursor.fetchmany(min(_ROWS_AT_A_TIME, rows_a_group)):
            columns = zip(*rows, strict=True)
            arrays = [_make_array(column, field.type) for column, field in zip(columns, fields, strict=True)]
            waiting.append(pa.Table.from_arrays(arrays, schema=schema))
            if sum(part.num_rows for part in waiting) >= rows_a_group:
                writer.write_table(pa.concat_tables(waiting))
                waiting.clear()
        if waiting:
            writer.write_table(pa.concat_tables(waiting))


def _make_array(values: tuple[Any, ...], kind: Any) -> Any:
    """Make a column; bytes that are no UTF-8 stay as they are, also where the column calls itself text."""
    if pa.types.is_dictionary(kind):
        return _make_array(values, kind.value_type).dictionary_encode()
    if pa.types.is_unsigned_integer(kind):
        return pa.array(values, pa.int64()).cast(kind, safe=False)
    if any(isinstance(value, bytes) for value in values):
        raw = pa.array([value if value is None else _as_bytes(value) for value in values], pa.binary())
        return raw.cast(pa.string(), safe=False).cast(kind, safe=False)
    return pa.array(values, kind)


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


if __name__ == "__main__":
    write_parquetdir(Path(sys.argv[1]), Path(sys.argv[2]))
