"""Intervals on one axis: running ends, gaps and unions."""

from __future__ import annotations

from typing import Any

import numpy as np

from dprankdiag.model.schema import ABSENT_NS

IntArray = np.ndarray[Any, np.dtype[np.int64]]


def running_end(end_ns: IntArray) -> IntArray:
    """Return, for every row of a start-sorted table, the latest end before it; ABSENT_NS for the first row."""
    ready = np.empty(len(end_ns), np.int64)
    if len(end_ns):
        ready[0] = ABSENT_NS
        np.maximum.accumulate(end_ns[:-1], out=ready[1:])
    return ready


def ready_by_stream(end_ns: IntArray, stream: np.ndarray[Any, Any]) -> IntArray:
    """Return, for every row of a start-sorted table, the latest end of the earlier rows of its stream."""
    changes = np.flatnonzero(stream[1:] != stream[:-1])
    if not len(changes):
        return running_end(end_ns)
    ready = np.empty(len(end_ns), np.int64)
    for one in np.unique(np.append(stream[changes + 1], stream[0])):
        rows = np.flatnonzero(stream == one)
        ready[rows] = running_end(end_ns[rows])
    return ready


def exclusive_time(start_ns: IntArray, end_ns: IntArray, ready_ns: IntArray) -> IntArray:
    """Give each row the time that no earlier row covers; over start-sorted rows it sums to their union.

    Args:
        start_ns, end_ns: `(n,)` sorted by start.
        ready_ns: `(n,)` latest end of what came before (see `running_end`).
    """
    return np.maximum(end_ns - np.maximum(start_ns, ready_ns), 0)
