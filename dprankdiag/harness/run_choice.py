"""Choose who carries out a run, by what this machine has, and say why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from dprankdiag.harness.run_faults import EXECUTORS, WITH_TORCH, Executor

PYTHON_VARIABLE = "DPRANKDIAG_TORCH_PYTHON"
"""Names an interpreter that has torch."""

_PROBE_S = 120
_PROBE = """
import json, torch
from importlib.util import find_spec
there = torch.cuda.is_available()
print(json.dumps({
    "torch": torch.__version__,
    "gpus": torch.cuda.device_count() if there else 0,
    "gpu": torch.cuda.get_device_name(0) if there else "",
    "nccl": torch.distributed.is_available() and torch.distributed.is_nccl_available(),
    "gloo": torch.distributed.is_available() and getattr(torch.distributed, "is_gloo_available", lambda: True)(),
    "triton": find_spec("triton") is not None,
}))
"""


@dataclass(frozen=True, slots=True)
class Torch:
    """What an interpreter's torch can do; `gpus` as torch sees them, the first of which is called `gpu`."""

    python: str
    torch: str
    gpus: int
    gpu: str
    nccl: bool
    gloo: bool
    triton: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """Who carries out a run.

    Attributes:
        torch: what its ranks run under; None without torch.
        reason: why this one, in words.
    """

    executor: Executor
    reason: str
    torch: Torch | None = None

    def __str__(self) -> str:
        under = f", torch {self.torch.torch} of {self.torch.python}" if self.torch else ""
        return f"executor {self.executor} ({self.reason}{under})"


def choose_executor(wish: str, ranks: int, torch: Torch | None) -> Choice:
    """Take what is wished if the machine has what it needs; with "auto" the first in order that it has.

    Args:
        wish: an executor's name or "auto".
        ranks: how many are to run.
        torch: what there is; None without torch.

    Raises:
        ValueError: no such executor, or the machine lacks what it needs.
    """
    if wish != "auto" and wish not in EXECUTORS:
        raise ValueError(f"no executor '{wish}'; there are auto, {', '.join(EXECUTORS)}")
    lacks = {executor: _tell_lack(executor, ranks, torch) for executor in EXECUTORS}
    if wish != "auto":
        chosen = next(it for it in EXECUTORS if it == wish)
        if lacks[chosen]:
            raise ValueError(f"{chosen} cannot run here: {lacks[chosen]}")
        return Choice(chosen, "as asked for", torch if chosen in WITH_TORCH else None)
    passed: list[str] = []
    for executor, because in _ORDER.items():
        if not lacks[executor]:
            return Choice(executor, "; ".join([*passed, because]), torch)
        passed.append(f"not {executor}: {lacks[executor]}")
    return Choice("sockets", "torch was not found" if torch is None else "; ".join(passed))


_ORDER: Mapping[Executor, str] = {
    "nccl": "a GPU for each rank",
    "single-gpu": "one GPU, whose streams are the ranks",
    "gloo": "processes that meet by torch.distributed",
}


def _tell_lack(executor: Executor, ranks: int, torch: Torch | None) -> str:
    """Say what an executor lacks here; "" if nothing."""
    if executor not in WITH_TORCH:
        return ""
    if torch is None:
        return (
            "no interpreter with torch was found; install it beside dprankdiag (pip install 'dprankdiag[gpu]') "
            f"or name one that has it with --python or {PYTHON_VARIABLE}"
        )
    if executor == "gloo":
        return "" if torch.gloo else f"torch {torch.torch} was built without gloo"
    if not torch.gpus:
        return f"torch {torch.torch} sees no GPU"
    if not torch.triton:
        return f"torch {torch.torch} comes without triton, which compiles the kernels"
    if executor == "single-gpu":
        return ""
    if not torch.nccl:
        return f"torch {torch.torch} was built without NCCL"
    return "" if torch.gpus >= ranks else f"{ranks} ranks need as many GPUs, torch sees {torch.gpus}"


def find_torch(python: str | None = None) -> Torch | None:
    """Find an interpreter that has torch: the named one, else this one, else the system's.

    Raises:
        ValueError: a named interpreter has no torch, or cannot be run.
    """
    named = python or os.environ.get(PYTHON_VARIABLE)
    if named:
        return _probe(named, must=True)
    if find_spec("torch"):
        return _probe(sys.executable, must=True)
    system = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    return _probe(system) if system else None


def _probe(python: str, *, must: bool = False) -> Torch | None:
    try:
        done = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise ValueError(f"{python} cannot be run: {problem}") from problem
    if not done.returncode:
        return Torch(python, **json.loads(done.stdout.splitlines()[-1]))
    if must:
        last = done.stderr.strip().splitlines()[-1:]
        raise ValueError(f"{python} cannot import torch: {''.join(last)}")
    return None
