"""The installed command on worlds whose truth is known: the cause, the culprit, what it costs, and nothing beside."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.harness.answers import ALARMS
from dprankdiag.harness.sampling import sample_faulty
from dprankdiag.harness.score import run_command
from dprankdiag.harness.suites import WORLDS, write_world
from dprankdiag.harness.worlds import Truth, World, truth

COMMAND = (sys.executable, "-m", "dprankdiag")
SAMPLED, SEED, KERNELS = 60, 7, 40_000
BOTH_FORMATS = ("healthy", "load_context", "slow_gpu", "host_periodic", "normal_dispatch", "one_file_per_rank_clock")
BOTH_FORMATS += ("overlap_load", "overlap_hook_load")
"""Worlds also told from torch traces; all are measured with `score(..., format="torch")`."""

CLEAR = 0.095
"""A slowdown of a tenth, as near as a drawn fault gets to it."""


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


@dataclass(frozen=True, slots=True)
class Told:
    """A sampled world's truth, and what was said of it."""

    name: str
    truth: Truth
    status: str
    alarms: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def is_wrong(self) -> bool:
        """Tell whether an alarm has another class than the fault, or names a rank that is not to blame.

        `unclassified.late` claims no class.
        """
        allowed = {str(self.truth.answerable).split(".")[0], "unclassified"}
        return any(
            cause.split(".")[0] not in allowed or not set(ranks) <= set(self.truth.ranks)
            for cause, ranks in self.alarms
        )

    @property
    def is_right(self) -> bool:
        """Tell whether the costliest alarm is the fault itself, in whole."""
        return self.alarms[:1] == ((self.truth.answerable, self.truth.ranks),)


@pytest.fixture(scope="module")
def clear(tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """Diagnose sampled worlds that a fault slows by a tenth or more."""
    told = []
    for name, world in sample_faulty(SAMPLED, SEED, kernels=KERNELS).items():
        true = truth(world)
        if true.slowdown_ratio < CLEAR:
            continue
        answer = diagnose(world, tmp_path_factory.mktemp("sampled"))
        told.append(Told(name, true, answer["status"], tuple(list_alarms(answer))))
    assert len(told) >= SAMPLED // 2
    return told


def test_alarms_have_the_class_of_the_fault_and_name_no_innocent_rank(clear: list[Told]) -> None:
    wrong = [(item.name, item.truth.answerable, item.truth.ranks, item.alarms) for item in clear if item.is_wrong]
    assert len(wrong) <= 0.05 * len(clear), wrong


def test_no_deployment_that_a_fault_slows_by_a_tenth_is_called_healthy(clear: list[Told]) -> None:
    assert [(item.name, item.truth.lost_ratio) for item in clear if item.status == "healthy"] == []


def test_most_faults_that_slow_by_a_tenth_are_named_with_their_ranks(clear: list[Told]) -> None:
    missed = [(item.name, item.truth.answerable, item.truth.ranks, item.alarms) for item in clear if not item.is_right]
    assert len(missed) <= 0.2 * len(clear), missed
