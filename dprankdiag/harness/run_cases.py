"""Real runs with planted faults, and what is true of their recordings.

What a fault costs is measured: the same run without it, or with its work spread evenly, is made too. Both are noisy, so
that medians are compared: of the steps in which the fault acts, with and without it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from dprankdiag.harness.cases import Facts
from dprankdiag.harness.cpu_rank import run_sockets
from dprankdiag.harness.run_choice import Choice
from dprankdiag.harness.run_faults import plan_run
from dprankdiag.harness.run_plan import Plan, give_orders
from dprankdiag.harness.run_record import Ran, write_ranges
from dprankdiag.harness.score import TRUTH, Made
from dprankdiag.harness.torch_run import run_torch
from dprankdiag.harness.worlds import Truth

Format = Literal["nsys", "torch"]
Progress = Callable[[str, "float | None"], None]

_SHOWN = {
    "single_point.gpu": "single_point.unknown",
}
"""What ranges show of a cause: how long work takes, but not whether it is equal work."""


def make_runs(
    names: Sequence[str], output: Path, *, ranks: int, choice: Choice, format: Format, progress: Progress
) -> list[Made]:
    """Make runs with faults and their twins, and write of each the recording and what is true of it.

    Args:
        names: of `FAULTS`; each gets a folder of its own, made anew.
        output: folder of those.
        ranks: how many.
        choice: who carries them out.
        format: ranges as an export of Nsight Systems, or traces of the torch profiler.
        progress: told what is being run.

    Raises:
        ValueError: no such fault, too few ranks for it, or one that this executor cannot plant or record.
        OSError: a rank failed.
    """
    plans = [plan_run(name, ranks) for name in names]
    with tempfile.TemporaryDirectory(prefix="dprankdiag-") as passing:
        ran = _run_all(plans, choice, format, Path(passing), progress)
        return [_keep(plan, output / plan.name, ran, format) for plan in plans]


def _run_all(
    plans: Sequence[Plan], choice: Choice, format: Format, folder: Path, progress: Progress
) -> dict[Plan, Ran]:
    """Run each plan and its twin; twins that do the same are run once."""
    wanted = {_unname(each): each for plan in plans for each in (plan, plan.twin())}
    orders = [give_orders(plan) for plan in wanted.values()]
    if choice.executor == "sockets":
        ran = []
        for number, plan in enumerate(wanted.values()):
            progress(f"running {plan.name}", number / len(wanted))
            ran.append(run_sockets(orders[number]))
    else:
        progress(f"running {len(wanted)} runs", None)
        python = choice.torch.python if choice.torch else sys.executable
        ran = run_torch(orders, folder, backend=choice.executor, python=python, profile=format == "torch")
    return dict(zip(wanted, ran, strict=True))


def _unname(plan: Plan) -> Plan:
    return replace(plan, name="")


def _keep(plan: Plan, folder: Path, ran: dict[Plan, Ran], format: Format) -> Made:
    own, twin = ran[_unname(plan)], ran[_unname(plan.twin())]
    shutil.rmtree(folder, ignore_errors=True)
    recording = folder / "recording"
    recording.mkdir(parents=True)
    if format == "nsys":
        write_ranges(own, recording / f"{plan.name}.sqlite")
    for trace in own.traces:
        shutil.copy(trace, recording / trace.name)
    paths = tuple(str(path.relative_to(folder)) for path in sorted(recording.iterdir()))
    made = Made(_learn_facts(plan, own, twin), paths)
    (folder / TRUTH).write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    return made


def _learn_facts(plan: Plan, own: Ran, twin: Ran) -> Facts:
    step_ns = own.step_ns()
    wall_ns, fault = int(step_ns.sum()), plan.fault
    if fault is None:
        return Facts(plan.name, "", plan.ranks, plan.steps, (), 0, wall_ns, {})
    active = plan.active().any(axis=1)
    longer_ns = float(np.median(step_ns[active]) - np.median(twin.step_ns()[active]))
    lost_ns = round(longer_ns * int(active.sum()))
    true = Truth(
        cause=fault.cause,
        answerable=_SHOWN.get(fault.cause, fault.cause),
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
