from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.pipelines.diagnose import Options, diagnose
from tests.proof.filler import fill
from tests.proof.scenario import Event


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
