"""A rank that meets the others by `torch.distributed`: over gloo with its work asleep, or over NCCL on a GPU.

It is started once and goes through several runs, for torch takes seconds to be imported. Who it is it finds in the
variables that torchrun sets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dprankdiag.harness.cpu_collectives import Gloo
from dprankdiag.harness.cpu_rank import carry_out, listen
from dprankdiag.harness.run_plan import unpack_orders
from dprankdiag.harness.run_steps import Log, Marks

ROWS = "rows-{rank}.json"
TRACE = "run_rank{rank}.pt.trace.json"


@dataclass(frozen=True, slots=True)
class Job:
    """What all ranks are started for.

    Attributes:
        folder: where each run gets a folder of its own, by its number.
        backend: gloo or nccl.
        rendezvous: file at which the ranks find each other; "" where torchrun has told them.
        profile: let the torch profiler write a trace of each run.
        runs: by run and rank, packed orders.
    """

    folder: str
    backend: str
    rendezvous: str
    profile: bool
    runs: Sequence[Sequence[Mapping[str, Any]]]


def main(path: str) -> None:
    """Do the job that a file holds: the main function of a process."""
    do_job(Job(**json.loads(Path(path).read_text("utf-8"))))


def do_job(job: Job) -> None:
    """Go through all runs as the rank that the environment names."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    group = Gloo(rank, ranks, job.rendezvous)
    try:
        for number, orders in enumerate(job.runs):
            folder = Path(job.folder, str(number))
            folder.mkdir(parents=True, exist_ok=True)
            log = Log(listen())
            with _profile(job, folder / TRACE.format(rank=rank), log):
                carry_out(unpack_orders(orders[rank]), group, log)
            told = {"pid": os.getpid(), "rows": log.rows}
            (folder / ROWS.format(rank=rank)).write_text(json.dumps(told), "utf-8")
    finally:
        group.close()


class Annotations:
    """Tells ranges to the torch profiler."""

    def __init__(self) -> None:
        self._open: list[Any] = []

    def push(self, text: str) -> None:
        """Open a range."""
        from torch.profiler import record_function

        self._open.append(record_function(text))
        self._open[-1].__enter__()

    def pop(self) -> None:
        """Close the last one."""
        self._open.pop().__exit__(None, None, None)


def _profile(job: Job, path: Path, log: Log) -> AbstractContextManager[object]:
    if not job.profile:
        return nullcontext()
    from torch.profiler import ProfilerActivity, profile

    annotations: Marks = Annotations()
    log.listeners = (*log.listeners, annotations)
    profiler: AbstractContextManager[object] = profile(
        activities=[ProfilerActivity.CPU], on_trace_ready=lambda found: found.export_chrome_trace(str(path))
    )
    return profiler
