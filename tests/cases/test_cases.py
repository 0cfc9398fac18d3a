"""Each cause fires, stays silent and abstains as its file of cases says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dprankdiag.classifiers import PAGES
from tests.cases.runner import Case, answer_case, load_cases

FOLDER = Path(__file__).parent
CASES = load_cases(FOLDER)
CAUSES = [classifier.cause for classifier in PAGES]


def test_every_cause_has_a_file_of_its_own_named_after_it() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yml")) == sorted(cause.replace(".", "_") for cause in CAUSES)
    assert {case.cause for case in CASES} == set(CAUSES)


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_fires_abstains_and_stays_silent_more_often_than_it_fires(cause: str) -> None:
    count = Counter(case.kind for case in CASES if case.cause == cause)
    assert count["fires"] >= 1
    assert count["abstains"] >= 1
    assert count["silent"] > count["fires"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_answer_is_that_of_the_case(case: Case, tmp_path: Path) -> None:
    answer = answer_case(case, tmp_path)
    said = [item for item in answer.said if item.cause == case.cause]
    if case.kind == "fires":
        assert said, answer
        wanted = case.body["expect"]
        assert list(said[0].ranks) == wanted["ranks"]
        assert said[0].who == wanted["who"]
        assert said[0].when == wanted["when"]
        others = {item.cause for item in answer.said} - {case.cause}
        assert others == set(wanted.get("beside", ())), answer
        return
    assert not said, said
    if case.kind == "abstains":
        reasons = answer.reasons.get(case.cause, ())
        assert any(case.body["reason"] in reason for reason in reasons), answer
    elif "instead" in case.body:
        assert case.body["instead"] in {item.cause for item in answer.said}, answer
