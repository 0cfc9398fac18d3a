"""What padding to the busiest rank costs: priced where the recording shows it, else said to be unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dprankdiag.harness.faults import Fault, When, load_context, load_requests, onset, periodic
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.worlds import World, truth
from dprankdiag.model.diagnosis import Evidence, Finding
from dprankdiag.pipelines.diagnose import diagnose

WORLD = World(seed=95, steps=50, layers=3, max_padding=True)


def only_finding(world: World, folder: Path) -> Finding:
    (finding,) = diagnose(write_world(world, folder)).diagnosis.findings
    return finding


def said_of_padding(finding: Finding) -> list[Evidence]:
    return [item for item in finding.evidence if item.name == "padding_ns_per_step"]


def is_priced_right(world: World, finding: Finding) -> bool:
    true = truth(world)
    assert (finding.cause, finding.ranks) == (true.cause, true.ranks)
    assert finding.lost_ratio is not None
    return abs(finding.lost_ratio - true.lost_ratio) <= max(0.01, 0.15 * true.lost_ratio)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("fault", [load_requests(6, 1.75, when=onset(25)), load_requests(6, 2.5, when=periodic(4, 1))])
def test_padded_rows_are_priced_with_the_load_that_pads_them(tmp_path: Path, fault: Fault, graph: bool) -> None:
    world = replace(WORLD, graph=graph, faults=(fault,))
    finding = only_finding(world, tmp_path)
    assert is_priced_right(world, finding)
    (said,) = said_of_padding(finding)
    assert said.value is not None
    assert said.value > 0
    without = replace(world, max_padding=False)
    assert truth(without).lost_ratio < 0.6 * truth(world).lost_ratio


@pytest.mark.parametrize(
    "fault, padded",
    [
        (load_requests(6, 2.5, when=onset(25)), False),
        (load_context(6, 2.0, when=onset(25)), False),
        (load_context(6, 2.0, when=onset(25)), True),
    ],
    ids=["requests", "contexts", "padded-contexts"],
)
def test_what_does_not_follow_the_busiest_ranks_rows_is_no_padding(tmp_path: Path, fault: Fault, padded: bool) -> None:
    world = replace(WORLD, max_padding=padded, faults=(fault,))
    finding = only_finding(world, tmp_path)
    assert is_priced_right(world, finding)
    assert said_of_padding(finding) == []


@pytest.mark.parametrize("padded", [True, False])
def test_rows_that_never_change_leave_padding_open(tmp_path: Path, padded: bool) -> None:
    world = replace(WORLD, max_padding=padded, faults=(load_requests(6, 1.75),))
    (said,) = said_of_padding(only_finding(world, tmp_path))
    assert said.value is None
    assert "cannot be judged" in said.text


ROOFLINE = World(seed=96, physics="roofline", model="qwen3-30b", chip="h100", steps=50, layers=3)
"""Replayed graphs are captured for so many rows, and hosts take longer for more requests."""


@pytest.mark.parametrize("when", [onset(25), periodic(4, 1)], ids=["onset", "periodic"])
def test_graphs_of_other_sizes_show_what_rows_cost_all_ranks(tmp_path: Path, when: When) -> None:
    world = replace(ROOFLINE, faults=(load_requests(6, 12.0, when=when),))
    finding = only_finding(world, tmp_path)
    assert is_priced_right(world, finding)
    assert finding.basis == "replayed"
    (said,) = said_of_padding(finding)
    assert said.value is not None
    assert said.value > 0


def test_what_graphs_of_one_size_hide_makes_a_lower_bound(tmp_path: Path) -> None:
    world = replace(ROOFLINE, faults=(load_requests(6, 12.0),))
    finding = only_finding(world, tmp_path)
    true = truth(world).lost_ratio
    assert finding.lost_ratio is not None
    assert finding.interval is not None
    assert finding.basis == "lower bound"
    assert "at least" in finding.summary
    assert finding.lost_ratio < true < finding.interval[1]


def test_the_time_a_host_takes_for_more_requests_is_the_loads(tmp_path: Path) -> None:
    world = replace(ROOFLINE, graph=False, faults=(load_requests(6, 12.0),))
    finding = only_finding(world, tmp_path)
    assert is_priced_right(world, finding)
    assert finding.basis == "replayed"
    (late,) = [item for item in finding.evidence if item.name == "host_meeting_lateness_ns"]
    assert late.value is not None
    assert late.value > 100_000


def test_the_steps_before_an_onset_are_predicted_without_the_padding(tmp_path: Path) -> None:
    world = replace(WORLD, faults=(load_requests(6, 1.75, when=onset(25)),))
    finding = only_finding(world, tmp_path)
    (error,) = [item.value for item in finding.evidence if item.name == "onset_error_ratio"]
    assert error is not None
    assert error < 0.02
