"""The diagnosis as JSON (DESIGN 4.2): same input, same bytes."""

from __future__ import annotations

import json
from typing import Any

from dprankdiag.model.bundle import make_document
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.views.base import DEFAULT_WIDTH, Tables


def render(diagnosis: Diagnosis, tables: Tables, *, width: int = DEFAULT_WIDTH, color: bool = False) -> str:
    """Write one JSON object; it holds no tables, and width and colour do not apply."""
    return write_json(make_document(diagnosis))


def write_json(document: Any) -> str:
    """Write a document in pure ASCII, so that no name in it can steer a terminal and every encoding can carry it."""
    text = json.dumps(document, indent=2, ensure_ascii=True, allow_nan=False)
    return text.replace("\x7f", "\\u007f") + "\n"
