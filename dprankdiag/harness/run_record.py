"""What the ranks of a real run marked, and the recording it makes: their ranges on the clock that they share."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
from dprankdiag.harness.nsys_writer import write_export
from dprankdiag.harness.run_steps import STEP

Row = tuple[int, int, str, int]
"""Start and end (ns of the monotonic clock), text and payload of a range."""

_COMMAND = ("dprankdiag", "harness", "run")


@dataclass(frozen=True, slots=True)
class Ran:
    """What the ranks of one run did.

    Attributes:
        rows: the ranges of each rank.
        pids: of each rank.
        traces: what the torch profiler wrote of each rank; empty if it was not asked to.
        stamps: by rank, what collectives that wait on the GPU have stamped themselves, summed; empty of others.
    """

    rows: tuple[Sequence[Row], ...]
    pids: tuple[int, ...]
    traces: tuple[Path, ...] = ()
    stamps: tuple[Mapping[str, int], ...] = ()

    def step_ns(self) -> Array:
        """Measure the steps, `(steps,)` int64: from the first rank's start to that of the next step, or the end."""
        starts = np.min([[start for start, _, text, _ in own if text == STEP] for own in self.rows], axis=0)
        lengths: Array = np.diff(np.append(starts, max(end for own in self.rows for _, end, _, _ in own)))
        return lengths


def write_ranges(ran: Ran, path: Path) -> None:
    """Write what the ranks of this machine marked a moment ago as an Nsight Systems export that begins with a mark."""
    start_ns = min(start for own in ran.rows for start, _, _, _ in own)
    wall_ns = time.time_ns() - (time.monotonic_ns() - start_ns)
    write_export(_record(ran, start_ns), path, clock=FileClock(wall_error_ns=wall_ns - UTC_START_NS, boot_ns=start_ns))


def _record(ran: Ran, start_ns: int) -> Recording:
    texts: dict[str, int] = {}
    rows = tuple(_only_ranges(_tabulate(own, texts, start_ns)) for own in ran.rows)
    return Recording(
        processes=tuple(
            Process(pid, f"sglang::scheduler_DP{rank}_TP{rank}_EP{rank}", True, NO_DEVICE, NO_DEVICE, platform.node())
            for rank, pid in enumerate(ran.pids)
        ),
        rows=rows,
        kernel_texts=(),
        call_texts=(),
        range_texts=tuple(map(RangeText, texts)),
        graph_mode=None,
        command=_COMMAND,
        collectives=(),
        groups=(),
        places=tuple(Place(rank, 0, rank) for rank in range(len(rows))),
    )


def _tabulate(own: Sequence[Row], texts: dict[str, int], start_ns: int) -> RangeRows:
    """Sort what was marked by start, a range before those inside it."""
    numbered = [(start, end, texts.setdefault(text, len(texts)), value) for start, end, text, value in own]
    rows = np.array(numbered, np.int64)
    rows = rows[np.lexsort((-rows[:, 1], rows[:, 0]))]
    return RangeRows(rows[:, 0] - start_ns, rows[:, 1] - start_ns, rows[:, 2], rows[:, 3])


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
