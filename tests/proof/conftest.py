from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.pipelines.diagnose import Options, diagnose
from tests.proof.command import analyze_here
from tests.proof.filler import fill
from tests.proof.scenario import Event
from tests.proof.torch_filler import fill_traces

Analyze = Callable[[list[Event]], dict[str, Any]]


@pytest.fixture(scope="session")
def captures(payloads: Path) -> Path:
    """Folder of the captures with known truth."""
    return payloads / "nsys"


@pytest.fixture
def judge(tmp_path: Path) -> Callable[[list[Event]], Diagnosis]:
    """Write a scenario's events as an export and diagnose it."""

    def write_and_diagnose(events: list[Event]) -> Diagnosis:
        return diagnose([fill(tmp_path / "scenario.sqlite", events)], Options()).diagnosis

    return write_and_diagnose


@pytest.fixture(params=["nsys", "torch"])
def analyze(request: pytest.FixtureRequest, tmp_path: Path) -> Analyze:
    """Write events as an export, or as a trace a rank, and let the command diagnose them."""

    def write_and_analyze(events: list[Event]) -> dict[str, Any]:
        if request.param == "nsys":
            return analyze_here(fill(tmp_path / "scenario.sqlite", events))
        return analyze_here(*fill_traces(tmp_path / "traces", events))

    return write_and_analyze
