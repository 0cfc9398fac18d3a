"""What every view of a diagnosis offers, and which views there are."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from dprankdiag.model.diagnosis import Diagnosis

DEFAULT_WIDTH = 80

FORMATS = {"text": "dprankdiag.views.text", "json": "dprankdiag.views.json"}
"""Format name to the module that renders it."""

SUFFIXES = {".txt": "text", ".json": "json"}
"""File suffix to format name."""


class View(Protocol):
    """A module that renders a diagnosis; it opens no files and judges nothing."""

    def render(self, diagnosis: Diagnosis, *, width: int = DEFAULT_WIDTH, color: bool = False) -> str:
        """Render the whole diagnosis, ending with a line break."""
        ...


def load_view(name: str) -> View:
    """Import the view of a format; views are imported on use because some are slow to import.

    Raises:
        KeyError: no such format.
    """
    return cast(View, import_module(FORMATS[name]))
