"""Declare a table once: its columns, their types, units and meaning.

Raw trace tables are plain numpy columns (`Columns`), because millions of rows pass through them and a small trace must
not wait for pandas. Tables for people and bundles are pandas frames made by `Table.frame`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dprankdiag.errors import TableError

if TYPE_CHECKING:
    import pandas as pd

Columns = dict[str, np.ndarray[Any, Any]]
"""A table as arrays of equal length, one a column."""

ABSENT_NS = int(np.iinfo(np.int64).min)
"""Null in a nullable int64 column: the bit pattern numpy itself uses for a missing time (NaT)."""

ABSENT_ID = -1
"""Null in a nullable id column; ids count from 0."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its numpy dtype, unit and meaning."""

    name: str
    dtype: str
    unit: str
    meaning: str
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A declared table."""

    name: str
    row_is: str
    columns: tuple[Column, ...]

    def empty(self) -> Columns:
        """Make the table without rows."""
        return {column.name: np.empty(0, column.dtype) for column in self.columns}

    def check(self, columns: Mapping[str, np.ndarray[Any, Any]]) -> Columns:
        """Return the columns in declared order and dtype.

        Raises:
            TableError: a column is missing, unknown, of another kind of dtype, or of another length.
        """
        names = {column.name for column in self.columns}
        if set(columns) != names:
            raise TableError(f"columns {sorted(set(columns) ^ names)} missing or unknown", where=f"table {self.name}")
        lengths = {len(values) for values in columns.values()}
        if len(lengths) > 1:
            raise TableError(f"columns of lengths {sorted(lengths)}", where=f"table {self.name}")
        checked: Columns = {}
        for column in self.columns:
            values = columns[column.name]
            expected = np.dtype(column.dtype)
            if values.dtype != expected:
                if not np.can_cast(values.dtype, expected, "same_kind"):
                    raise TableError(
                        f"column {column.name} is {values.dtype}, expected {expected}", where=f"table {self.name}"
                    )
                values = values.astype(expected)
            checked[column.name] = values
        return checked

    def frame(self, columns: Mapping[str, np.ndarray[Any, Any]]) -> pd.DataFrame:
        """Make a pandas frame of checked columns."""
        import pandas as pd

        return pd.DataFrame(self.check(columns), copy=False)


def count_rows(columns: Columns) -> int:
    """Count the rows of a table."""
    return len(next(iter(columns.values()))) if columns else 0


def take_rows(columns: Columns, index: np.ndarray[Any, Any] | slice) -> Columns:
    """Select rows of every column by mask, index or slice."""
    return {name: values[index] for name, values in columns.items()}


def join_rows(table: Table, parts: list[Columns]) -> Columns:
    """Concatenate parts of one table; no parts give the empty table."""
    if not parts:
        return table.empty()
    if len(parts) == 1:
        return parts[0]
    return {column.name: np.concatenate([part[column.name] for part in parts]) for column in table.columns}
