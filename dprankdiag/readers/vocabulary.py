"""Number the distinct values of long integer columns while they stream by."""

from __future__ import annotations

import numpy as np

from dprankdiag.readers.base import Array

_SLOT_BITS = 16
_SHIFT = np.uint64(64 - _SLOT_BITS)
# 2^64 over the golden ratio: spreads neighbouring keys over the slots (Knuth, The Art of Computer Programming 3, 6.4).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Vocabulary:
    """Codes 0, 1, 2 ... for distinct int64 values, in order of appearance.

    A table of slots answers the values seen before in a few numpy operations; only new values and the rare
    clash of two values in one slot take the slow way.
    """

    def __init__(self) -> None:
        self._codes: dict[int, int] = {}
        self._slot_values = np.zeros(1 << _SLOT_BITS, np.int64)
        self._slot_codes = np.full(1 << _SLOT_BITS, -1, np.int32)

    def __len__(self) -> int:
        return len(self._codes)

    def values(self) -> Array:
        """Return the distinct values in the order of their codes, int64."""
        return np.fromiter(self._codes, np.int64, len(self._codes))

    def encode(self, values: Array) -> Array:
        """Return the int32 code of every value, numbering new ones."""
        values = np.ascontiguousarray(values, np.int64)
        slots = _find_slots(values)
        codes: Array = self._slot_codes[slots]
        unknown = (self._slot_values[slots] != values) | (codes < 0)
        if unknown.any():
            codes[unknown] = self._learn(values[unknown])
        return codes

    def _learn(self, values: Array) -> Array:
        distinct, inverse = np.unique(values, return_inverse=True)
        codes = np.empty(len(distinct), np.int32)
        slots = _find_slots(distinct)
        for position, value in enumerate(distinct.tolist()):
            code = self._codes.setdefault(value, len(self._codes))
            codes[position] = code
            if self._slot_codes[slots[position]] < 0:
                self._slot_codes[slots[position]] = code
                self._slot_values[slots[position]] = value
        return codes[inverse]


def _find_slots(values: Array) -> Array:
    return ((values.view(np.uint64) * _SPREAD) >> _SHIFT).astype(np.intp)
