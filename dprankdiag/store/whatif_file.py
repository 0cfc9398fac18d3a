"""Read back what `dprankdiag whatif -o FILE.json` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.whatif import SCHEMA_VERSION, WhatIf

MOST_BYTES = 2**24
"""No larger file is one; traces in JSON are."""

_START = b'{"schema_version":'
_START_BYTES = 64
_MEND = "make one with: dprankdiag whatif INPUT -o FILE.json"


def is_whatif(path: Path) -> bool:
    """Tell whether a file holds a what-if: the published form begins like others, so that it is read to be sure."""
    try:
        with path.open("rb") as stream:
            start = stream.read(_START_BYTES)
        if not b"".join(start.split()).startswith(_START) or path.stat().st_size > MOST_BYTES:
            return False
        return _is_document(_parse(path.read_bytes()))
    except (OSError, InputError):
        return False


def _is_document(document: Any) -> bool:
    return isinstance(document, dict) and {"verdict", "options", "best", "measured"} <= set(document)


def _parse(content: bytes, where: str = "") -> Any:
    import msgspec

    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedInput(f"not JSON ({error})", where=where, mend=_MEND) from error


def load_whatif(path: Path) -> WhatIf:
    """Read a file back.

    Raises:
        InputError: it cannot be read, is damaged, or was made by a version with another schema.
    """
    import msgspec

    where = str(path)
    try:
        document = _parse(path.read_bytes(), where)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", where=where) from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        mend = "read it with the version that wrote it, or make it again"
        raise InputError(f"schema version {version}, expected {SCHEMA_VERSION}", where=where, mend=mend)
    try:
        return msgspec.convert(document, WhatIf)
    except msgspec.ValidationError as error:
        raise InputError(f"not a what-if: {error}", where=where, mend=_MEND) from error
