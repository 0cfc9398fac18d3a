"""A program that is killed while it writes, and a disk that is full: the old file stays, and nothing lies beside it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from dprankdiag.store.whole_files import replace_file
from tests.conftest import ROOT

EXAMPLE = ROOT / "examples" / "load-one-rank.sqlite"
OLD = b"what was here before"
WRITERS = {
    "bundle": ("analyze", EXAMPLE, "-o", "{}", ".dprank"),
    "page": ("analyze", EXAMPLE, "-o", "{}", ".html"),
    "tracks": ("analyze", EXAMPLE, "-o", "{}", ".perfetto.json"),
    "report": ("compare", EXAMPLE, EXAMPLE, "-o", "{}", ".md"),
    "rules": ("rules", "-o", "{}", ".yml"),
    "dashboard": ("grafana", "-o", "{}", ".json"),
}

_PAUSED = """
import os, sys, time
from dprankdiag.cli import main
def wait(descriptor):
    print("written", flush=True)
    time.sleep(60)
os.fsync = wait  # between the last byte and the moment at which the file gets its name
main(sys.argv[1:])
"""


def make_words(writer: str, folder: Path) -> tuple[Path, list[str]]:
    *words, suffix = WRITERS[writer]
    target = folder / f"old{suffix}"
    target.write_bytes(OLD)
    return target, [str(target) if word == "{}" else str(word) for word in words]


@pytest.mark.parametrize("writer", WRITERS)
def test_kill_9_while_a_file_is_written_leaves_the_old_one_alone(writer: str, tmp_path: Path) -> None:
    target, words = make_words(writer, tmp_path)
    command = [sys.executable, "-c", _PAUSED, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        while (line := child.stdout.readline()) and line != "written\n":
            pass
        assert line == "written\n"
        child.send_signal(signal.SIGKILL)
    assert target.read_bytes() == OLD
    assert os.listdir(tmp_path) == [target.name]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_disk_that_takes_no_more_is_one_line_and_leaves_the_old_file_alone(writer: str, tmp_path: Path) -> None:
    target, words = make_words(writer, tmp_path)
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (1000, 1000))
    command = [sys.executable, "-m", "dprankdiag", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, preexec_fn=limit)
    assert done.returncode == 2, done
    told = [line for line in done.stderr.splitlines() if "warning" not in line]
    assert len(told) == 1
    assert str(target) in told[0]
    assert "cannot be written" in told[0]
    assert target.read_bytes() == OLD
    assert os.listdir(tmp_path) == [target.name]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no disk that is always full")
def test_a_full_disk_behind_standard_output_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "dprankdiag", "explain", "load.context"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "standard output" in done.stderr


@pytest.mark.parametrize("has_nameless", [True, False])
def test_a_file_is_replaced_whole_with_the_rights_of_a_new_one(
    has_nameless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_nameless:
        monkeypatch.setattr("dprankdiag.store.whole_files._NO_NAME", None)
    path = tmp_path / "a.txt"
    for content in (b"", b"first", b"x" * 100_000, b"last"):
        replace_file(path, content)
        assert path.read_bytes() == content
    (tmp_path / "plain").write_bytes(b"")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "plain"]


@pytest.mark.parametrize("has_nameless", [True, False])
def test_a_folder_in_the_way_is_an_error_and_nothing_is_left(
    has_nameless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_nameless:
        monkeypatch.setattr("dprankdiag.store.whole_files._NO_NAME", None)
    (tmp_path / "a" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match=r"a\b"):
        replace_file(tmp_path / "a", b"new")
    assert os.listdir(tmp_path) == ["a"]
