"""Save what ledgers believed at each dispatch as one JSON file, and read it back."""

from __future__ import annotations

from pathlib import Path

from dprankdiag.model.dispatches import KIND, SCHEMA_VERSION, LedgerRecord
from dprankdiag.store.documents import parse_document, read_bytes
from dprankdiag.store.whole_files import replace_file

SUFFIX = ".json"
_START_BYTES = 64
"""Of a file, in which its kind is looked for; it is the first field."""

_MEND = f"save one with: dprankdiag harness ledger SCENARIO -o FILE{SUFFIX}"


def pack_ledgers(record: LedgerRecord) -> bytes:
    """Make the bytes of a file."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def save_ledgers(path: Path, record: LedgerRecord) -> None:
    """Write a file in one move: a reader sees the old one or the whole new one.

    Raises:
        OSError: the folder cannot be written.
    """
    replace_file(path, pack_ledgers(record))


def is_ledger_record(path: Path) -> bool:
    """Tell by its first bytes whether a file holds what ledgers believed."""
    try:
        with path.open("rb") as stream:
            start = stream.read(_START_BYTES)
    except OSError:
        return False
    return f'"kind":"{KIND}"'.encode() in b"".join(start.split())


def load_ledgers(path: Path) -> LedgerRecord:
    """Read a file back.

    Raises:
        InputError: it cannot be read, is damaged, or was made by a version with another schema.
    """
    return parse_ledgers(read_bytes(path), where=str(path))


def parse_ledgers(content: bytes, *, where: str = "") -> LedgerRecord:
    """Read the bytes of a file.

    Raises:
        InputError: not JSON, not such a record, or of another schema version.
    """
    return parse_document(content, LedgerRecord, SCHEMA_VERSION, what="a record of ledgers", where=where, mend=_MEND)
