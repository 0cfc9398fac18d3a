"""Keep the digests of recordings in a bundle, beside their diagnosis, and read them back as recordings.

A digest is a folder of members inside the bundle: ``digest/<n>/reading.json`` says what was recorded of whom, and one
``digest/<n>/<table>.parquet`` a table holds the rest.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from dprankdiag.catalog.kernels import FAMILIES
from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.digests import DIGEST, DIGEST_CALLS, DIGEST_TABLES, is_digested
from dprankdiag.model.schema import Columns, Table
from dprankdiag.model.sources import Actor, Capture, Names, Reading, Session, Source
from dprankdiag.model.traces import TRACE_TABLES
from dprankdiag.store.bundle import TABLE_SUFFIX, check_sizes, open_archive

VERSION = 1
"""Raised when a digest's tables, or what their numbers mean, change: digests of two versions are not joined."""

_FOLDER = "digest"
_HEAD = "reading.json"

_FROM_START = {(DIGEST_CALLS.name, "arrival_ns"), (DIGEST_CALLS.name, "end_ns")}
"""Moments that are kept as time since the row's start, which takes fewer bytes."""

_AGAIN = "make it with: dprankdiag digest TRACE"


@dataclass(frozen=True, slots=True)
class _Head:
    """What a digest says beside its tables.

    Attributes:
        families: of kernels, in the order of their codes.
        patterns: digest of the user's own kernel names that were tried; empty without any.
    """

    version: int
    families: tuple[str, ...]
    patterns: str
    source: Source
    session: Session
    capture: Capture
    actors: tuple[Actor, ...]
    names: Names


def pack_digests(readings: Sequence[Reading], patterns: str = "") -> list[tuple[str, bytes]]:
    """Make the members that keep digests in a bundle (see `bundle.pack_bundle`).

    Args:
        readings: with their tables digested, or whole.
        patterns: see `read_digests`.
    """
    return [member for number, reading in enumerate(readings) for member in _pack_one(number, reading, patterns)]


def _pack_one(number: int, reading: Reading, patterns: str) -> list[tuple[str, bytes]]:
    import msgspec

    told = (reading.source, reading.session, reading.capture, reading.actors, reading.names)
    head = _Head(VERSION, tuple(FAMILIES), patterns, *told)
    tables: Sequence[Table] = (*TRACE_TABLES, *DIGEST_TABLES) if is_digested(reading.tables) else TRACE_TABLES
    members = [(f"{_FOLDER}/{number}/{_HEAD}", msgspec.json.encode(asdict(head)))]
    for table in sorted(tables, key=lambda table: table.name):
        columns = reading.tables[table.name]
        if len(columns["rank"]):
            members.append((f"{_FOLDER}/{number}/{table.name}{TABLE_SUFFIX}", _pack(table, columns)))
    return members


def _pack(table: Table, columns: Columns) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kept = {
        name: values - columns["start_ns"] if (table.name, name) in _FROM_START else values
        for name, values in columns.items()
    }
    # Few different ids repeat step by step; times and counts differ, and need few bits each.
    packed = [c.name for c in table.columns if c.unit != "id" and c.dtype.startswith("int")]
    buffer = BytesIO()
    pq.write_table(
        pa.table({name: pa.array(values) for name, values in kept.items()}),
        buffer,
        compression="zstd",
        use_dictionary=[name for name in kept if name not in packed],
        column_encoding=dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
        write_statistics=False,
    )
    return buffer.getvalue()


def read_digests(path: Path, patterns: str = "") -> tuple[Reading, ...]:
    """Read the digests that a bundle keeps, each as the recording that it stands for.

    Of several, each is known by the bundle's path with that of its recording behind it, from the folder on that holds
    them all; of one, by the bundle's path alone.

    Args:
        patterns: digest of the user's own kernel names; a digest made with others tells other families.

    Raises:
        InputError: no bundle, one without a digest, or one made by another version or with other names.
        DamagedInput: it is cut short or broken.
    """
    where = str(path)
    with open_archive(path, _AGAIN) as archive:
        held = set(archive.namelist())
        folders = _list_folders(held)
        if not folders:
            raise InputError("holds a verdict and no digest, so it cannot be joined", where=where, mend=_AGAIN)
        check_sizes(archive, path, _AGAIN)
        readings = [_read_one(archive, held, folder, patterns, where) for folder in folders]
    names = _name_sources(where, [reading.source.path for reading in readings])
    return tuple(
        replace(reading, source=replace(reading.source, path=name, kind=DIGEST))
        for reading, name in zip(readings, names, strict=True)
    )


def copy_digests(path: Path) -> list[tuple[str, bytes]]:
    """Take the members that keep digests out of a bundle, as they are, for another one.

    Raises:
        DamagedInput: it is cut short or broken.
        InputError: it cannot be read.
    """
    with open_archive(path, _AGAIN) as archive:
        check_sizes(archive, path, _AGAIN)
        return [(name, archive.read(name)) for name in archive.namelist() if name.startswith(f"{_FOLDER}/")]


def _list_folders(held: set[str]) -> list[str]:
    """List the folders of digests; they are numbered without a gap."""
    folders: list[str] = []
    while f"{_FOLDER}/{len(folders)}/{_HEAD}" in held:
        folders.append(f"{_FOLDER}/{len(folders)}/")
    return folders


def _name_sources(where: str, paths: Sequence[str]) -> list[str]:
    if len(paths) == 1:
        return [where]
    parts = [Path(path).parts for path in paths]
    shared = 0
    while all(len(part) > shared + 1 for part in parts) and len({part[shared] for part in parts}) == 1:
        shared += 1
    return ["/".join((where, *part[shared:])) for part in parts]


def _read_one(archive: zipfile.ZipFile, held: set[str], folder: str, patterns: str, where: str) -> Reading:
    head = _parse_head(archive.read(f"{folder}{_HEAD}"), where)
    _check(head, patterns, where)
    tables = {table.name: _read(archive, held, folder, table, where) for table in TRACE_TABLES}
    if f"{folder}digest_ranks{TABLE_SUFFIX}" in held:
        tables |= {table.name: _read(archive, held, folder, table, where) for table in DIGEST_TABLES}
    return Reading(head.source, head.session, head.capture, head.actors, head.names, tables)


def _parse_head(content: bytes, where: str) -> _Head:
    import msgspec

    try:
        document: dict[str, Any] = msgspec.json.decode(content)
        if not isinstance(document, Mapping) or document.get("version") != VERSION:
            raise InputError("a digest of another version", where=where, mend="digest the trace again")
        return msgspec.convert(document, _Head)
    except msgspec.MsgspecError as error:
        raise DamagedInput(f"the digest cannot be read ({error})", where=where, mend=_AGAIN) from error


def _check(head: _Head, patterns: str, where: str) -> None:
    if head.families != tuple(FAMILIES):
        mend = "digest the trace again with this version"
        raise InputError("a digest by a version that knows other families of kernels", where=where, mend=mend)
    if head.patterns != patterns:
        mend = "give digest and analyze the same --patterns"
        raise InputError("a digest made with other kernel names of your own", where=where, mend=mend)


def _read(archive: zipfile.ZipFile, held: set[str], folder: str, table: Table, where: str) -> Columns:
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = f"{folder}{table.name}{TABLE_SUFFIX}"
    if name not in held:
        return table.empty()
    # Arrow's own allocator gives back at once what the next column asks for again; the C library keeps it.
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        read = pq.ParquetFile(pa.BufferReader(archive.read(name)), pre_buffer=False).read(use_threads=False)
        columns = table.check({name: read.column(name).to_numpy() for name in read.column_names})
    except (pa.ArrowException, OSError) as error:
        raise DamagedInput("not a Parquet table", where=f"{where}/{name}", mend=_AGAIN) from error
    for column in columns:
        if (table.name, column) in _FROM_START:
            columns[column] = columns[column] + columns["start_ns"]
    return columns
