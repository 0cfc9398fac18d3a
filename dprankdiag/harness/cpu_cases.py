"""Faults planted in deployments of real CPU processes, and what is true of their recordings.

What a fault costs is measured: the same orders without it, or with its work spread evenly, are run too. Both runs are
noisy, so that medians are compared: of the steps in which the fault acts, with and without it.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from dprankdiag.harness.cases import Facts
from dprankdiag.harness.cpu_collectives import Executor
from dprankdiag.harness.cpu_rank import Orders
from dprankdiag.harness.cpu_run import Run, run_ranks
from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.events import Array
from dprankdiag.harness.faults import (
    SPREADABLE,
    Fault,
    host_burst,
    host_late,
    hot_expert,
    load_context,
    onset,
    slow_gpu,
)
from dprankdiag.harness.nsys_writer import write_export
from dprankdiag.harness.score import TRUTH, Made
from dprankdiag.harness.worlds import Truth

MS = 1_000_000
STEPS, LAYERS, REQUESTS = 60, 2, 16
ATTENTION_NS, EXPERT_NS = 18 * MS, 14 * MS
SPREAD = 0.03
"""Standard deviation of a step's attention work, relative."""

FAULTS: dict[str, Fault | None] = {
    "healthy": None,
    "load": load_context(2, 2.5),
    "load_onset": load_context(1, 3.0, when=onset(STEPS // 2)),
    "host_late": host_late(1, 40 * MS),
    "host_burst": host_burst(3, stalls=5, stall_ns=250 * MS),
    "slow_rank": slow_gpu(0, 2.0),
    "hot_expert": hot_expert(dict.fromkeys(range(LAYERS), 3), 2.2),
}
"""Faults by name."""

FEWEST_RANKS = 4
"""So many that every culprit is there, and has peers."""

_SHOWN = {"load.context": "load.unknown", "single_point.gpu": "single_point.unknown"}
"""What ranges show of a cause: how long work takes, but neither its kind nor whether it is equal work."""


def make_cpu_case(name: str, folder: Path, *, ranks: int, executor: Executor) -> Made:
    """Run a deployment with a fault and its twin, and write the recording and what is true of it.

    Args:
        name: of `FAULTS`.
        folder: the case's own, made anew.
        ranks: processes.
        executor: how they meet.

    Raises:
        ValueError: no such fault, or too few ranks for it.
        OSError: a process failed.
    """
    if name not in FAULTS:
        raise ValueError(f"no fault '{name}'; there are {', '.join(FAULTS)}")
    if ranks < FEWEST_RANKS:
        raise ValueError(f"{ranks} ranks; the faults need {FEWEST_RANKS} or more")
    shutil.rmtree(folder, ignore_errors=True)
    path = folder / "recording" / f"{name}.sqlite"
    path.parent.mkdir(parents=True)
    fault = FAULTS[name]
    run = run_ranks(give_orders(fault, ranks), executor)
    write_export(run.recording, path, clock=run.clock)
    made = Made(_learn_facts(name, fault, run, executor), (str(path.relative_to(folder)),))
    (folder / TRUTH).write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    return made


def give_orders(fault: Fault | None, ranks: int) -> list[Orders]:
    """Draw the work of all ranks, the same with and without a fault."""
    random = open_stream(1, "cpu", ranks)
    attention = ATTENTION_NS * (1 + SPREAD * random.standard_normal((STEPS, 1, ranks)).clip(-3, 3))
    attention = np.repeat(attention, LAYERS, axis=1)
    experts = np.full((STEPS, LAYERS, ranks), EXPERT_NS / (REQUESTS * ranks))
    late = np.zeros((STEPS, ranks))
    if fault is not None:
        active = mark_active(fault, ranks)
        if fault.kind in ("load_context", "slow_gpu"):
            attention *= np.where(active, fault.size, 1.0)[:, None]
        if fault.kind == "slow_gpu":
            experts *= np.where(active, fault.size, 1.0)[:, None]
        if fault.kind == "hot_expert":
            experts *= _draw_tokens(fault, ranks)
        if fault.kind in ("host_late", "host_burst"):
            late += np.where(active, fault.size, 0.0)
        if fault.spread:
            attention[:] = attention.mean(axis=2, keepdims=True)
            experts[:] = experts.mean(axis=2, keepdims=True)
    return [
        Orders(
            rank,
            ranks,
            np.rint(attention[:, :, rank]).astype(np.int64),
            np.rint(experts[:, :, rank]).astype(np.int64),
            np.rint(late[:, rank]).astype(np.int64),
            REQUESTS,
        )
        for rank in range(ranks)
    ]


def mark_active(fault: Fault, ranks: int) -> Array:
    """Mark the steps and ranks in which a fault acts: `(steps, ranks)` bool; no stall is at an edge."""
    random = open_stream(1, "cpu-fault", ranks)
    if fault.kind != "host_burst":
        return fault.activity(STEPS, ranks, random)
    active = np.zeros((STEPS, ranks), bool)
    active[random.choice(np.arange(2, STEPS - 2), fault.stalls, replace=False), fault.ranks[0]] = True
    return active


def _draw_tokens(fault: Fault, ranks: int) -> Array:
    """Share the tokens of each layer, `(layers, ranks)`: what its hot rank draws beyond its part the others lack."""
    share = np.ones((LAYERS, ranks))
    for layer, rank in fault.layers:
        share[layer] = (ranks - fault.size) / (ranks - 1)
        share[layer, rank] = fault.size
    return share


def _learn_facts(name: str, fault: Fault | None, run: Run, executor: Executor) -> Facts:
    step_ns = run.step_ns()
    ranks, wall_ns = len(run.recording.rows), int(step_ns.sum())
    if fault is None:
        return Facts(name, "", ranks, STEPS, (), 0, wall_ns, {})
    undone = replace(fault, spread=True) if fault.kind in SPREADABLE else None
    twin_ns = run_ranks(give_orders(undone, ranks), executor).step_ns()
    active = mark_active(fault, ranks).any(axis=1)
    longer_ns = float(np.median(step_ns[active]) - np.median(twin_ns[active]))
    lost_ns = round(longer_ns * int(active.sum()))
    true = Truth(
        cause=fault.cause,
        answerable=_SHOWN.get(fault.cause, fault.cause),
        ranks=fault.ranks,
        layers=tuple(layer for layer, _ in fault.layers) or None,
        who="one",
        when="burst" if fault.kind == "host_burst" else fault.when.kind,
        lost_ns=lost_ns,
        wall_ns=wall_ns,
        slowdown_ratio=wall_ns / (wall_ns - lost_ns) - 1,
        healthy=False,
    )
    return Facts(name, "", ranks, STEPS, (true,), lost_ns, wall_ns, {})
