"""The table that the script for GPUs keeps: what was planted, what was said, and whether that is right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TABLE = Path(__file__).parents[2] / "examples/gpu/make_table.py"
SAYS = """
import json, sys
assert sys.argv[1] == "analyze" and sys.argv[3:] == ["--format", "json"]
name = sys.argv[2].rsplit("/", 1)[1]
if name == "broken":
    sys.exit("dprankdiag: no such file")
rank = {"right": [2], "wrong": [1], "quiet": None}[name]
found = {"severity": "critical", "cause": "load.context", "ranks": rank, "when": "steady", "lost_ratio": 0.25,
         "confidence": 0.95}
print(json.dumps({"status": "findings" if rank else "healthy", "findings": [found] if rank else []}))
"""


def make(folder: Path, name: str, *, planted: bool = True) -> None:
    truth = {"answerable": "load.context", "ranks": [2], "when": "steady", "lost_ns": 26, "wall_ns": 100}
    (folder / name).mkdir(parents=True)
    made = {"facts": {"truths": [truth] if planted else []}, "paths": [name]}
    (folder / name / "truth.json").write_text(json.dumps(made))


def table(folder: Path) -> tuple[int, list[str]]:
    says = folder / "says.py"
    says.write_text(SAYS)
    command = [sys.executable, str(TABLE), str(folder), sys.executable, str(says)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_what_was_planted_stands_beside_what_is_said(tmp_path: Path) -> None:
    make(tmp_path, "right")
    make(tmp_path, "quiet", planted=False)
    code, lines = table(tmp_path)
    assert code == 0
    assert lines[2].startswith("| quiet | healthy | healthy | yes | - | - | - |")
    wanted = "| right | load.context [2] steady | load.context [2] steady | yes | 26.0 % | 25.0 % | 0.95 |"
    assert lines[3].startswith(wanted)
    assert lines[-1] == "2 of 2 right"


@pytest.mark.parametrize("name,said", [("wrong", "load.context [1]"), ("broken", "exit code 1: dprankdiag: no such")])
def test_a_wrong_answer_or_none_is_told_and_fails(tmp_path: Path, name: str, said: str) -> None:
    make(tmp_path, name)
    code, lines = table(tmp_path)
    assert code == 1
    assert said in lines[2]
    assert lines[-1] == f"0 of 1 right; not: {name}"


def test_a_folder_without_runs_is_no_success(tmp_path: Path) -> None:
    assert table(tmp_path)[0] == 1
