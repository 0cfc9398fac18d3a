"""Say what kind of input a file is by its content, or why it cannot be used and what would mend that."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from dprankdiag.errors import DamagedInput, InputError, UsageError
from dprankdiag.model.recordings import RECORDING, is_recording_head
from dprankdiag.readers import nsys_database, nsys_folder
from dprankdiag.readers.file_kinds import describe_content, is_torch_trace
from dprankdiag.readers.text_kinds import sniff_text

NSYS_SQLITE = "nsys-sqlite"
NSYS_PARQUET = "nsys-parquet"
TORCH_JSON = "torch-json"
_EXPECTED = "expected an Nsight Systems export (SQLite or parquetdir) or a torch profiler trace"
_EXPECTED_ANY = (
    f"{_EXPECTED}, metrics, load answers or a log of an engine, a receive-wait matrix (CSV) or Flight Recorder dumps "
    "(JSON)"
)
_AGAIN = "copy or export it again"
_MAGIC = b"SQLite format 3\0"
_HEAD_BYTES = 4096
_HEADER_BYTES = 100
_SHOWN_TABLES = 6
_SHOWN_FOLDERS = 4
_NSYS_TABLES = (
    "CUPTI_ACTIVITY_KIND_",
    "NVTX_EVENTS",
    "TARGET_INFO_",
    "OSRT_API",
    "META_DATA_",
    "EXPORT_META_DATA",
    "ANALYSIS_DETAILS",
    "PROCESSES",
)


def sniff(path: Path) -> str:
    """Return the kind of input that a file is.

    One of "nsys-sqlite", "torch-json", "ledger" (what an engine tells of its load), "recording" (of ledgers),
    "wait-matrix", "flight-recorder". A folder that holds the tables of a parquetdir export is one, "nsys-parquet".

    Never blocks: anything but a regular file is refused before it is opened.

    Raises:
        UsageError: there is no such path.
        InputError: it is something else; says what, what was expected, and the command that helps.
        DamagedInput: it is of the right kind but cut short, locked, empty or broken.
    """
    if is_export_folder(path):
        return NSYS_PARQUET
    size = _check_regular(path)
    head = _read_head(path)
    if size == 0:
        raise DamagedInput(f"empty file (0 bytes), {_EXPECTED}", where=str(path), mend="export or copy it again")
    if is_torch_trace(head):
        return TORCH_JSON
    if not _MAGIC.startswith(head[: len(_MAGIC)]):
        if (kind := sniff_text(path, head, size)) is not None:
            return kind
        what, mend = _describe_table(path) or describe_content(path, head)
        raise InputError(f"{what}, {_EXPECTED_ANY}", where=str(path), mend=mend)
    if is_recording_head(head):
        return RECORDING
    _check_journal(path)
    _check_whole(path, head, size)
    return _judge_tables(path, nsys_database.list_tables(path))


def is_export_folder(path: Path) -> bool:
    """Say whether a path is a folder with the tables of an Nsight Systems parquetdir export, by their names."""
    try:
        return path.is_dir() and _are_of_export(nsys_folder.list_tables(path))
    except (OSError, ValueError):
        return False


def _refuse_folder(path: Path) -> InputError:
    """Say why a folder is no input, and what to give in its place."""
    try:
        entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
        folders = [entry for entry in entries if entry.is_dir()]
    except OSError as error:
        return InputError(f"cannot list the folder ({error.strerror})", where=str(path), mend="ask for read access")
    if not entries:
        return InputError("no files in it", where=str(path), mend="name a folder that holds exports")
    if len(folders) < len(entries):
        return InputError(f"a folder, {_EXPECTED}", where=str(path), mend="name the files in it")
    named = " ".join(shlex.quote(str(folder)) for folder in folders[:_SHOWN_FOLDERS])
    more = f" ({len(folders)} in all)" if len(folders) > _SHOWN_FOLDERS else ""
    return InputError(
        "no files in it, only folders, and none is a parquetdir export",
        where=str(path),
        mend=f"give the folders of one run: dprankdiag analyze {named}{more}",
    )


def _describe_table(path: Path) -> tuple[str, str] | None:
    """Describe a file that is a table of a parquetdir export; the folder is the input."""
    if path.suffix != nsys_folder.SUFFIX or not is_export_folder(path.parent):
        return None
    return "one table of a parquetdir export", f"give its folder: dprankdiag analyze {shlex.quote(str(path.parent))}"


def is_kind(path: Path, kind: str) -> bool:
    """Say whether an input is of a kind and whole; what is wrong with it is not told."""
    try:
        return sniff(path) == kind
    except (InputError, UsageError):
        return False


def _check_regular(path: Path) -> int:
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise UsageError("no such file", where=str(path)) from error
    except PermissionError as error:
        raise InputError("no permission to reach it", where=str(path), mend="ask for read access") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"not a usable path ({error})", where=str(path)) from error
    if stat.S_ISDIR(status.st_mode):
        raise _refuse_folder(path)
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"not a regular file (pipe, socket or device), {_EXPECTED}", where=str(path))
    return status.st_size


def _read_head(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except PermissionError as error:
        raise InputError("no permission to read it", where=str(path), mend="ask for read access") from error
    except OSError as error:
        raise InputError(f"cannot be opened ({error.strerror})", where=str(path)) from error
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_HEAD_BYTES)


def _check_journal(path: Path) -> None:
    journal = path.with_name(f"{path.name}-journal")
    try:
        runs = journal.stat().st_size > 0
    except OSError:
        runs = False
    if runs:
        raise DamagedInput(
            f"its export still runs or was broken off ({journal.name} lies beside it)",
            where=str(path),
            mend="wait for nsys export to end, or export again",
        )


def _check_whole(path: Path, head: bytes, size: int) -> None:
    """Compare the file's size with the one its header tells.

    Source: https://www.sqlite.org/fileformat.html, section 1.3 (page size at 16, page count at 28, valid only if the
    change counter at 24 equals the version-valid-for number at 92).
    """
    if size < _HEADER_BYTES or len(head) < _HEADER_BYTES:
        raise DamagedInput(f"incomplete copy or export, {size} bytes of a SQLite file", where=str(path), mend=_AGAIN)
    page_bytes = int.from_bytes(head[16:18], "big")
    page_bytes = 65_536 if page_bytes == 1 else page_bytes
    expected = page_bytes * int.from_bytes(head[28:32], "big") if head[24:28] == head[92:96] else 0
    if size < expected:
        raise DamagedInput(f"incomplete copy or export, {size} of {expected} bytes", where=str(path), mend=_AGAIN)


def _are_of_export(tables: list[str]) -> bool:
    return "StringIds" in tables and any(table.startswith(_NSYS_TABLES) for table in tables)


def _judge_tables(path: Path, tables: list[str]) -> str:
    if _are_of_export(tables):
        return NSYS_SQLITE
    if not tables:
        raise DamagedInput(f"a SQLite database without tables, {_EXPECTED}", where=str(path), mend="export it again")
    what, mend = _name_database(tables)
    raise InputError(f"{what}, {_EXPECTED}", where=str(path), mend=mend)


def _name_database(tables: list[str]) -> tuple[str, str]:
    if any(table.startswith("rocpd_") for table in tables):
        return "a rocprofv3 (rocpd) database", "AMD traces are not read"
    if "StringTable" in tables and any(table.startswith("CUPTI_ACTIVITY_KIND_") for table in tables):
        return "an nvprof database", "record with nsys profile instead; nvprof exports are not read"
    if any("dlprof" in table.lower() for table in tables):
        return "a DLProf database", "give the Nsight Systems export that DLProf was run on"
    shown = ", ".join(sorted(tables)[:_SHOWN_TABLES]) + (", ..." if len(tables) > _SHOWN_TABLES else "")
    return f"a SQLite database of another program (tables {shown})", "nsys export --type sqlite REPORT.nsys-rep"
