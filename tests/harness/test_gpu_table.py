"""The table that the script for GPUs keeps: what was planted, what was said, and whether that is right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples/gpu"
TABLE, SCRIPT = EXAMPLES / "make_table.py", str(EXAMPLES / "check_gpu.sh")
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
    stamps = [{"rank": 0, "wait_ns": 80_000_000}, {"rank": 2, "wait_ns": 7_000_000}]
    (tmp_path / "right/stamps.json").write_text(json.dumps(stamps))
    code, lines = table(tmp_path)
    assert code == 0
    assert lines[2].startswith("| quiet | healthy | healthy | yes | - | - | - | - |")
    wanted = "| right | load.context [2] steady | load.context [2] steady | yes | 26.0 % | 25.0 % | 0.95 | 2 (7 ms) |"
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


def make_command(path: Path, body: str) -> str:
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(0o755)
    return str(path)


def check_gpus(folder: Path, gpus: int, *, fails: bool = False) -> tuple[int, str]:
    """Run the script where torch sees so many GPUs and a program stands in for dprankdiag."""
    torch = make_command(
        folder / "torch", f"import sys\nprint({gpus} if 'device_count' in sys.argv[2] else 'torch 2.13.0 triton 3.9')\n"
    )
    command = make_command(folder / "dprankdiag", RUNS + ("sys.exit('out of memory')\n" if fails else SAYS))
    environment = os.environ | {"DPRANKDIAG": command, "DPRANKDIAG_TORCH_PYTHON": torch}
    done = subprocess.run(
        [SCRIPT, str(folder / "results")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == (folder / "results/results.md").read_text()
    return done.returncode, done.stdout


RUNS = """
import json, pathlib, sys
if sys.argv[1:3] == ["harness", "run"]:
    executor, ranks, output = sys.argv[4], sys.argv[6], pathlib.Path(sys.argv[8])
    if "fail" not in sys.argv[0]:
        for name in ("right", "healthy"):
            (output / name).mkdir(parents=True)
        truth = {"answerable": "load.context", "ranks": [2], "when": "steady", "lost_ns": 26, "wall_ns": 100}
        (output / "right/truth.json").write_text(json.dumps({"facts": {"truths": [truth]}, "paths": ["right"]}))
        sys.stderr.write(f"dprankdiag: 1 written, executor {executor} of {ranks}\\n")
        sys.exit(0)
"""


@pytest.mark.parametrize("gpus,parts", [(1, ["single-gpu of 4"]), (8, ["single-gpu of 4", "nccl of 8"])])
def test_the_script_runs_what_the_machine_has_and_keeps_what_was_said(
    tmp_path: Path, gpus: int, parts: list[str]
) -> None:
    code, said = check_gpus(tmp_path, gpus)
    assert code == 0, said
    assert [line.split("executor ")[1] for line in said.splitlines() if "written" in line] == parts
    assert said.count("1 of 1 right") == len(parts)
    assert said.splitlines()[-1].startswith("in all ")
    assert (tmp_path / "results/single-gpu-healthy.tar.gz").exists()


def test_the_script_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    code, said = check_gpus(tmp_path, 0)
    assert code == 1
    assert "torch sees no GPU: nothing was run" in said


def test_the_script_says_what_did_not_run_and_why(tmp_path: Path) -> None:
    folder = tmp_path / "fail"
    folder.mkdir()
    code, said = check_gpus(folder, 1, fails=True)
    assert code == 1
    assert "did not run: out of memory" in said
