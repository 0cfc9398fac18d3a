"""Read an Nsight Systems SQLite export."""

from __future__ import annotations

from pathlib import Path

from dprankdiag.model.sources import Reading
from dprankdiag.readers.nsys_database import NsysDatabase
from dprankdiag.readers.nsys_reading import read_export
from dprankdiag.readers.sniff import NSYS_SQLITE, is_kind, sniff


class NsysSqliteReader:
    """Reads SQLite exports of Nsight Systems."""

    kind = NSYS_SQLITE

    def can_read(self, path: Path) -> bool:
        """Say whether the file is a whole export."""
        return is_kind(path, self.kind)

    def read(self, path: Path) -> Reading:
        """Read one export."""
        return read(path)


def read(path: Path) -> Reading:
    """Read one export, as `read_export` says.

    Raises:
        UsageError: the path does not exist.
        InputError: it is no export.
        DamagedInput: it cannot be read.
    """
    sniff(path)
    with NsysDatabase(path) as db:
        return read_export(db, NSYS_SQLITE)
