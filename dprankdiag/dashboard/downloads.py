"""Files to save: the diagnosis in every format, its bundle, and its tables as CSV."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Any

from dprankdiag.dashboard.provider import Provider, Snapshot
from dprankdiag.model.schema import Columns
from dprankdiag.store.bundle import pack_bundle
from dprankdiag.views.base import load_view

_TYPES = {
    "html": "text/html",
    "json": "application/json",
    "md": "text/markdown",
    "txt": "text/plain",
    "csv": "text/csv",
    "dprank": "application/octet-stream",
}
_FORMATS = {
    "diagnosis.html": "html",
    "diagnosis.md": "markdown",
    "diagnosis.json": "json",
    "diagnosis.txt": "text",
    "diagnosis.perfetto.json": "perfetto",
}
_LEADING = "=+-@\t\r"
"""Beginnings of a text that a spreadsheet would take for a formula."""


def add_downloads(server: Any, provider: Provider) -> None:
    """Let a Flask server give the files."""
    from flask import Response

    def download(name: str) -> Any:
        snapshot = provider.latest()
        content = None if snapshot is None else make_file(snapshot, name)
        if content is None:
            return Response("There is no such file.\n", 404, mimetype="text/plain")
        answer = Response(content, mimetype=_TYPES[name.rpartition(".")[2]])
        answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        return answer

    server.add_url_rule("/download/<name>", "download", download)


def make_file(snapshot: Snapshot, name: str) -> bytes | None:
    """Make a file by its name; None if there is none of that name."""
    if name == "diagnosis.dprank":
        return pack_bundle(snapshot.diagnosis, snapshot.tables)
    if name in _FORMATS:
        text = load_view(_FORMATS[name]).render(snapshot.diagnosis, snapshot.tables)
        return text.encode("utf-8", "backslashreplace")
    columns = snapshot.tables.get(name.removesuffix(".csv")) if name.endswith(".csv") else None
    return None if columns is None else write_csv(columns).encode("utf-8", "backslashreplace")


def write_csv(columns: Mapping[str, Any] | Columns) -> str:
    """Write a table as CSV; what is not told is empty, and no text is taken for a formula."""
    import pandas as pd

    shown = {
        name: [_defuse(str(value)) for value in values.tolist()] if values.dtype.kind in "OUT" else values
        for name, values in columns.items()
    }
    buffer = StringIO()
    pd.DataFrame(shown).to_csv(buffer, index=False, lineterminator="\n")
    return buffer.getvalue()


def _defuse(text: str) -> str:
    return f"'{text}" if text.startswith(tuple(_LEADING)) else text
