import pytest

from dprankdiag.harness.scenario_page import render_page
from tests.golden.update import (
    BUNDLE_PAGE,
    CAUSES,
    FOLDER,
    RECORDING_PAGE,
    SCENARIO_PAGE,
    make_bundle_page,
    make_cause_pages,
    make_pages,
    make_recording_page,
)

PAGES = make_pages()
CAUSE_PAGES = make_cause_pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_looks_as_it_was_last_approved(name: str) -> None:
    approved = (FOLDER / name).read_text("utf-8")
    assert PAGES[name] == approved, "if the change is meant: python -m tests.golden.update"


@pytest.mark.parametrize("name", CAUSE_PAGES)
def test_the_documented_page_of_a_cause_is_its_classifiers_page(name: str) -> None:
    assert (CAUSES / name).read_text("utf-8") == CAUSE_PAGES[name], "if meant: python -m tests.golden.update"


def test_no_page_is_left_of_a_cause_that_is_gone() -> None:
    assert {path.name for path in CAUSES.glob("*.md")} == set(CAUSE_PAGES)


def test_the_documented_tables_of_a_bundle_are_those_declared() -> None:
    assert BUNDLE_PAGE.read_text("utf-8") == make_bundle_page(), "if meant: python -m tests.golden.update"


def test_the_documented_tables_of_a_recording_are_those_declared() -> None:
    assert RECORDING_PAGE.read_text("utf-8") == make_recording_page(), "if meant: python -m tests.golden.update"


def test_the_page_of_scenarios_is_what_they_do() -> None:
    assert SCENARIO_PAGE.read_text("utf-8") == render_page(), "if meant: python -m tests.golden.update"
