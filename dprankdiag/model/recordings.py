"""What tells a recording of ledgers from any other file."""

from __future__ import annotations

RECORDING = "recording"
"""The kind of input that a recording is."""

APPLICATION_ID = 0x4450524B
"""In the header of the database (offset 68), so that a recording is known by its first bytes: "DPRK"."""

HEAD_BYTES = 100
"""Length of the header. Source: https://www.sqlite.org/fileformat.html, section 1.3."""


def is_recording_head(head: bytes) -> bool:
    """Tell a recording by the first bytes of its file."""
    return head.startswith(b"SQLite format 3\0") and head[68:72] == APPLICATION_ID.to_bytes(4, "big")
