"""Four real processes with a planted fault, diagnosed by the installed command from the ranges they recorded."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.harness.answers import ALARMS
from dprankdiag.harness.cpu_cases import FAULTS, make_cpu_case
from dprankdiag.harness.cpu_collectives import Executor
from dprankdiag.harness.score import Made, run_command

COMMAND = (sys.executable, "-m", "dprankdiag")

GLOO = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: its gloo cannot be tried")
SAMPLE = ("healthy", "load", "host_late")
"""Faults that are also run with gloo; which collective is waited in makes no difference to the rest."""


def run_and_ask(name: str, folder: Path, executor: Executor) -> tuple[Made, dict[str, Any]]:
    made = make_cpu_case(name, folder, ranks=4, executor=executor)
    answer, error = run_command([folder / path for path in made.paths], COMMAND)
    assert answer is not None, error
    return made, answer


def expect_truth(made: Made, answer: dict[str, Any]) -> None:
    alarms = [item for item in answer["findings"] if item["severity"] in ALARMS]
    if not made.facts.truths:
        # A busy machine lets steps differ: that is not health, but no reason to wake anybody either.
        assert not alarms, [item["summary"] for item in alarms]
        return
    (true,) = made.facts.truths
    first = answer["findings"][0]
    assert (first["cause"], tuple(first["ranks"])) == (true.answerable, true.ranks)
    assert {tuple(item["ranks"]) for item in alarms} == {true.ranks}
    assert first["when"] == true.when
    shares = [item["lost_ratio"] for item in alarms]
    if None not in shares:  # steps that differ too much, on a busy machine, are not priced
        assert sum(shares) == pytest.approx(true.lost_ratio, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAULTS if name != "host_burst"])  # that one: tests/cli
def test_processes_that_meet_over_sockets_are_told_for_what_they_do(name: str, tmp_path: Path) -> None:
    expect_truth(*run_and_ask(name, tmp_path / name, "sockets"))


@GLOO
@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_processes_that_meet_by_gloo_are_told_for_what_they_do(name: str, tmp_path: Path) -> None:
    expect_truth(*run_and_ask(name, tmp_path / name, "gloo"))
