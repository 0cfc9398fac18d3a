"""The installed command on worlds whose truth is known: the cause, the culprit, what it costs, and nothing beside."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.harness.answers import ALARMS
from dprankdiag.harness.score import run_command
from dprankdiag.harness.suites import WORLDS, write_world
from dprankdiag.harness.worlds import World, truth

COMMAND = (sys.executable, "-m", "dprankdiag")
BOTH_FORMATS = ("healthy", "load_context", "slow_gpu", "host_periodic", "normal_dispatch", "one_file_per_rank_clock")
BOTH_FORMATS += ("overlap_load", "overlap_hook_load")
"""Worlds also told from torch traces; all are measured with `score(..., format="torch")`."""


def diagnose(world: World, folder: Path) -> dict[str, Any]:
    """Write a world and let the command diagnose it."""
    answer, error = run_command(write_world(world, folder), COMMAND)
    assert answer is not None, error
    return answer


def list_alarms(answer: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """List cause and ranks of what is warned of, the costliest first."""
    return [(item["cause"], tuple(item["ranks"])) for item in answer["findings"] if item["severity"] in ALARMS]


@pytest.mark.parametrize("name", WORLDS)
def test_a_named_world_is_told_for_what_it_is(name: str, tmp_path: Path) -> None:
    true, answer = truth(WORLDS[name]), diagnose(WORLDS[name], tmp_path)
    if true.healthy:
        assert (answer["status"], list_alarms(answer)) == ("healthy", [])
        return
    if true.answerable == "uniform.slow":
        assert (answer["status"], list_alarms(answer)) == ("uniform", [])
        return
    assert answer["status"] == "findings"
    assert list_alarms(answer) == [(true.answerable, true.ranks)]
    # As shares: steps at the edges and of rare kinds are in the world's wall, but not among those analysed.
    assert abs(answer["findings"][0]["lost_ratio"] - true.lost_ratio) <= max(0.01, 0.15 * true.lost_ratio)


@pytest.mark.parametrize("name", BOTH_FORMATS)
def test_torch_traces_of_a_named_world_tell_what_an_export_does(name: str, tmp_path: Path) -> None:
    true = truth(WORLDS[name])
    answer, error = run_command(write_world(WORLDS[name], tmp_path, format="torch"), COMMAND)
    assert answer is not None, error
    expected = [] if true.healthy else [(true.answerable, true.ranks)]
    assert (answer["status"], list_alarms(answer)) == ("healthy" if true.healthy else "findings", expected)
    if expected:
        assert abs(answer["findings"][0]["lost_ratio"] - true.lost_ratio) <= max(0.01, 0.15 * true.lost_ratio)
