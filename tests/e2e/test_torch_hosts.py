"""Torch profiler traces of processes without a GPU, whose collectives gloo runs on the threads of a pool."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.harness.score import run_command
from tests.readers import torch_builders as torch

COMMAND = (sys.executable, "-m", "dprankdiag")
RANKS, STEPS, LAYERS, POOL = 4, 30, 2, (101, 102)
ATTENTION_NS, EXPERT_NS, TRANSFER_NS = 1_000_000, 700_000, 50_000


def write_traces(folder: Path, slow: int, factor: float, *, marked: bool) -> list[Path]:
    """Play ranks that meet after attention and after experts; `marked`: the program names each meeting, too."""
    random = np.random.default_rng(3)
    events: list[list[torch.Event]] = [torch.process("python", pid=4242 + rank) for rank in range(RANKS)]
    now = np.zeros(RANKS, np.int64)
    for _ in range(STEPS):
        begin = now.copy()
        for work, work_ns, meeting in (
            ("attention", ATTENTION_NS, "all_gather"),
            ("moe_experts", EXPERT_NS, "all_to_all"),
        ) * LAYERS:
            took = work_ns * (1 + 0.02 * random.random(RANKS))
            if work == "attention":
                took[slow] *= factor
            came = now + took.astype(np.int64)
            left = int(came.max()) + TRANSFER_NS
            for rank in range(RANKS):
                start, end, pid = int(now[rank]), int(came[rank]), 4242 + rank
                call = torch.annotation(end + 2_000, left - 2_000, f"gloo:{meeting}", pid=pid)
                events[rank] += [torch.annotation(start, end, work, pid=pid), call | {"tid": int(random.choice(POOL))}]
                if marked:
                    events[rank].append(torch.annotation(end, left, meeting, pid=pid))
            now = np.full(RANKS, left + 3_000)
        for rank in range(RANKS):
            events[rank].append(torch.annotation(int(begin[rank]), int(now[rank]), "decode_step", pid=4242 + rank))
    return [
        torch.write(folder / f"run_rank{rank}.pt.trace.json", events[rank], rank=rank, world=RANKS)
        for rank in range(RANKS)
    ]


@pytest.mark.parametrize("marked", [False, True])
def test_the_rank_whose_attention_takes_longer_is_named(marked: bool, tmp_path: Path) -> None:
    answer, error = run_command(write_traces(tmp_path, 2, 2.0, marked=marked), COMMAND)
    assert answer is not None, error
    assert [(item["cause"], item["ranks"]) for item in answer["findings"]] == [("load.unknown", [2])]
    assert answer["time"]["steps"] >= STEPS - 2
    step_ns = LAYERS * (2 * ATTENTION_NS + EXPERT_NS + 2 * TRANSFER_NS)
    assert answer["findings"][0]["lost_ratio"] == pytest.approx(LAYERS * 0.75 * ATTENTION_NS / step_ns, rel=0.1)


@pytest.mark.parametrize("marked", [False, True])
def test_even_processes_are_healthy(marked: bool, tmp_path: Path) -> None:
    answer, error = run_command(write_traces(tmp_path, 2, 1.0, marked=marked), COMMAND)
    assert answer is not None, error
    assert (answer["status"], answer["findings"]) == ("healthy", [])
