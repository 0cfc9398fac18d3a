"""Read back results that were saved as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from dprankdiag.errors import DamagedInput, InputError

Kind = TypeVar("Kind")


def read_bytes(path: Path) -> bytes:
    """Read a file whole.

    Raises:
        InputError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", where=str(path)) from error


def parse_json(content: bytes, *, where: str = "", mend: str) -> Any:
    """Parse JSON.

    Args:
        mend: how to make a sound file.

    Raises:
        DamagedInput: it is none.
    """
    import msgspec

    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedInput(f"not JSON ({error})", where=where, mend=mend) from error


def parse_document(
    content: bytes, kind: type[Kind], schema_version: int, *, what: str, where: str = "", mend: str
) -> Kind:
    """Read a document that tells its schema version.

    Args:
        what: it should be, in words.
        mend: how to make a sound file.

    Raises:
        InputError: not JSON, not of that kind, or of another schema version.
    """
    import msgspec

    document = parse_json(content, where=where, mend=mend)
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != schema_version:
        other = "read it with the version that wrote it, or make it again"
        raise InputError(f"schema version {version}, expected {schema_version}", where=where, mend=other)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"not {what}: {error}", where=where, mend=mend) from error
