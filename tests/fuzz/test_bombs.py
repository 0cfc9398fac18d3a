"""Small files that unpack to more than any memory: refused in one line, or read as far as memory is bounded."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tests.fuzz.subjects import list_subjects

MOST_BYTES = 1 << 29
"""Memory that the command may take beyond what Python maps for its libraries."""

LONGEST_S = 60
_LIMITED = """
import resource, sys
from dprankdiag.cli import main
import numpy, pandas, pyarrow.parquet
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]),) * 2)
main(sys.argv[2:])
"""

EVENT = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.000,"dur":1.000,"args":{"stream":7}},'


def pack(*parts: bytes) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1) as file:
        for part in parts:
            file.write(part)
    return buffer.getvalue()


def make_blank_trace(path: Path) -> None:
    path.write_bytes(pack(b'{"schemaVersion":1,"traceEvents":[', *[b" " * (1 << 24)] * 40))


def make_string_trace(path: Path) -> None:
    path.write_bytes(pack(b'{"schemaVersion":1,"traceEvents":[{"ph":"X","name":"', *[b"a" * (1 << 24)] * 40))


def make_header_trace(path: Path) -> None:
    path.write_bytes(pack(b'{"schemaVersion":1,"a":"', *[b"a" * (1 << 24)] * 40))


def make_broken_trace(path: Path) -> None:
    """Break every event: what is found wrong must not be looked for again from the beginning."""
    event = EVENT.replace(b'"ts":1.000', b'"ts":1.0.0')
    path.write_bytes(pack(b'{"schemaVersion":1,"traceEvents":[', event * 40_000))


def _rewrite(path: Path, change: Callable[[zipfile.ZipFile, str, bytes], None]) -> None:
    bundle = next(one for one in list_subjects() if one.kind == "bundle")
    (content,) = bundle.files.values()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            change(new, name, old.read(name))


def make_packed_bundle(path: Path) -> None:
    def write(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
        more = b" " * (1 << 28) if name == "diagnosis.json" else b""
        archive.writestr(name, content + more, zipfile.ZIP_DEFLATED)

    _rewrite(path, write)


def make_long_table(path: Path) -> None:
    """Repeat one value a billion times: some kilobytes of Parquet."""

    def write(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
        if name == "steps.parquet":
            buffer = io.BytesIO()
            part = pa.table({"step": pa.array([7] * 10_000_000, pa.int32())})
            with pq.ParquetWriter(buffer, part.schema, compression="zstd") as writer:
                for _ in range(40):
                    writer.write_table(part)
            content = buffer.getvalue()
        archive.writestr(name, content)

    _rewrite(path, write)


def make_deep_json(path: Path) -> None:
    path.write_text('{"schemaVersion":1,"traceEvents":[' + "[" * 3_000_000)


BOMBS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "blanks in a packed trace": ("a.json.gz", make_blank_trace),
    "one text in a packed trace": ("a.json.gz", make_string_trace),
    "the header of a packed trace": ("a.json.gz", make_header_trace),
    "a trace of broken events": ("a.json.gz", make_broken_trace),
    "brackets": ("a.json", make_deep_json),
    "a packed bundle": ("a.dprank", make_packed_bundle),
    "a table of one value": ("a.dprank", make_long_table),
}


def run_limited(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command with little memory."""
    command = [sys.executable, "-c", _LIMITED, str(MOST_BYTES), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=LONGEST_S)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_in_one_line_within_half_a_gigabyte(bomb: str, tmp_path: Path) -> None:
    name, make = BOMBS[bomb]
    make(tmp_path / name)
    done = run_limited("analyze", tmp_path / name, "--format", "json")
    assert done.returncode in (0, 3), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 1
    if done.returncode == 0:
        assert json.loads(done.stdout)["status"] == "inconclusive"


def make_tensor(size: str, stride: str) -> bytes:
    """Write a pickle of one tensor by hand."""
    return (
        b"\x80\x02}X\r\x00\x00\x00logical_countctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\n"
        b"IntStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQK\x00"
        + size.encode()
        + stride.encode()
        + b"\x89ccollections\nOrderedDict\n)RtRs."
    )


def write_dump(path: Path, pickled: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("dump/data.pkl", pickled)
        archive.writestr("dump/data/0", bytes(16))
    return path


def double(times: int) -> bytes:
    """Make a tuple of two of itself, again and again, and let it be a key."""
    return b"\x80\x02}(" + b")q\x00" + b"h\x00h\x00\x86q\x00" * times + b"K\x01u."


@pytest.mark.parametrize(
    "pickled, why",
    [
        (make_tensor("(I1000000\nI1000000\nI1\nt", "(K\x00K\x00K\x00t"), "cannot be"),
        (double(60), "key"),
        (pickle.dumps({"records": [print]}), "names"),
    ],
    ids=["one number shown often", "a key that takes forever", "a function"],
)
def test_a_dump_that_would_fill_the_memory_or_run_is_refused(pickled: bytes, why: str, tmp_path: Path) -> None:
    bundle = next(one for one in list_subjects() if one.kind == "bundle")
    (tmp_path / "run.dprank").write_bytes(next(iter(bundle.files.values())))
    dump = write_dump(tmp_path / "counts.pt", pickled)
    done = run_limited("whatif", tmp_path / "run.dprank", "--experts", dump, "--quiet")
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("\n") == 1
    assert why in done.stderr
