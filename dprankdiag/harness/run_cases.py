"""Runs with planted faults, whoever carries them out, and what is true of their recordings.

What a fault costs is measured: the same run without it, or with its work spread evenly, is made too. Both are noisy, so
that medians are compared: of the steps in which the fault acts, with and without it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from dprankdiag.harness.cases import Facts
from dprankdiag.harness.cpu_rank import run_sockets
from dprankdiag.harness.run_choice import Choice
from dprankdiag.harness.run_faults import ON_GPU, Executor, Format, plan_run, tell_obstacle
from dprankdiag.harness.run_model import model_run
from dprankdiag.harness.run_plan import Plan, give_orders
from dprankdiag.harness.run_record import Ran, write_ranges
from dprankdiag.harness.score import TRUTH, Made, make_case
from dprankdiag.harness.torch_rank import STAMPS
from dprankdiag.harness.torch_run import run_torch
from dprankdiag.harness.worlds import Truth

Progress = Callable[[str, "float | None"], None]

_RECORDING = "recording"

_SHOWN_ASLEEP = {"single_point.gpu": "single_point.unknown"}
"""What ranges show of a cause: how long work takes, but not whether it is equal work."""


def choose_format(executor: Executor, wish: Format | None) -> Format:
    """Take the wished format, else what an executor writes by itself: kernels by the torch profiler, ranges as nsys."""
    return wish or ("torch" if executor in ON_GPU else "nsys")


def make_runs(
    names: Sequence[str], output: Path, *, ranks: int, choice: Choice, format: Format, progress: Progress
) -> list[Made]:
    """Make runs with faults and their twins, and write of each the recording and what is true of it.

    Args:
        names: of `FAULTS`; each gets a folder of its own, made anew.
        output: folder of those.
        ranks: how many.
        choice: who carries them out.
        format: an export of Nsight Systems, or traces of the torch profiler. Exports of runs on GPUs are left to
            Nsight Systems itself, and expected where truth.json says.
        progress: told what is being run.

    Raises:
        ValueError: no such fault, too few ranks for it, or one that this executor cannot plant or record.
        OSError: a rank failed.
    """
    plans = plan_runs(names, ranks=ranks, executor=choice.executor, format=format)
    if choice.executor == "model":
        made = []
        for number, plan in enumerate(plans):
            progress(f"playing {plan.name}", number / len(plans))
            made.append(make_case(model_run(plan), output / plan.name, format=format))
        return made
    with tempfile.TemporaryDirectory(prefix="dprankdiag-") as passing:
        wanted = list_runs(plans)
        ran = _run_all(plans, wanted, choice, format, Path(passing), progress)
        return keep_runs(plans, dict(zip(wanted, ran, strict=True)), output, choice.executor, format)


def plan_runs(names: Sequence[str], *, ranks: int, executor: Executor, format: Format) -> list[Plan]:
    """Describe the runs with faults.

    Raises:
        ValueError: as in `make_runs`.
    """
    plans = [plan_run(name, ranks, executor) for name in names]
    for name in names:
        if obstacle := tell_obstacle(executor, format, name):
            raise ValueError(f"{executor} cannot run {name}: {obstacle}")
    if executor == "sockets" and format == "torch":
        raise ValueError("sockets need no torch and have no torch profiler: take gloo, or the format nsys")
    return plans


def list_runs(plans: Sequence[Plan]) -> list[Plan]:
    """List each plan and its twin; twins that do the same are one."""
    return list(dict.fromkeys(_unname(each) for plan in plans for each in (plan, plan.twin())))


def _run_all(
    plans: Sequence[Plan], wanted: Sequence[Plan], choice: Choice, format: Format, folder: Path, progress: Progress
) -> list[Ran]:
    if choice.executor == "sockets":
        ran = []
        for number, plan in enumerate(wanted):
            progress(f"run {number + 1} of {len(wanted)}", number / len(wanted))
            ran.append(run_sockets(give_orders(plan)))
        return ran
    progress(f"{len(wanted)} runs", None)
    python = choice.torch.python if choice.torch else sys.executable
    orders = [give_orders(plan) for plan in wanted]
    return run_torch(
        orders,
        folder,
        executor=choice.executor,
        python=python,
        profile=format == "torch",
        kept=mark_kept(plans, wanted),
    )


def mark_kept(plans: Sequence[Plan], wanted: Sequence[Plan]) -> list[bool]:
    """Mark the runs whose recordings are kept: those of plans, not those of twins."""
    own = {_unname(plan) for plan in plans}
    return [plan in own for plan in wanted]


def _unname(plan: Plan) -> Plan:
    return replace(plan, name="")


def keep_runs(
    plans: Sequence[Plan], ran: dict[Plan, Ran], output: Path, executor: Executor, format: Format
) -> list[Made]:
    """Write the recording of each plan's run and what is true of it.

    Args:
        plans: those with the faults.
        ran: what was done for each of `list_runs`.
        output: folder of the cases.
        executor, format: of the runs.
    """
    made = []
    for plan in plans:
        own, twin = ran[_unname(plan)], ran[_unname(plan.twin())]
        folder = output / plan.name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / _RECORDING).mkdir(parents=True)
        paths = _write_recording(own, folder / _RECORDING, plan.name, executor, format)
        made.append(
            Made(learn_facts(plan, own, twin, executor), tuple(str(path.relative_to(folder)) for path in paths))
        )
        (folder / TRUTH).write_bytes(msgspec.json.format(msgspec.json.encode(made[-1]), indent=1) + b"\n")
        if own.stamps:
            (folder / STAMPS).write_text(json.dumps(own.stamps, indent=1) + "\n", "utf-8")
    return made


def _write_recording(ran: Ran, folder: Path, name: str, executor: Executor, format: Format) -> list[Path]:
    export = folder / f"{name}.sqlite"
    if format == "nsys":
        if executor not in ON_GPU:
            write_ranges(ran, export)
        return [export]
    for trace in ran.traces:
        shutil.copy(trace, folder / trace.name)
    return sorted(folder.iterdir())


def learn_facts(plan: Plan, own: Ran, twin: Ran, executor: Executor) -> Facts:
    """Find what is true of a run, given its twin."""
    step_ns = own.step_ns()
    wall_ns, fault = int(step_ns.sum()), plan.fault
    if fault is None:
        return Facts(plan.name, "", plan.ranks, plan.steps, (), 0, wall_ns, {})
    active = plan.active().any(axis=1)
    longer_ns = float(np.median(step_ns[active]) - np.median(twin.step_ns()[active]))
    lost_ns = round(longer_ns * int(active.sum()))
    shown = {} if executor in ON_GPU else _SHOWN_ASLEEP
    true = Truth(
        cause=fault.cause,
        answerable=shown.get(fault.cause, fault.cause),
        ranks=fault.ranks,
        layers=tuple(layer for layer, _ in fault.layers) or None,
        who="one" if fault.ranks else "all",
        when="burst" if fault.kind == "host_burst" else fault.when.kind,
        lost_ns=lost_ns,
        wall_ns=wall_ns,
        slowdown_ratio=wall_ns / (wall_ns - lost_ns) - 1,
        healthy=False,
    )
    return Facts(plan.name, "", plan.ranks, plan.steps, (true,), lost_ns, wall_ns, {})
