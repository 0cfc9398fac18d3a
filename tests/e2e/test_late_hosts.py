"""Slow links of a whole host, or most of it, where every host or process has a clock of its own."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.harness.answers import ALARMS
from dprankdiag.harness.faults import onset, slow_link
from dprankdiag.harness.score import run_command
from dprankdiag.harness.suites import WORLDS, Format, write_world
from dprankdiag.harness.worlds import World, truth

COMMAND = (sys.executable, "-m", "dprankdiag")
TWO_HOSTS = World(seed=101, steps=24, ranks_per_node=4, files="node", host_clock_ns=3_000_000, drift_ppm=12.0)
LATE_NS = 30_000


def diagnose(world: World, folder: Path, format: Format) -> dict[str, Any]:
    answer, error = run_command(write_world(world, folder, format=format), COMMAND)
    assert answer is not None, error
    return answer


def expect_link(world: World, answer: dict[str, Any]) -> None:
    true = truth(world)
    alarms = [item for item in answer["findings"] if item["severity"] in ALARMS]
    assert [(item["cause"], tuple(item["ranks"])) for item in alarms] == [("single_point.link", true.ranks)]
    assert abs(alarms[0]["lost_ratio"] - true.lost_ratio) <= max(0.01, 0.15 * true.lost_ratio)


@pytest.mark.parametrize("format", ["nsys", "torch"])
@pytest.mark.parametrize("ranks", [(4, 5, 6, 7), (4, 5, 6), (0, 1, 2, 3), (5,)])
def test_links_of_a_host_are_told_from_its_clock(ranks: tuple[int, ...], format: Format, tmp_path: Path) -> None:
    world = replace(TWO_HOSTS, faults=(slow_link(ranks, LATE_NS),))
    expect_link(world, diagnose(world, tmp_path, format))


@pytest.mark.parametrize("format", ["nsys", "torch"])
def test_a_host_that_leaves_late_in_half_of_the_recording_is_told_from_its_clock(
    format: Format, tmp_path: Path
) -> None:
    world = replace(TWO_HOSTS, steps=60, layers=4, faults=(slow_link((4, 5, 6, 7), LATE_NS, when=onset(30)),))
    expect_link(world, diagnose(world, tmp_path, format))


def test_a_host_that_may_be_late_or_have_a_clock_ahead_is_never_called_healthy(tmp_path: Path) -> None:
    # Without a meeting of the hosts, nothing ever brings the late ones back beside the others.
    world = replace(TWO_HOSTS, metadata_gather=False, faults=(slow_link((4, 5, 6), LATE_NS),))
    answer = diagnose(world, tmp_path, "nsys")
    assert answer["status"] != "healthy"
    assert any("cannot be told from the clocks" in note for note in answer["notes"])


@pytest.mark.parametrize("format", ["nsys", "torch"])
def test_hosts_whose_clocks_err_and_whose_links_do_not_are_healthy(format: Format, tmp_path: Path) -> None:
    answer = diagnose(TWO_HOSTS, tmp_path, format)
    assert (answer["status"], answer["findings"]) == ("healthy", [])


def test_a_receiver_queue_costs_as_much_by_the_processes_own_clocks(tmp_path: Path) -> None:
    world = WORLDS["receiver_queue"]
    (found,) = diagnose(world, tmp_path, "torch")["findings"]
    assert (found["cause"], found["ranks"]) == ("structural.dispatch", [6])
    assert found["lost_ratio"] == pytest.approx(truth(world).lost_ratio, rel=0.1)
