"""Turn Arrow columns into int64 arrays and texts, without pandas and without a float between.

pyarrow is imported where it is used: its import takes longer than reading many a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dprankdiag.readers.base import Array


class ForeignColumn(Exception):
    """A column holds another type than the one asked for."""


def view_integers(column: Any, dtype: type[np.integer[Any]]) -> Array:
    """View an Arrow array without nulls; its own `to_numpy` would import pandas."""
    view = np.frombuffer(column.buffers()[1], dtype)
    return view[column.offset : column.offset + len(column)]


def number_texts(column: Any, texts: dict[str, int], change: Callable[[str], str] | None = None) -> Array:
    """Return the int64 numbers of the texts of a binary column without nulls.

    Args:
        column: the column.
        texts: numbers the distinct texts; grows by new ones.
        change: what to make of each distinct text before it gets its number.
    """
    encoded = column.dictionary_encode()
    distinct = [raw.decode("utf-8", "replace") for raw in encoded.dictionary.to_pylist()]
    if change is not None:
        distinct = [change(text) for text in distinct]
    numbers = np.array([texts.setdefault(text, len(texts)) for text in distinct], np.int64)
    return np.take(numbers, view_integers(encoded.indices, np.int32))


def as_integers(column: Any) -> Any:
    """Turn a column of any integer type into int64, nulls kept; values above 2^63 wrap, as in SQLite.

    Raises:
        ForeignColumn: it holds other values. Floats are refused too: they cannot hold every nanosecond.
    """
    import pyarrow as pa

    plain = _unpack_dictionary(column)
    if not (pa.types.is_integer(plain.type) or pa.types.is_boolean(plain.type) or pa.types.is_null(plain.type)):
        raise ForeignColumn(f"holds {plain.type}, not integers")
    return plain if plain.type == pa.int64() else plain.cast(pa.int64(), safe=False)


def as_bytes(column: Any) -> Any:
    """Turn a column of texts into bytes, nulls kept: texts of an export are not always UTF-8.

    Raises:
        ForeignColumn: it holds no texts.
    """
    import pyarrow as pa

    plain = _unpack_dictionary(column)
    if not (_is_text(plain.type) or pa.types.is_null(plain.type)):
        raise ForeignColumn(f"holds {plain.type}, not texts")
    return plain.cast(pa.binary() if plain.type == pa.string() else pa.large_binary())  # the former copies nothing


def as_values(column: Any) -> list[Any]:
    """Return the values of a column as Python's: int, float, str or None; what is none of these counts as null."""
    import pyarrow as pa

    plain = _unpack_dictionary(column)
    if _is_text(plain.type):
        return [None if raw is None else raw.decode("utf-8", "replace") for raw in as_bytes(plain).to_pylist()]
    if pa.types.is_integer(plain.type):
        return list(as_integers(plain).to_pylist())
    return list(plain.to_pylist()) if pa.types.is_floating(plain.type) else [None] * len(plain)


def _unpack_dictionary(column: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    return column


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
