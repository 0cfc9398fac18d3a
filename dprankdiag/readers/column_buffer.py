"""Collect batches of columns in arrays of their final dtype, without keeping the batches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dprankdiag.model.schema import Columns
from dprankdiag.readers.base import Array


class ColumnBuffer:
    """Growing columns; the first allocation is meant to hold all rows.

    Memory beyond the rows written is reserved, not touched, so a bound that is too high costs nothing.
    """

    def __init__(self, dtypes: Mapping[str, str], capacity: int) -> None:
        self._arrays: Columns = {name: np.empty(max(capacity, 1), dtype) for name, dtype in dtypes.items()}
        self._capacity = max(capacity, 1)
        self._rows = 0

    @property
    def names(self) -> tuple[str, ...]:
        """Name the columns, in order."""
        return tuple(self._arrays)

    def append(self, columns: Mapping[str, Array]) -> None:
        """Add rows, narrowing each column to its dtype."""
        count = len(next(iter(columns.values())))
        if self._rows + count > self._capacity:
            self._grow(self._rows + count)
        for name, array in self._arrays.items():
            array[self._rows : self._rows + count] = columns[name]
        self._rows += count

    def finish(self) -> Columns:
        """Return the rows written as views."""
        return {name: array[: self._rows] for name, array in self._arrays.items()}

    def _grow(self, needed: int) -> None:
        self._capacity = max(needed, 2 * self._capacity)
        for name, array in self._arrays.items():
            larger = np.empty(self._capacity, array.dtype)
            larger[: self._rows] = array[: self._rows]
            self._arrays[name] = larger
