"""Spoil inputs for five minutes, run what tries other faults, and leave the page of what came of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.reliability import FAULTS, Tally, campaign, run_tests, write_page
from tests.conftest import ROOT
from tests.fuzz.damages import DAMAGES
from tests.fuzz.judging import Outcome
from tests.fuzz.subjects import list_others, list_subjects

BUDGET_S = 300.0
FEWEST = 300


@pytest.mark.bench
def test_nothing_breaks_the_program_and_no_loss_accuses_another() -> None:
    tally = campaign((*list_subjects(), *list_others()), BUDGET_S)
    faults = [(what, must, paths, *run_tests(paths)) for what, must, paths in FAULTS]
    print("\n" + write_page(tally, faults))
    assert tally.failures == []
    assert tally.tries >= FEWEST
    assert all(passed and not failed for *_, passed, failed in faults)


def test_the_page_counts_what_came_and_names_what_went_wrong(tmp_path: Path) -> None:
    tally = Tally()
    subject = next(one for one in list_subjects() if one.kind == "bundle")
    cut, flip = (next(damage for damage in DAMAGES if damage.name == name) for name in ("cut short", "bits flipped"))
    tally.note(subject, cut, 0, Outcome("refused", "", 0.1))
    tally.note(subject, cut, 1, Outcome("another accused", "findings:\nrank 7", 0.2))
    tally.note(subject, flip, 2, Outcome("answered", "", 0.3))
    page = write_page(tally, [("a fault", "survived", ("tests/fuzz/test_found.py",), 3, 0)], tmp_path / "page.md")
    assert "| bundle | 2 | 0 | 0 | 0 | 1 | 1 |" in page
    assert "- bundle, load_context, cut short, draw 1: another accused: findings: rank 7" in page
    assert "| a fault | survived | 3 | 0 | [test_found.py](../tests/fuzz/test_found.py) |" in page
    assert "3 spoiled inputs" in page


def test_the_tests_that_the_page_points_to_are_there() -> None:
    assert [path for *_, paths in FAULTS for path in paths if not (ROOT / path).is_file()] == []
