"""Who carries out a run: what is chosen on which machine, and what is said of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dprankdiag.harness.run_choice import PYTHON_VARIABLE, Torch, choose_executor, find_torch
from dprankdiag.harness.run_faults import EXECUTORS

CPU = Torch("/env/python", "2.13.0+cpu", gpus=0, gpu="", nccl=False, gloo=True, triton=False)
ONE = replace(CPU, torch="2.13.0", gpus=1, gpu="NVIDIA H200", nccl=True, triton=True)


@pytest.mark.parametrize(
    "torch,executor,reason",
    [
        (None, "sockets", "torch was not found"),
        (CPU, "gloo", "sees no GPU"),
        (replace(CPU, gloo=False), "sockets", "without gloo"),
        (ONE, "single-gpu", "4 ranks need as many GPUs, torch sees 1"),
        (replace(ONE, triton=False), "gloo", "without triton"),
        (replace(ONE, gpus=8), "nccl", "a GPU for each rank"),
        (replace(ONE, gpus=8, nccl=False), "single-gpu", "without NCCL"),
    ],
)
def test_the_best_that_the_machine_has_is_chosen_and_the_reason_said(
    torch: Torch | None, executor: str, reason: str
) -> None:
    chosen = choose_executor("auto", 4, torch)
    assert chosen.executor == executor
    assert reason in chosen.reason
    assert str(chosen).startswith(f"executor {executor} (")
    assert (chosen.torch is None) == (executor == "sockets")
    if chosen.torch:
        assert chosen.torch.python in str(chosen)


@pytest.mark.parametrize("torch", [None, CPU, ONE])
def test_sockets_and_the_model_can_be_had_anywhere(torch: Torch | None) -> None:
    for wish in ("sockets", "model"):
        assert choose_executor(wish, 4, torch).executor == wish


@pytest.mark.parametrize(
    "wish,torch,said",
    [
        ("gloo", None, PYTHON_VARIABLE),
        ("nccl", CPU, "sees no GPU"),
        ("nccl", ONE, "torch sees 1"),
        ("single-gpu", CPU, "sees no GPU"),
        ("cuda", ONE, ", ".join(EXECUTORS)),
    ],
)
def test_what_the_machine_lacks_is_said_where_it_was_asked_for(wish: str, torch: Torch | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        choose_executor(wish, 4, torch)


def test_an_interpreter_that_has_no_torch_is_not_taken_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(ValueError, match="cannot import torch"):
        find_torch(str(bare))
    monkeypatch.setenv(PYTHON_VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="cannot be run"):
        find_torch()
