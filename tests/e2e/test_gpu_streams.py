"""Streams of a GPU that is not there, with planted faults: the split traces are diagnosed by the installed command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dprankdiag.harness.gpu_split import split_trace
from dprankdiag.harness.run_cases import learn_facts
from dprankdiag.harness.run_faults import list_possible, plan_run
from dprankdiag.harness.run_plan import Plan, give_orders
from dprankdiag.harness.run_record import Ran
from dprankdiag.harness.score import Made, run_command
from tests.e2e.test_cpu_processes import COMMAND, compare
from tests.harness.fake_gpu import run_fake


def run_plan(plan: Plan, folder: Path) -> tuple[Ran, list[Path]]:
    ended, trace = run_fake(give_orders(plan))
    paths = []
    for rank, part in enumerate(split_trace(trace, [it.thread for it in ended])):
        paths.append(folder / f"run_rank{rank}.pt.trace.json")
        paths[-1].write_text(json.dumps(part))
    return Ran(tuple(it.log.rows for it in ended), (1,) * plan.ranks), paths


@pytest.mark.slow
@pytest.mark.parametrize("name", list_possible("single-gpu", "torch"))
def test_every_fault_of_streams_is_told_from_their_split_traces(name: str, tmp_path: Path) -> None:
    plan = plan_run(name, 4, "single-gpu")
    twin, _ = run_plan(plan.twin(), tmp_path)
    own, paths = run_plan(plan, tmp_path)
    made = Made(learn_facts(plan, own, twin, "single-gpu"), ())
    answer, error = run_command(paths, COMMAND)
    assert answer is not None, error
    assert compare(made, answer) == []
    if not plan.fault:
        assert answer["status"] == "healthy"
