"""What one rank of a CPU deployment does: a real process that works, meets its peers and writes down its ranges.

Work is time asleep: so a host waits for its GPU, and ranks do not fight for the cores of a small machine. Moments are
those of the monotonic clock, which all processes of a host share.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from dprankdiag.harness.cpu_collectives import Collectives, Gloo, Ring
from dprankdiag.harness.events import NO_VALUE, Array, RangeRows

STEP, SYNC, ATTENTION, EXPERTS, GATHER, SCATTER = range(6)
RANGES = ("decode_step", "metadata_all_gather", "attention", "moe_experts", "all_gather", "reduce_scatter")
"""Names of what a rank marks, by the numbers above."""

_HIDDEN = 256
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Orders:
    """What a rank is to do.

    Attributes:
        attention_ns: `(steps, layers)` int64, before the gather.
        expert_ns: `(steps, layers)` int64, after it, for each request that the metadata gather announced.
        late_ns: `(steps,)` int64, how long the host dallies between the metadata gather and its first launch.
        requests: of this rank.
    """

    rank: int
    ranks: int
    attention_ns: Array
    expert_ns: Array
    late_ns: Array
    requests: int


@dataclass(slots=True)
class _Marks:
    """Ranges as they happen; the module `nvtx`, where it is installed, is told of them too."""

    rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    nvtx: Any = None

    @contextmanager
    def mark(self, name: int, value: int = NO_VALUE) -> Iterator[None]:
        if self.nvtx:
            self.nvtx.push_range(RANGES[name])
        start_ns = time.monotonic_ns()
        yield
        self.rows.append((start_ns, time.monotonic_ns(), name, value))
        if self.nvtx:
            self.nvtx.pop_range()

    def list_rows(self) -> RangeRows:
        """Sort what was marked by start, a range before those inside it."""
        rows = np.array(self.rows, np.int64)
        rows = rows[np.lexsort((-rows[:, 1], rows[:, 0]))]
        return RangeRows(*rows.T)


def run_rank(
    orders: Orders, links: tuple[socket.socket, socket.socket] | None, rendezvous: Path, answer: Connection
) -> None:
    """Work through all steps, then send the rank's ranges: the main function of a process.

    Args:
        orders: what to do.
        links: to the next rank and from the last one, for a ring of sockets; None to meet by gloo.
        rendezvous: file at which gloo's ranks find each other.
        answer: where the ranges are sent.
    """
    group: Collectives = (
        Ring(orders.rank, orders.ranks, *links) if links else Gloo(orders.rank, orders.ranks, rendezvous)
    )
    marks = _Marks(nvtx=import_module("nvtx") if find_spec("nvtx") else None)
    try:
        for _ in range(_WARM_UP):
            group.all_gather(np.zeros(1))
        for step in range(len(orders.late_ns)):
            with marks.mark(STEP, step):
                _run_step(orders, group, marks, step)
        group.all_gather(np.zeros(1))
    finally:
        group.close()
    answer.send(marks.list_rows())
    answer.close()


def _run_step(orders: Orders, group: Collectives, marks: _Marks, step: int) -> None:
    with marks.mark(SYNC):
        requests = int(group.all_gather(np.array([orders.requests], float)).sum())
    _sleep(int(orders.late_ns[step]))
    for attention_ns, expert_ns in zip(orders.attention_ns[step], orders.expert_ns[step], strict=True):
        with marks.mark(ATTENTION):
            _sleep(int(attention_ns))
        with marks.mark(GATHER):
            tokens = group.all_gather(np.full(_HIDDEN, float(orders.rank)))
        with marks.mark(EXPERTS):
            _sleep(int(expert_ns) * requests)
        with marks.mark(SCATTER):
            group.reduce_scatter(tokens)


def _sleep(duration_ns: int) -> None:
    if duration_ns:
        time.sleep(duration_ns * 1e-9)
