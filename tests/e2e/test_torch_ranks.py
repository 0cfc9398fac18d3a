"""Ranks under a real torch: started by torchrun, and seen by its profiler thread by thread."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from dprankdiag.harness.torch_rank import TRACE
from tests.e2e.test_cpu_processes import find_gloo

ROOT = Path(__file__).parents[2]
_THREADS = """
import json, sys, threading
from pathlib import Path
from dprankdiag.harness.run_steps import Log
from dprankdiag.harness.torch_listeners import listen, profile_run

def mark(rank):
    log = Log(listen(profile=True))
    with log.mark(f"step of {rank}"), log.mark("attention"):
        seen[rank] = threading.get_native_id()

seen = {}
with profile_run(Path(sys.argv[1]), all_threads=True):
    threads = [threading.Thread(target=mark, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(json.dumps(seen))
"""


def run_in_torch(*arguments: object) -> str:
    choice = find_gloo()
    assert choice.torch is not None
    python, environment = choice.torch.python, os.environ | {"PYTHONPATH": str(ROOT)}
    if subprocess.run([python, "-c", "import click, msgspec"], capture_output=True, check=False).returncode:
        pytest.skip("torch's interpreter has none of the packages that dprankdiag needs")
    command = [python, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_ranks_that_torchrun_has_started_write_one_case(tmp_path: Path) -> None:
    said = run_in_torch(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 4, "-m", "dprankdiag", "harness", "run",
        "--executor", "gloo", "--fault", "host_late", "--format", "torch", "-o", tmp_path,
    )  # fmt: skip
    assert said.count("1 written, executor gloo") == 1
    made = json.loads((tmp_path / "host_late/truth.json").read_text())
    assert made["paths"] == [f"recording/{TRACE.format(rank=rank)}" for rank in range(4)]
    assert all((tmp_path / "host_late" / path).stat().st_size > 10_000 for path in made["paths"])
    assert made["facts"]["truths"][0]["lost_ns"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["host_late"]


@pytest.mark.slow
def test_the_torch_profiler_knows_a_thread_as_the_system_does(tmp_path: Path) -> None:
    threads = json.loads(run_in_torch("-c", _THREADS, tmp_path / "trace.json").splitlines()[0])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    found = {event["name"]: event["tid"] for event in events if event.get("cat") == "user_annotation"}
    for rank, thread in threads.items():
        assert found[f"step of {rank}"] == thread
