"""What each scenario is about is found in its recording: from a routing decision to the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprankdiag.harness.scenario_trace import trace_scenario
from dprankdiag.harness.scenarios import SCENARIOS
from dprankdiag.harness.score import make_recording
from dprankdiag.pipelines.diagnose import diagnose


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
