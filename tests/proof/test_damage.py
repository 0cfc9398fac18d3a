"""Files that are cut, overwritten, empty, locked away or no files at all: one clear line, and nothing is touched."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.proof.command import Answer, run_here, run_process, take_print
from tests.proof.filler import fill, mark_ranges
from tests.proof.scenario import Scenario, attention_of, play

CAPTURE = "real-nvtx-4proc-2022.4.2.sqlite"
CUT_BYTES = 65_536
PAGES_APART = 12


@pytest.fixture
def content(captures: Path) -> bytes:
    return (captures / CAPTURE).read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of inputs that must be as it was at the end of the test."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    yield inputs
    inputs.chmod(0o755)


def analyze_untouched(path: Path, *, apart: bool = False) -> Answer:
    """Analyse a file and check that nothing in its folder, nor the folder, has changed."""
    before, folder_before = take_print(path.parent), path.parent.stat().st_mtime_ns
    answer = (run_process if apart else run_here)("analyze", path, "--format", "json")
    assert take_print(path.parent) == before
    assert path.parent.stat().st_mtime_ns == folder_before
    assert answer.is_calm
    return answer


def says_only_what_is_true(answer: Answer) -> bool:
    """Tell whether a partly readable capture led to no warning of others than the true culprits, and to no health."""
    said = json.loads(answer.stdout)
    warned = [finding for finding in said["findings"] if finding["severity"] != "info"]
    blamed = {(finding["cause"].split(".")[0], *finding["ranks"]) for finding in warned}
    return blamed <= {("load", 2), ("single_point", 1)} and said["status"] != "healthy"


def test_a_file_cut_anywhere_is_refused_with_its_sizes(content: bytes, folder: Path) -> None:
    path = folder / "cut.sqlite"
    for size in range(CUT_BYTES, len(content), CUT_BYTES):
        path.write_bytes(content[:size])
        answer = analyze_untouched(path)
        assert answer.is_refusal, (size, answer)
        assert f"{size} of {len(content)} bytes" in answer.stderr


def test_a_file_cut_behind_a_header_that_agrees_tells_the_truth_or_refuses(content: bytes, folder: Path) -> None:
    path = folder / "cut.sqlite"
    for size in range(CUT_BYTES, len(content), 4 * CUT_BYTES):
        head = bytearray(content[:size])
        head[28:32] = (size // int.from_bytes(content[16:18], "big")).to_bytes(4, "big")
        path.write_bytes(head)
        answer = analyze_untouched(path)
        assert answer.is_refusal or says_only_what_is_true(answer), (size, answer.stderr)


def test_a_zeroed_page_anywhere_is_refused_or_warned_of(content: bytes, folder: Path) -> None:
    page_bytes = int.from_bytes(content[16:18], "big")
    path, partial = folder / "page.sqlite", 0
    for page in range(0, len(content) // page_bytes, PAGES_APART):
        path.write_bytes(content[: page * page_bytes] + bytes(page_bytes) + content[(page + 1) * page_bytes :])
        answer = analyze_untouched(path)
        if answer.is_refusal:
            continue
        assert answer.code == 0, (page, answer)
        assert says_only_what_is_true(answer), (page, json.loads(answer.stdout)["headline"])
        (source,) = json.loads(answer.stdout)["inputs"]
        if source["status"] == "partial":
            partial += 1
            assert source["warnings"]
            assert answer.stderr.startswith("dprankdiag: warning: ")
            assert answer.stderr.count("\n") == 1
    assert partial


def test_a_zeroed_page_of_kernels_never_moves_the_blame(folder: Path, tmp_path: Path) -> None:
    events = play(Scenario(factor=attention_of(2, 2.0)))
    whole = fill(tmp_path / "whole.sqlite", events, mark_ranges(events)).read_bytes()
    page_bytes = int.from_bytes(whole[16:18], "big")
    path, statuses = folder / "page.sqlite", set()
    for page in range(0, len(whole) // page_bytes, 2):
        path.write_bytes(whole[: page * page_bytes] + bytes(page_bytes) + whole[(page + 1) * page_bytes :])
        answer = analyze_untouched(path)
        if answer.is_refusal:
            continue
        said = json.loads(answer.stdout)
        statuses.add(said["inputs"][0]["status"])
        assert said["status"] != "healthy", (page, said["headline"])
        warned = [finding for finding in said["findings"] if finding["severity"] != "info"]
        assert all(finding["ranks"] == [2] for finding in warned), (page, said["headline"])
    assert "partial" in statuses


@pytest.mark.parametrize(
    "name, data, word",
    [
        ("empty.sqlite", b"", "empty"),
        ("zeros.sqlite", bytes(8192), "zero bytes"),
        ("notes.txt", b"rank 3 is slow\n", "text"),
        ("run.nsys-rep", b"\x01\x02report" * 50, "report"),
        ("trace.json", b'{"traceEvents": []}', "torch"),
        ("head.sqlite", b"SQLite format 3\0", "incomplete"),
    ],
)
def test_what_is_no_export_is_named_for_what_it_is(folder: Path, name: str, data: bytes, word: str) -> None:
    (folder / name).write_bytes(data)
    answer = analyze_untouched(folder / name)
    assert answer.is_refusal, answer
    assert word in answer.stderr
    assert name in answer.stderr


def test_the_database_of_another_program_is_refused(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "other.sqlite")) as database:
        database.execute("CREATE TABLE bookmarks (id INTEGER, url TEXT)")
    answer = analyze_untouched(folder / "other.sqlite")
    assert answer.is_refusal
    assert "bookmarks" in answer.stderr


def test_a_cut_file_is_refused_by_the_installed_command(content: bytes, folder: Path) -> None:
    path = folder / "cut.sqlite"
    path.write_bytes(content[: 5 * CUT_BYTES])
    assert analyze_untouched(path, apart=True).is_refusal


def test_a_pipe_is_refused_without_waiting_for_a_writer(folder: Path) -> None:
    os.mkfifo(folder / "pipe.sqlite")
    answer = analyze_untouched(folder / "pipe.sqlite", apart=True)
    assert answer.is_refusal
    assert "pipe" in answer.stderr


def test_a_device_is_refused() -> None:
    assert run_here("analyze", "/dev/null").is_refusal


def test_a_file_without_permission_is_refused(content: bytes, folder: Path) -> None:
    path = folder / "locked.sqlite"
    path.write_bytes(content)
    path.chmod(0o000)
    answer = run_process("analyze", path)
    assert answer.is_refusal, answer
    assert "permission" in answer.stderr
    path.chmod(0o600)
    assert path.read_bytes() == content


def test_a_folder_without_permission_is_refused(content: bytes, folder: Path) -> None:
    (folder / "run.sqlite").write_bytes(content)
    folder.chmod(0o000)
    answers = [run_process("analyze", folder), run_process("analyze", folder / "run.sqlite")]
    folder.chmod(0o755)
    for answer in answers:
        assert answer.code in (2, 3), answer
        assert answer.stderr.count("\n") == 1
        assert answer.is_calm


def test_a_write_protected_folder_is_no_hindrance(content: bytes, folder: Path) -> None:
    path = folder / "run.sqlite"
    path.write_bytes(content)
    path.chmod(0o444)
    folder.chmod(0o555)
    answer = analyze_untouched(path, apart=True)
    assert answer.code == 0
    assert len(json.loads(answer.stdout)["findings"]) == 2


def test_a_write_ahead_header_without_side_files_is_read_and_left_alone(folder: Path, tmp_path: Path) -> None:
    made = fill(tmp_path / "run.sqlite", play(Scenario(factor=attention_of(2, 2.0))))
    with closing(sqlite3.connect(made)) as database:
        assert database.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    path = folder / "run.sqlite"
    shutil.copy(made, path)
    assert path.read_bytes()[18:20] == b"\x02\x02"
    path.chmod(0o444)
    folder.chmod(0o555)
    answer = analyze_untouched(path, apart=True)
    assert answer.code == 0
    assert [finding["ranks"] for finding in json.loads(answer.stdout)["findings"]] == [[2]]


def test_an_export_that_still_runs_is_refused(content: bytes, folder: Path) -> None:
    (folder / "run.sqlite").write_bytes(content)
    (folder / "run.sqlite-journal").write_bytes(b"\xd9\xd5\x05\xf9 \xa1c\xd7")
    answer = analyze_untouched(folder / "run.sqlite")
    assert answer.is_refusal
    assert "still runs" in answer.stderr
