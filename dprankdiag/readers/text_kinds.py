"""Tell the inputs that are text by their content: matrices of waits and Flight Recorder dumps."""

from __future__ import annotations

from pathlib import Path

from dprankdiag.readers.flight_recorder import FLIGHT_RECORDER, is_flight_dump
from dprankdiag.readers.wait_matrix import MOST_BYTES, WAIT_MATRIX, is_wait_matrix


def sniff_text(path: Path, head: bytes, size: int) -> str | None:
    """Return the kind of a text file, or None for all else.

    Args:
        head: its first bytes.
        size: bytes in all; a matrix without labels is known only by its last row.
    """
    if is_flight_dump(head):
        return FLIGHT_RECORDER
    if size > MOST_BYTES or b"\0" in head or head.lstrip()[:1] in (b"{", b"["):
        return None
    try:
        return WAIT_MATRIX if is_wait_matrix(path.read_bytes()) else None
    except OSError:
        return None
