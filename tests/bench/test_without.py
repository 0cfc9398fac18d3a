"""What is left out is missed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from dprankdiag.harness.suites import WORLDS, write_world
from dprankdiag.pipelines.diagnose import diagnose
from tests.bench.without import STAGES

SMALL = {"steps": 24, "layers": 2}


def name(folder: Path, world: str) -> list[tuple[str, tuple[int, ...]]]:
    """Name cause and ranks of every warning."""
    paths = write_world(replace(WORLDS[world], **SMALL), folder, name=world)
    found = diagnose(paths).diagnosis.findings
    return [(item.cause, item.ranks) for item in found if item.severity != "info"]


@pytest.mark.parametrize(
    "stage,world,whole",
    [
        ("clock-repair", "one_file_per_rank_clock", ("load.context", (7,))),
        ("work-model", "load_context", ("load.context", (3,))),
    ],
)
def test_a_verdict_that_needs_a_stage_is_not_given_without_it(
    tmp_path: Path, stage: str, world: str, whole: tuple[str, tuple[int, ...]]
) -> None:
    assert name(tmp_path / "whole", world) == [whole]
    with patch(*STAGES[stage]):
        assert whole not in name(tmp_path / "without", world)


def test_without_a_work_model_the_rank_is_still_seen_but_not_why(tmp_path: Path) -> None:
    with patch(*STAGES["work-model"]):
        ((cause, ranks),) = name(tmp_path, "load_context")
    assert ranks == (3,)
    assert not cause.startswith("load.")
