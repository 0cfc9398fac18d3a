"""The faults that real runs plant, who can plant them, and how much of each a recording shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from dprankdiag.harness.faults import (
    Fault,
    fabric,
    host_burst,
    host_late,
    hot_expert,
    load_context,
    load_prefill,
    load_requests,
    onset,
    slow_gpu,
    slow_link,
    window,
)
from dprankdiag.harness.run_plan import Plan

MS = 1_000_000
STEPS, LAYERS = 60, 2

Executor = Literal["model", "nccl", "gloo", "sockets", "single-gpu"]
EXECUTORS: tuple[Executor, ...] = get_args(Executor)

FAULTS: Mapping[str, Fault | None] = {
    "healthy": None,
    "long_context": load_context(2, 2.5),
    "long_context_onset": load_context(1, 3.0, when=onset(STEPS // 2)),
    "more_requests": load_requests(3, 2.5),
    "prefill_chunk": load_prefill(0, 48),
    "host_late": host_late(1, 40 * MS),
    "host_burst": host_burst(3, stalls=5, stall_ns=250 * MS),
    "slow_gpu": slow_gpu(0, 2.0),
    "hot_expert": hot_expert(dict.fromkeys(range(LAYERS), 3), 2.2),
    "slow_link": slow_link(2, 3),
    "fabric_window": fabric(4, when=window(20, 40)),
}
"""Faults by name."""

FEWEST_RANKS = 4
"""So many that every culprit is there, and has peers."""


def plan_run(name: str, ranks: int) -> Plan:
    """Describe the run with a fault.

    Raises:
        ValueError: no such fault, or too few ranks for it.
    """
    if name not in FAULTS:
        raise ValueError(f"no fault '{name}'; there are {', '.join(FAULTS)}")
    if ranks < FEWEST_RANKS:
        raise ValueError(f"{ranks} ranks; the faults need {FEWEST_RANKS} or more")
    return Plan(name, FAULTS[name], ranks=ranks, steps=STEPS, layers=LAYERS)
