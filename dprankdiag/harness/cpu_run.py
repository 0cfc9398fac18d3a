"""Run a deployment of CPU processes, and record it: the ranges of every rank on the clock that they share."""

from __future__ import annotations

import platform
import tempfile
import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import numpy as np

from dprankdiag.harness.cpu_collectives import PATIENCE_S, Executor, link_ring
from dprankdiag.harness.cpu_rank import RANGES, STEP, Orders, run_rank
from dprankdiag.harness.events import (
    NO_DEVICE,
    UTC_START_NS,
    Array,
    CallRows,
    ClearRows,
    CopyRows,
    EventRows,
    FileClock,
    KernelRows,
    Place,
    Process,
    RangeRows,
    RangeText,
    RankRows,
    Recording,
    ReplayRows,
    SyncRows,
    empty_rows,
)

_COMMAND = ("dprankdiag", "harness", "run")


@dataclass(frozen=True, slots=True)
class Run:
    """What real processes did.

    Attributes:
        recording: their ranges; time 0 is the start of the first step.
        clock: of the host.
    """

    recording: Recording
    clock: FileClock

    def step_ns(self) -> Array:
        """Measure the steps, `(steps,)` int64: from the first rank's start to that of the next step, or the end."""
        ranges = [rows.ranges for rows in self.recording.rows]
        starts = np.min([it.start_ns[it.name == STEP] for it in ranges], axis=0)
        end = max(int(it.end_ns.max()) for it in ranges)
        lengths: Array = np.diff(np.append(starts, end))
        return lengths


def run_ranks(orders: list[Orders], executor: Executor) -> Run:
    """Start a process for each rank, let them meet, and collect their ranges.

    Raises:
        OSError: a rank failed, or did not end in time.
    """
    context = get_context("spawn")
    links = link_ring(len(orders)) if executor == "sockets" else [None] * len(orders)
    processes: list[SpawnProcess] = []
    answers: list[Connection] = []
    with tempfile.TemporaryDirectory(prefix="dprankdiag-") as folder:
        try:
            for own, ends in zip(orders, links, strict=True):
                answer, theirs = context.Pipe(duplex=False)
                process = context.Process(target=run_rank, args=(own, ends, Path(folder) / "rendezvous", theirs))
                process.start()
                theirs.close()
                for link in ends or ():
                    link.close()  # or a rank that fails would not be missed
                processes.append(process)
                answers.append(answer)
            rows = [_receive(answer, orders) for answer in answers]
            for process in processes:
                process.join(PATIENCE_S)
        finally:
            for process in processes:
                process.kill()
                process.join()
            for answer in answers:
                answer.close()
    return _record(rows, [process.pid or 0 for process in processes])


def _receive(answer: Connection, orders: list[Orders]) -> RangeRows:
    """Wait for a rank's ranges for as long as all ranks' work would take one after the other, and some time more."""
    work_ns = sum(int(own.attention_ns.sum() + own.late_ns.sum()) for own in orders)
    work_ns += sum(int(own.expert_ns.sum()) * sum(it.requests for it in orders) for own in orders)
    try:
        if not answer.poll(work_ns * 1e-9 + 2 * PATIENCE_S):
            raise TimeoutError("a rank did not end in time")
        rows: RangeRows = answer.recv()
    except EOFError:
        raise ConnectionError("a rank failed before it had recorded its ranges") from None
    return rows


def _record(rows: list[RangeRows], pids: list[int]) -> Run:
    start_ns = min(int(it.start_ns.min()) for it in rows)
    elapsed_ns = time.monotonic_ns() - start_ns
    moved = [RangeRows(it.start_ns - start_ns, it.end_ns - start_ns, it.name, it.value) for it in rows]
    recording = Recording(
        processes=tuple(
            Process(pid, f"sglang::scheduler_DP{rank}_TP{rank}_EP{rank}", True, NO_DEVICE, NO_DEVICE, platform.node())
            for rank, pid in enumerate(pids)
        ),
        rows=tuple(_only_ranges(it) for it in moved),
        kernel_texts=(),
        call_texts=(),
        range_texts=tuple(RangeText(name) for name in RANGES),
        graph_mode=None,
        command=_COMMAND,
        collectives=(),
        groups=(),
        places=tuple(Place(rank, 0, rank) for rank in range(len(rows))),
    )
    wall_error_ns = time.time_ns() - elapsed_ns - UTC_START_NS
    return Run(recording, FileClock(wall_error_ns=wall_error_ns, boot_ns=start_ns))


def _only_ranges(ranges: RangeRows) -> RankRows:
    return RankRows(
        kernels=empty_rows(KernelRows),
        copies=empty_rows(CopyRows),
        clears=empty_rows(ClearRows),
        calls=empty_rows(CallRows),
        syncs=empty_rows(SyncRows),
        events=empty_rows(EventRows),
        ranges=ranges,
        replays=empty_rows(ReplayRows),
    )
