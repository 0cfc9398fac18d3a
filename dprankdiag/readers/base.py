"""What a reader is: it says whether a file is of its kind, and turns one file into a `Reading`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dprankdiag.model.sources import Reading

Array = np.ndarray[Any, Any]


class Reader(Protocol):
    """One file format."""

    kind: str

    def can_read(self, path: Path) -> bool:
        """Say whether the file is of this kind and whole; never block, never raise for a bad file."""
        ...

    def read(self, path: Path) -> Reading:
        """Read one file.

        Raises:
            InputError: the file is of another kind.
            DamagedInput: it is of this kind but cannot be read.
        """
        ...
