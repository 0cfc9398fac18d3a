"""Runs whose ranks torchrun has started: each process is one of them, and the first writes down what all did."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dprankdiag.harness.run_cases import keep_runs, list_runs, mark_kept, plan_runs
from dprankdiag.harness.run_choice import Choice, Torch, choose_executor
from dprankdiag.harness.run_faults import Format
from dprankdiag.harness.run_plan import give_orders
from dprankdiag.harness.score import Made
from dprankdiag.harness.torch_rank import do_job
from dprankdiag.harness.torch_run import collect, pack_job

_RUNS = ".runs"


@dataclass(frozen=True, slots=True)
class Seat:
    """Which rank this process is, of how many, and how many of them are on this machine."""

    rank: int
    ranks: int
    local_ranks: int


def find_seat(environment: Mapping[str, str] = os.environ) -> Seat | None:
    """Tell which rank torchrun has made of this process; None if it has not started it.

    Source: torch.distributed.run, environment variables of a worker.
    """
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    rank, ranks, local = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return Seat(rank, ranks, local)


def choose_joined(wish: str, seat: Seat, torch: Torch | None) -> Choice:
    """Choose who carries out the runs of ranks that are there already.

    Raises:
        ValueError: not an executor whose ranks torchrun can start, or the machine lacks what it needs.
    """
    if wish not in ("auto", "nccl", "gloo"):
        raise ValueError(f"torchrun starts a process for each rank: take nccl or gloo, not {wish}")
    if wish == "auto" and torch is not None and torch.gpus < seat.local_ranks:
        chosen = choose_executor("gloo", seat.ranks, torch)
        return Choice(chosen.executor, f"{torch.gpus} GPUs for {seat.local_ranks} ranks of this machine", torch)
    return choose_executor("nccl" if wish == "auto" else wish, seat.local_ranks, torch)


def join_runs(names: Sequence[str], output: Path, *, seat: Seat, choice: Choice, format: Format) -> list[Made]:
    """Go through all runs and their twins as one of the ranks; the first one writes the recordings and what is true.

    Args:
        names: of `FAULTS`.
        output: folder of the cases, which all ranks share.
        seat: of this process.
        choice: who carries out the runs.
        format: of the recordings.

    Raises:
        ValueError: as in `make_runs`.
        OSError: a rank failed.
    """
    plans = plan_runs(names, ranks=seat.ranks, executor=choice.executor, format=format)
    wanted, folder = list_runs(plans), output / _RUNS
    orders = [give_orders(plan) for plan in wanted]
    kept, profile = mark_kept(plans, wanted), format == "torch"
    do_job(pack_job(orders, folder, executor=choice.executor, rendezvous="", profile=profile, kept=kept))
    if seat.rank:
        return []
    ran = dict(zip(wanted, collect(folder, len(wanted), seat.ranks), strict=True))
    made = keep_runs(plans, ran, output, choice.executor, format)
    shutil.rmtree(folder)
    return made
