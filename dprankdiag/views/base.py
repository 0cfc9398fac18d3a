"""What every view of a diagnosis offers, and which views there are."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from dprankdiag.model.diagnosis import Diagnosis
    from dprankdiag.model.schema import Columns

DEFAULT_WIDTH = 80

FORMATS = {
    "text": "dprankdiag.views.text",
    "json": "dprankdiag.views.json",
    "markdown": "dprankdiag.views.markdown",
    "html": "dprankdiag.views.html",
    "perfetto": "dprankdiag.views.perfetto",
}
"""Format name to the module that renders it."""

SUFFIXES = {
    ".txt": "text",
    ".md": "markdown",
    ".html": "html",
    ".perfetto.json": "perfetto",
    ".perfetto": "perfetto",
    ".json": "json",
}
"""End of a file name to format name; the first that fits is meant."""

Tables = Mapping[str, "Columns"]
"""Bundle tables by name (see `model.results`); what an older version did not save is not there."""


class View(Protocol):
    """A module that renders a diagnosis; it opens no files but the package's own and judges nothing."""

    def render(self, diagnosis: Diagnosis, tables: Tables, *, width: int = DEFAULT_WIDTH, color: bool = False) -> str:
        """Render the whole diagnosis, ending with a line break."""
        ...


def find_format(file_name: str) -> str | None:
    """Return the format that the end of a file name asks for, in any case; None if there is none."""
    lowered = file_name.lower()
    return next((name for suffix, name in SUFFIXES.items() if lowered.endswith(suffix)), None)


def load_view(name: str) -> View:
    """Import the view of a format; views are imported on use because some are slow to import.

    Raises:
        KeyError: no such format.
    """
    return cast(View, import_module(FORMATS[name]))
