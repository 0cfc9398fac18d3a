"""What each scenario is about is found in its recording: from a routing decision to the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from dprankdiag.harness.mock_scenario import serve_scenario
from dprankdiag.harness.scenario_trace import trace_scenario
from dprankdiag.harness.scenarios import SCENARIOS
from dprankdiag.harness.score import make_recording
from dprankdiag.pipelines.diagnose import diagnose
from dprankdiag.pipelines.poll import Poller
from dprankdiag.pipelines.watch import Watcher
from dprankdiag.units import NS_PER_S
from tests.harness.served_worlds import Clock

LOOKS = 11


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_label_of_a_scenario_is_found_in_its_recording(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    world, facts = trace_scenario(scenario)
    made = make_recording(world, facts, tmp_path / name)
    diagnosis = diagnose([tmp_path / name / path for path in made.paths]).diagnosis
    named = [(it.cause, it.ranks) for it in diagnosis.findings if it.severity != "info"]
    if scenario.trace.cause is None:
        assert (diagnosis.status, named) == ("healthy", [])
        return
    assert named == [(scenario.trace.cause, scenario.trace.ranks)]
    low, high = diagnosis.findings[0].interval or (0.0, 0.0)
    assert low <= facts.lost_ns / facts.wall_ns <= high


def test_work_that_others_have_none_of_is_told_without_a_ratio(tmp_path: Path) -> None:
    world, facts = trace_scenario(SCENARIOS["prefill"])
    made = make_recording(world, facts, tmp_path / "prefill")
    (found,) = diagnose([tmp_path / "prefill" / made.paths[0]]).diagnosis.findings
    assert "attention work while the other ranks have next to none" in found.summary
    assert "attention_work_ratio" not in {it.name for it in found.evidence}


IN_METRICS = [name for name, scenario in SCENARIOS.items() if scenario.metrics is not None]


@pytest.mark.parametrize("name", IN_METRICS)
def test_the_label_of_a_scenario_is_found_in_the_metrics_of_its_engine(name: str) -> None:
    scenario, clock = SCENARIOS[name], Clock()
    label = scenario.metrics
    assert label is not None
    with serve_scenario(scenario, clock=clock, start_at_s=scenario.watch_from_s) as mocks:
        named = watch([mock.url for mock in mocks], clock)
    assert named == ([] if label.cause is None else [(label.cause, label.ranks)])


def watch(urls: Sequence[str], clock: Clock) -> list[tuple[str, tuple[int, ...]]]:
    """Watch engines for ten seconds of their own clock; returns what is a warning at the last look."""
    watcher = Watcher(10.0)
    with closing(Poller(urls, clock=lambda: round(clock() * NS_PER_S), patience_s=30.0)) as poller:
        for _ in range(LOOKS):
            report = watcher.observe(poller.poll(), round(clock() * NS_PER_S))
            clock.now_s += 1.0
    return [(it.cause, it.ranks) for it in report.diagnosis.findings if it.severity != "info"]
