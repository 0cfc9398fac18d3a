"""Ranks that need torch: over gloo with their work asleep, over NCCL on a GPU each, or as streams of one GPU.

A process is started once and goes through several runs, for torch takes seconds to be imported. Which rank it is it
finds in the variables that torchrun sets; the process of a single GPU is all ranks at once.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dprankdiag.harness.cpu_collectives import Gloo
from dprankdiag.harness.cpu_device import CpuDevice
from dprankdiag.harness.cpu_rank import carry_out, hurry
from dprankdiag.harness.run_plan import Orders, unpack_orders
from dprankdiag.harness.run_steps import Log
from dprankdiag.harness.torch_listeners import Recorder, capture_run, listen, profile_run

ROWS, STAMPS = "rows-{rank}.json", "stamps.json"
TRACE = "run_rank{rank}.pt.trace.json"

_SWITCH_S = 50e-6
"""How soon a launching thread lets the next one have the interpreter: about two launches."""


@dataclass(frozen=True, slots=True)
class Job:
    """What all ranks are started for.

    Attributes:
        folder: where each run gets a folder of its own, by its number.
        executor: gloo, nccl or single-gpu.
        rendezvous: file at which the ranks find each other; "" where torchrun has told them.
        profile: let the torch profiler watch all runs; else what runs is first of all for Nsight Systems.
        kept: by run, whether its trace is wanted; that of a twin is not, but it must be watched alike.
        runs: by run and rank, packed orders.
    """

    folder: str
    executor: str
    rendezvous: str
    profile: bool
    kept: Sequence[bool]
    runs: Sequence[Sequence[Mapping[str, Any]]]


def main(path: str) -> None:
    """Do the job that a file holds: the main function of a process."""
    do_job(Job(**json.loads(Path(path).read_text("utf-8"))))


def do_job(job: Job) -> None:
    """Go through all runs."""
    runs = [[unpack_orders(own) for own in orders] for orders in job.runs]
    if job.executor == "single-gpu":
        _do_streams(job, runs)
    elif job.executor == "nccl":
        _do_nccl(job, runs)
    else:
        _do_gloo(job, runs)


def _do_gloo(job: Job, runs: Sequence[Sequence[Orders]]) -> None:
    rank, ranks = _find_rank()
    with hurry():  # its threads too
        group = Gloo(rank, ranks, job.rendezvous)
    try:
        for number, orders in enumerate(runs):
            log = Log(listen(profile=job.profile))
            with _record(job, number, TRACE.format(rank=rank)), hurry():
                carry_out(orders[rank], CpuDevice(group, rank), group, log)
            _tell(job, number, rank, log)
        group.all_gather(np.zeros(1))  # all have written
    finally:
        group.close()


def _do_nccl(job: Job, runs: Sequence[Sequence[Orders]]) -> None:
    import torch

    from dprankdiag.harness.gpu_nccl import BACKENDS, NcclDevice

    rank, ranks = _find_rank()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    group = Gloo(rank, ranks, job.rendezvous, BACKENDS)
    try:
        most = max(int(own.messages.max()) for orders in runs for own in orders)
        device = NcclDevice(group, ranks, most)
        device.warm_up(runs[0][rank])
        for number, orders in enumerate(runs):
            log = Log(listen(cuda=True, profile=job.profile))
            with _record(job, number, TRACE.format(rank=rank), cuda=True):
                carry_out(orders[rank], device, group, log)
            _tell(job, number, rank, log)
        group.all_gather(np.zeros(1))  # all have written
    finally:
        group.close()


def _do_streams(job: Job, runs: Sequence[Sequence[Orders]]) -> None:
    from dprankdiag.harness.gpu_cuda import OneGpu, prepare_environment, summarise_stamps
    from dprankdiag.harness.gpu_split import split_file
    from dprankdiag.harness.gpu_streams import run_streams

    prepare_environment()
    sys.setswitchinterval(_SWITCH_S)
    gpu = OneGpu(len(runs[0]), max(2 * own[0].steps * own[0].layers for own in runs))
    rounds = gpu.warm_up(runs[0][0])
    for number, orders in enumerate(runs):
        gpu.reset()
        whole = Path(job.folder, str(number), "whole.json")
        with _record(job, number, whole.name, cuda=True, all_threads=True):
            ended = run_streams(orders, gpu.queues, rounds, partial(listen, cuda=True, profile=job.profile))
        for rank, rank_ended in enumerate(ended):
            _tell(job, number, rank, rank_ended.log)
        stamps = summarise_stamps(gpu.stamps.cpu().numpy()[:, : 2 * orders[0].steps * orders[0].layers])
        whole.with_name(STAMPS).write_text(json.dumps(stamps), "utf-8")
        if whole.exists():
            split_file(whole, [it.thread for it in ended], whole.parent, TRACE)
            whole.unlink()


def _find_rank() -> tuple[int, int]:
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def _record(job: Job, number: int, name: str, *, cuda: bool = False, all_threads: bool = False) -> Recorder:
    """Open what records a run; Nsight Systems is to have the first one, which is that with the fault."""
    folder = Path(job.folder, str(number))
    folder.mkdir(parents=True, exist_ok=True)
    if job.profile:
        return profile_run(folder / name if job.kept[number] else None, cuda=cuda, all_threads=all_threads)
    return capture_run() if cuda and number == 0 else nullcontext()


def _tell(job: Job, number: int, rank: int, log: Log) -> None:
    told = {"pid": os.getpid(), "rows": log.rows}
    Path(job.folder, str(number), ROWS.format(rank=rank)).write_text(json.dumps(told), "utf-8")
