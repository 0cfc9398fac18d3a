"""Read an Nsight Systems parquetdir export: a folder that is one input."""

from __future__ import annotations

from pathlib import Path

from dprankdiag.errors import InputError
from dprankdiag.model.sources import Reading
from dprankdiag.readers.nsys_folder import NsysFolder
from dprankdiag.readers.nsys_reading import read_export
from dprankdiag.readers.sniff import NSYS_PARQUET, is_kind, sniff


class NsysParquetReader:
    """Reads parquetdir exports of Nsight Systems."""

    kind = NSYS_PARQUET

    def can_read(self, path: Path) -> bool:
        """Say whether the folder holds the tables of an export."""
        return is_kind(path, self.kind)

    def read(self, path: Path) -> Reading:
        """Read one export."""
        return read(path)


def read(path: Path) -> Reading:
    """Read one export, as `read_export` says.

    Raises:
        UsageError: the path does not exist.
        InputError: it is no folder with the tables of an export.
        DamagedInput: none of its tables can be read.
    """
    if sniff(path) != NSYS_PARQUET:
        raise InputError("no parquetdir export", where=str(path), mend="nsys export --type parquetdir REPORT.nsys-rep")
    db = NsysFolder(path)
    reading = read_export(db, NSYS_PARQUET)
    db.refuse_if_nothing_opens()
    return reading
