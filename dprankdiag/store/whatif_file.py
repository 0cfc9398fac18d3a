"""Read back what `dprankdiag whatif -o FILE.json` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dprankdiag.errors import InputError
from dprankdiag.model.whatif import SCHEMA_VERSION, WhatIf
from dprankdiag.store.documents import parse_document, parse_json, read_bytes

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
        return _is_document(parse_json(path.read_bytes(), mend=_MEND))
    except (OSError, InputError):
        return False


def _is_document(document: Any) -> bool:
    return isinstance(document, dict) and {"verdict", "options", "best", "measured"} <= set(document)


def load_whatif(path: Path) -> WhatIf:
    """Read a file back.

    Raises:
        InputError: it cannot be read, is damaged, or was made by a version with another schema.
    """
    return parse_document(read_bytes(path), WhatIf, SCHEMA_VERSION, what="a what-if", where=str(path), mend=_MEND)
