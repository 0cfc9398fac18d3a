from __future__ import annotations

import gzip
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from dprankdiag.errors import DamagedInput, InputError, UsageError
from dprankdiag.readers.nsys_sqlite import NsysSqliteReader
from dprankdiag.readers.sniff import sniff
from tests.readers.builders import ExportBuilder

NAME = "real-nvtx-4proc-2022.4.2.sqlite"


def make_database(path: Path, *tables: str) -> Path:
    connection = sqlite3.connect(path)
    for table in tables:
        connection.execute(f'CREATE TABLE "{table}" (id INTEGER)')
    connection.commit()
    connection.close()
    return path


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_an_export_is_known_by_its_tables_whatever_its_name(payloads: Path, tmp_path: Path) -> None:
    copy = shutil.copy(payloads / "nsys" / NAME, tmp_path / "what?ever #1 %41 é.nsys-rep")
    assert sniff(Path(copy)) == "nsys-sqlite"


def test_a_truncated_copy_is_named_with_its_size_at_every_cut(payloads: Path, tmp_path: Path) -> None:
    content = (payloads / "nsys" / NAME).read_bytes()
    cut = tmp_path / "cut.sqlite"
    for size in range(65_536, len(content), 65_536):
        cut.write_bytes(content[:size])
        with pytest.raises(DamagedInput, match=f"{size} of {len(content)} bytes"):
            sniff(cut)


@pytest.mark.parametrize("size", [1, 15, 16, 50, 99])
def test_a_file_cut_inside_its_header_is_damaged(payloads: Path, tmp_path: Path, size: int) -> None:
    cut = write(tmp_path / "cut.sqlite", (payloads / "nsys" / NAME).read_bytes()[:size])
    with pytest.raises(DamagedInput, match="incomplete"):
        sniff(cut)


def test_an_empty_file_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(DamagedInput, match="empty file"):
        sniff(write(tmp_path / "empty.sqlite", b""))


def test_a_missing_path_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        sniff(tmp_path / "absent.sqlite")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError):
        sniff(tmp_path / "link")


@pytest.mark.parametrize("suffix", [".nsys-rep", ".qdrep"])
def test_a_report_is_answered_with_the_export_command(tmp_path: Path, suffix: str) -> None:
    report = write(tmp_path / f"my run{suffix}", b"\x01\x02report\0")
    with pytest.raises(InputError) as caught:
        sniff(report)
    assert caught.value.mend == f"nsys export --type sqlite '{report}'"


@pytest.mark.parametrize(
    "content, what",
    [
        (b'{"a": 1}', "JSON"),
        (b"rank,start\n1,2\n", "text file"),
        (b"PK\x03\x04rest", "zip"),
        (b"\0" * 5000, "zero bytes"),
        (b"abc\0\xff\xfe", "binary"),
        (b"PAR1....", "Parquet"),
        (b"PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;\n", "SQL dump"),
        (gzip.compress(b"SQLite format 3\0" + bytes(100), mtime=0), "gzip-compressed SQLite"),
        (gzip.compress(b'{"a": []}', mtime=0), "JSON file that is no trace, gzip"),
        (gzip.compress(b"hello", mtime=0), "gzip"),
        (b"\x1f\x8bbroken", "gzip"),
    ],
)
def test_foreign_content_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    with pytest.raises(InputError, match=what) as caught:
        sniff(write(tmp_path / "input", content))
    assert "expected an Nsight Systems export (SQLite or parquetdir)" in str(caught.value)
    assert caught.value.mend


@pytest.mark.parametrize(
    "tables, what",
    [
        (("StringTable", "Version", "CUPTI_ACTIVITY_KIND_KERNEL"), "nvprof"),
        (("rocpd_kernel_dispatch", "rocpd_string"), "rocprofv3"),
        (("dlprof_ops", "model"), "DLProf"),
        (("moz_places", "moz_hosts"), "moz_hosts, moz_places"),
        (("StringIds",), "StringIds"),
    ],
)
def test_other_databases_are_named(tmp_path: Path, tables: tuple[str, ...], what: str) -> None:
    with pytest.raises(InputError, match=what):
        sniff(make_database(tmp_path / "other.db", *tables))


def test_a_database_without_tables_is_damaged(tmp_path: Path) -> None:
    path = make_database(tmp_path / "bare.sqlite", "gone")
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE gone")
    connection.commit()
    connection.close()
    with pytest.raises(DamagedInput, match="without tables"):
        sniff(path)


def test_a_folder_a_pipe_and_a_device_are_refused_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, what in ((tmp_path, "folder"), (tmp_path / "pipe", "pipe"), (Path("/dev/zero"), "device")):
        with pytest.raises(InputError, match=what):
            sniff(path)


def test_a_journal_beside_the_file_means_that_the_export_still_runs(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(1, 0, 1)
    write(tmp_path / "a.sqlite-journal", b"x" * 600)
    with pytest.raises(DamagedInput, match="still runs"):
        sniff(tmp_path / "a.sqlite")


def test_a_database_with_a_broken_schema_is_damaged(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(1, 0, 1)
    content = bytearray((tmp_path / "a.sqlite").read_bytes())
    content[100:4096] = bytes(3996)
    with pytest.raises(DamagedInput, match="SQLite cannot read it"):
        sniff(write(tmp_path / "b.sqlite", bytes(content)))


def test_the_reader_says_no_to_foreign_files_without_raising(payloads: Path, tmp_path: Path) -> None:
    reader = NsysSqliteReader()
    assert reader.can_read(payloads / "nsys" / NAME)
    assert not reader.can_read(write(tmp_path / "a.txt", b"hello"))
    assert not reader.can_read(tmp_path / "absent")
