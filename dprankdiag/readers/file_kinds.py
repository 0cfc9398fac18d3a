"""Name what a file that is no SQLite database holds, and the command that helps."""

from __future__ import annotations

import shlex
import zlib
from pathlib import Path

_SIGNATURES = (
    (b"PK\x03\x04", "a zip archive", "unzip {file}"),
    (b"\x28\xb5\x2f\xfd", "a zstd-compressed file", "unzstd {file}"),
    (b"\xfd7zXZ\0", "an xz-compressed file", "unxz {file}"),
    (b"BZh", "a bzip2-compressed file", "bunzip2 {file}"),
    (b"PAR1", "a Parquet file", "nsys export --type sqlite REPORT.nsys-rep"),
    (b"ARROW1", "an Arrow file", "nsys export --type sqlite REPORT.nsys-rep"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "nsys export --type sqlite REPORT.nsys-rep"),
    (b"** This file contains an SQLite", "a SQLite recovery file", "export it again"),
    (b"\x7fELF", "a program", ""),
)
_PICKLE = (
    "a Python pickle, which may run code when read",
    "write the dump as JSON: torch._C._distributed_c10d._dump_nccl_trace_json",
)
"""What PyTorch writes by itself; it is never unpickled."""

_REPORTS = {
    ".nsys-rep": "an Nsight Systems report",
    ".qdrep": "an Nsight Systems report (old format)",
}
_UNFINISHED = ".qdstrm"
_TORCH_MARKS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"', b'"ph"')
_GUNZIP_BYTES = 4096
_GZIP = b"\x1f\x8b"
_JSON = ("a JSON file that is no trace", "give the traces that torch.profiler wrote, or nsys export --type sqlite")


def describe_content(path: Path, head: bytes) -> tuple[str, str]:
    """Return what a file is and what the user can do, by its name and first bytes."""
    file = shlex.quote(str(path))
    suffix = path.suffix.lower()
    if suffix in _REPORTS:
        return _REPORTS[suffix], f"nsys export --type sqlite {file}"
    if suffix == _UNFINISHED:
        # Source: Nsight Systems User Guide, "Import Qdstrm": what the profiler leaves where it could not make a report.
        mend = f"QdstrmImporter -i {file} makes a report of it, to export; if that fails, record a shorter time"
        return "an Nsight Systems recording that was never made a report", mend
    if head.startswith(_GZIP):
        return _describe_gzip(head, file)
    for signature, what, mend in _SIGNATURES:
        if head.startswith(signature):
            return what, mend.format(file=file)
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return _PICKLE
    if head[257:262] == b"ustar":
        return "a tar archive", f"tar -xf {file}"
    return _describe_text(head)


def is_torch_trace(head: bytes) -> bool:
    """Tell a torch profiler trace, plain or gzip-compressed, by its first bytes."""
    content = _gunzip(head) if head.startswith(_GZIP) else head
    return _is_json(content) and any(mark in content for mark in _TORCH_MARKS)


def _gunzip(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(head, _GUNZIP_BYTES)
    except zlib.error:
        return b""


def _describe_gzip(head: bytes, file: str) -> tuple[str, str]:
    content = _gunzip(head)
    if content.startswith(b"SQLite format 3"):
        return "a gzip-compressed SQLite database", f"gunzip -k {file}"
    if _is_json(content):
        return f"{_JSON[0]}, gzip-compressed", _JSON[1]
    return "a gzip-compressed file", f"gunzip -k {file}"


def _describe_text(head: bytes) -> tuple[str, str]:
    if _is_json(head):
        return _JSON
    if not head.strip(b"\0"):
        return "a file of zero bytes", "copy or export it again"
    if b"\0" in head:
        return "binary data of an unknown kind", "nsys export --type sqlite REPORT.nsys-rep"
    if head.lstrip().startswith((b"PRAGMA foreign_keys", b"BEGIN TRANSACTION", b"CREATE TABLE")):
        return "a SQL dump", "load it: sqlite3 NEW.sqlite < DUMP"
    try:
        head[:-3].decode("utf-8")
    except UnicodeDecodeError:
        return "binary data of an unknown kind", "nsys export --type sqlite REPORT.nsys-rep"
    return "a text file", "nsys export --type sqlite REPORT.nsys-rep"


def _is_json(content: bytes) -> bool:
    return content.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")
