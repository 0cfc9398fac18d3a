"""Ranks in an interpreter of their own: what they are told, and what is said of one that fails."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from dprankdiag.harness import torch_start
from dprankdiag.harness.run_cases import list_runs, mark_kept
from dprankdiag.harness.run_choice import Torch
from dprankdiag.harness.run_faults import plan_run
from dprankdiag.harness.run_joined import Seat, choose_joined, find_seat
from dprankdiag.harness.run_plan import Plan, give_orders, unpack_orders
from dprankdiag.harness.run_steps import STEP
from dprankdiag.harness.torch_rank import ROWS, STAMPS, TRACE, Job
from dprankdiag.harness.torch_run import collect, pack_job, run_torch

CPU = Torch(sys.executable, "2.13.0+cpu", gpus=0, gpu="", nccl=False, gloo=True, triton=False)
PLAN = Plan("small", ranks=2, steps=1)


def fake_python(folder: Path, body: str) -> str:
    """Make an interpreter that runs this instead of the rank."""
    (folder / "body.py").write_text(body)
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{folder / "body.py"}" "$@"\n')
    path.chmod(0o755)
    return str(path)


def run_ranks(folder: Path, body: str, executor: str = "gloo") -> None:
    python = fake_python(folder, body)
    orders = [give_orders(PLAN)]
    run_torch(orders, folder / "ran", executor=executor, python=python, profile=False, kept=[True])


def test_a_rank_that_fails_ends_the_others_and_its_last_words_are_told(tmp_path: Path) -> None:
    body = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit('out of luck')\ntime.sleep(60)\n"
    start = time.monotonic()
    with pytest.raises(ConnectionError, match="rank 1 failed: out of luck"):
        run_ranks(tmp_path, body)
    assert time.monotonic() - start < 30


def test_each_rank_is_told_who_it_is_and_streams_have_one_process(tmp_path: Path) -> None:
    body = (
        "import json, os, pathlib, sys\njob = json.load(open(sys.argv[2]))\n"
        "names = 'RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE'\n"
        "folder = pathlib.Path(job['folder'], '0')\nfolder.mkdir(parents=True, exist_ok=True)\n"
        "(folder / f\"told-{os.environ['RANK']}\").write_text(' '.join(os.environ[name] for name in names))\n"
    )
    for executor, told in (("gloo", ["0 0 2 2", "1 1 2 2"]), ("single-gpu", ["0 0 1 1"])):
        folder = tmp_path / executor
        folder.mkdir()
        with pytest.raises(FileNotFoundError):  # these ranks write nothing
            run_ranks(folder, body, executor)
        assert [path.read_text() for path in sorted((folder / "ran/0").glob("told-*"))] == told


def test_what_ranks_wrote_is_collected(tmp_path: Path) -> None:
    folder = tmp_path / "0"
    folder.mkdir()
    for rank in range(2):
        told = {"pid": 40 + rank, "rows": [[1, 5, STEP, 0]]}
        (folder / ROWS.format(rank=rank)).write_text(json.dumps(told))
    (folder / TRACE.format(rank=0)).write_text("{}")
    (folder / STAMPS).write_text('[{"rank": 0, "wait_ns": 7}]')
    (ran,) = collect(tmp_path, 1, 2)
    assert ran.pids == (40, 41)
    assert ran.rows == ([(1, 5, STEP, 0)], [(1, 5, STEP, 0)])
    assert [path.name for path in ran.traces] == [TRACE.format(rank=0)]
    assert ran.stamps == ({"rank": 0, "wait_ns": 7},)


def test_a_job_is_the_same_after_a_way_through_json(tmp_path: Path) -> None:
    orders = [give_orders(PLAN)]
    job = pack_job(orders, tmp_path, executor="gloo", rendezvous="", profile=True, kept=[True])
    read = Job(**json.loads(json.dumps(asdict(job))))
    assert read == job
    assert unpack_orders(read.runs[0][1]).rank == 1


def test_twins_that_do_the_same_are_run_once_and_only_plans_are_kept() -> None:
    plans = [plan_run(name, 4) for name in ("healthy", "host_late", "slow_gpu", "long_context")]
    wanted = list_runs(plans)
    assert len(wanted) == 5  # each of the four, and long_context spread; the others' twin is healthy
    assert [kept for kept, plan in zip(mark_kept(plans, wanted), wanted, strict=True) if not kept] == [False]
    assert mark_kept(plans[1:2], list_runs(plans[1:2])) == [True, False]


def test_an_interpreter_without_our_packages_can_carry_out_orders() -> None:
    """Nothing but numpy is imported by what a rank needs before torch."""
    start = Path(torch_start.__file__)
    code = (
        f"import runpy, sys\nrunpy.run_path({str(start)!r})['find_package']()\n"
        "import dprankdiag.harness.torch_rank\n"
        "ours = ('msgspec', 'pandas', 'click', 'rich', 'plotly', 'torch', 'triton', 'pyarrow')\n"
        "assert not [name for name in ours if name in sys.modules], sorted(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_torchrun_tells_a_process_its_rank() -> None:
    told = {"TORCHELASTIC_RUN_ID": "none", "RANK": "9", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
    assert find_seat(told) == Seat(9, 16, 8)
    assert find_seat({"RANK": "0", "WORLD_SIZE": "2"}) is None


def test_ranks_of_torchrun_meet_by_what_their_machine_has() -> None:
    seat = Seat(0, 16, 8)
    eight = Torch(sys.executable, "2.13.0", gpus=8, gpu="NVIDIA H200", nccl=True, gloo=True, triton=True)
    assert choose_joined("auto", seat, eight).executor == "nccl"
    chosen = choose_joined("auto", seat, CPU)
    assert (chosen.executor, chosen.reason) == ("gloo", "0 GPUs for 8 ranks of this machine")
    assert choose_joined("gloo", seat, eight).executor == "gloo"
    with pytest.raises(ValueError, match="take nccl or gloo"):
        choose_joined("sockets", seat, None)
    with pytest.raises(ValueError, match="nccl cannot run here"):
        choose_joined("nccl", seat, CPU)
