"""Save a diagnosis with its small tables as one file, and read it back.

A bundle (``.dprank``) is a zip archive without compression of its own: ``diagnosis.json`` first, in the published
schema, then one ``<table>.parquet`` a table. Equal content gives equal bytes: members have a fixed date and are sorted
by name.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from dprankdiag.errors import DamagedInput, InputError, TableError
from dprankdiag.model.bundle import SCHEMA_VERSION, TOOL_NAME, make_document
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.schema import Columns
from dprankdiag.store.bundle_fit import check_tables
from dprankdiag.store.whole_files import replace_file

SUFFIX = ".dprank"
DIAGNOSIS_MEMBER = "diagnosis.json"
TABLE_SUFFIX = ".parquet"
FIXED_DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest date a zip member can have.

Source: APPNOTE.TXT of the zip format, section 4.4.6 (MS-DOS dates count years from 1980).
"""

_ZIP_START = b"PK\x03\x04"
_NAME_OFFSET = 30
"""Where the first member's name begins. Source: APPNOTE.TXT, section 4.3.7 (local file header)."""

MOST_CELLS = 1 << 28
"""Cells of one table: a day of steps of a thousand ranks; what claims more would only fill the memory."""

_SHOWN = 200
"""Characters of an error that may repeat what the file holds."""

_MEND = "save one with: dprankdiag analyze TRACE -o FILE.dprank"


def save_bundle(
    path: Path, diagnosis: Diagnosis, tables: Mapping[str, Columns], more: Sequence[tuple[str, bytes]] = ()
) -> None:
    """Write a bundle (see `pack_bundle`) in one move: a reader sees the old file or the whole new one.

    Raises:
        OSError: the folder cannot be written.
    """
    replace_file(path, pack_bundle(diagnosis, tables, more))


def pack_bundle(diagnosis: Diagnosis, tables: Mapping[str, Columns], more: Sequence[tuple[str, bytes]] = ()) -> bytes:
    """Make the bytes of a bundle.

    Args:
        more: further members, name and content; a reader of the diagnosis passes over those in folders.
    """
    document = json.dumps(make_document(diagnosis), ensure_ascii=True, allow_nan=False, indent=1)
    members = [(DIAGNOSIS_MEMBER, document.encode("ascii"))]
    members += [(f"{name}{TABLE_SUFFIX}", _pack_table(tables[name])) for name in sorted(tables)]
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (*members, *more):
            info = zipfile.ZipInfo(name, FIXED_DATE)
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def _pack_table(columns: Columns) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = BytesIO()
    arrays = {name: _make_array(values) for name, values in columns.items()}
    pq.write_table(pa.table(arrays), buffer, compression="zstd")
    return buffer.getvalue()


def _make_array(values: Any) -> Any:
    import pyarrow as pa

    if values.dtype.kind in "OU":
        return pa.array(values.tolist(), type=pa.string())
    return pa.array(values)


def is_bundle(path: Path) -> bool:
    """Tell by its first bytes, or failing that by its suffix, whether a file is meant as a bundle."""
    if path.exists() and not path.is_file():
        return False
    if path.suffix.lower() == SUFFIX:
        return True
    try:
        with path.open("rb") as stream:
            start = stream.read(_NAME_OFFSET + len(DIAGNOSIS_MEMBER))
    except OSError:
        return False
    return start.startswith(_ZIP_START) and start[_NAME_OFFSET:] == DIAGNOSIS_MEMBER.encode()


def load_bundle(path: Path) -> tuple[Diagnosis, dict[str, Columns]]:
    """Read a bundle back.

    Raises:
        InputError: not a bundle, damaged, or made by a version with another schema.
    """
    with open_archive(path, _MEND) as archive:
        names = archive.namelist()
        if DIAGNOSIS_MEMBER not in names:
            raise InputError(f"a zip archive without {DIAGNOSIS_MEMBER}", where=str(path), mend=_MEND)
        check_sizes(archive, path, _MEND)
        diagnosis = parse_diagnosis(archive.read(DIAGNOSIS_MEMBER), where=str(path))
        tables = {
            name.removesuffix(TABLE_SUFFIX): _unpack_table(archive.read(name), f"{path}/{name}")
            for name in names
            if name.endswith(TABLE_SUFFIX) and "/" not in name
        }
    try:
        return diagnosis, check_tables(tables)
    except TableError as error:
        raise DamagedInput(f"tables that do not fit ({error})", where=str(path), mend=_MEND) from error


@contextmanager
def open_archive(path: Path, mend: str) -> Iterator[zipfile.ZipFile]:
    """Open the archive that a bundle is, and say in a line what is wrong with it while it is read.

    Raises:
        DamagedInput: it is cut short or broken.
        InputError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise DamagedInput(f"not a whole bundle ({str(error)[:_SHOWN]})", where=str(path), mend=mend) from error
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", where=str(path)) from error


def check_sizes(archive: zipfile.ZipFile, path: Path, mend: str) -> None:
    """Refuse an archive whose members are larger than itself: a bundle is not packed, and nothing in it lies twice.

    Raises:
        DamagedInput: it would fill the memory.
    """
    unpacked, size_bytes = sum(info.file_size for info in archive.infolist()), path.stat().st_size
    if unpacked > size_bytes:
        what = f"an archive of {size_bytes} bytes that unpacks to {unpacked}, and a bundle is not packed"
        raise DamagedInput(what, where=str(path), mend=mend)


def _unpack_table(content: bytes, where: str) -> Columns:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(BytesIO(content))
        if file.metadata.num_rows * max(file.metadata.num_columns, 1) > MOST_CELLS:
            raise DamagedInput(f"a table of {file.metadata.num_rows} rows, more than can be", where=where, mend=_MEND)
        table = file.read()
        return {name: table.column(name).to_numpy() for name in table.column_names}
    except (pa.ArrowException, OSError, KeyError, TypeError, OverflowError) as error:
        raise DamagedInput("not a Parquet table", where=where, mend=_MEND) from error


def parse_diagnosis(content: bytes | str, *, where: str = "") -> Diagnosis:
    """Read a published diagnosis.

    Raises:
        InputError: not JSON, not a diagnosis, or of another schema version.
    """
    import msgspec

    try:
        document = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedInput(f"not JSON ({error})", where=where, mend=_MEND) from error
    if not isinstance(document, dict) or "schema_version" not in document:
        raise InputError(f"JSON, but not a diagnosis of {TOOL_NAME}", where=where, mend=_MEND)
    version = document["schema_version"]
    if version != SCHEMA_VERSION:
        raise InputError(
            f"schema version {version}, expected {SCHEMA_VERSION}",
            where=where,
            mend=f"read it with the {TOOL_NAME} that wrote it, or analyse the trace again",
        )
    try:
        return msgspec.convert(document, Diagnosis)
    except msgspec.ValidationError as error:
        raise InputError(f"not a diagnosis: {error}", where=where, mend=_MEND) from error
