"""Tell the inputs that are text by their content: what engines tell of their load, wait matrices, dumps."""

from __future__ import annotations

from pathlib import Path

from dprankdiag.readers.flight_recorder import FLIGHT_RECORDER, is_flight_dump
from dprankdiag.readers.ledger_kinds import LEDGER, is_ledger
from dprankdiag.readers.wait_matrix import MOST_BYTES, WAIT_MATRIX, is_wait_matrix

LOG_BYTES = 1 << 20
"""A log may begin with so much about its start before it tells a load."""


def sniff_text(path: Path, head: bytes, size: int) -> str | None:
    """Return the kind of a text file, or None for all else.

    Args:
        head: its first bytes.
        size: bytes in all; a matrix without labels is known only by its last row.
    """
    if is_flight_dump(head):
        return FLIGHT_RECORDER
    if is_ledger(head) or is_ledger(_read_more(path)):
        return LEDGER
    if size > MOST_BYTES or b"\0" in head or head.lstrip()[:1] in (b"{", b"["):
        return None
    try:
        return WAIT_MATRIX if is_wait_matrix(path.read_bytes()) else None
    except OSError:
        return None


def _read_more(path: Path) -> bytes:
    """Read as much as it may take to know a log."""
    try:
        with path.open("rb") as file:
            return file.read(LOG_BYTES)
    except OSError:
        return b""
