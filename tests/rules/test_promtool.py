"""promtool accepts the rules and every unit test of them; a rule broken in any way turns some test red."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.rules.files import (
    RULES,
    TESTS,
    Rule,
    find_needed,
    find_roots,
    get_name,
    list_rules,
    load_groups,
    load_test,
    run_promtool,
)
from tests.rules.mutants import EQUIVALENT, Mutant, make_mutants

MUTANTS = [one for rule in list_rules() for one in make_mutants(get_name(rule), rule["expr"], rule.get("for"))]


def test_promtool_accepts_the_rules() -> None:
    done = run_promtool("check", "rules", "--lint-fatal", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.stem)
def test_promtool_finds_what_the_test_says(test: Path) -> None:
    done = run_promtool("test", "rules", test)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_where_it_fires_and_one_where_it_is_silent() -> None:
    for name in {str(rule["alert"]) for rule in list_rules() if "alert" in rule}:
        asked = [
            one
            for test in TESTS
            for case in load_test(test)["tests"]
            for one in case.get("alert_rule_test", [])
            if one["alertname"] == name
        ]
        assert any(one.get("exp_alerts") for one in asked), name
        assert any(not one.get("exp_alerts") for one in asked), name


def test_there_are_mutants_of_every_rule() -> None:
    assert {one.rule for one in MUTANTS} == {get_name(rule) for rule in list_rules()}
    assert not set(EQUIVALENT) - {(one.rule, one.change) for one in MUTANTS}


@pytest.mark.slow
def test_no_mutant_of_every_third_survives(tmp_path: Path) -> None:
    _try_mutants(MUTANTS[::3], tmp_path)


@pytest.mark.bench
def test_no_mutant_survives(tmp_path: Path) -> None:
    """Try them all, which takes a minute or more: with ./dev bench."""
    _try_mutants(MUTANTS, tmp_path)


def _try_mutants(mutants: list[Mutant], tmp_path: Path) -> None:
    run_promtool("--version")
    tried = [(number, one) for number, one in enumerate(mutants) if (one.rule, one.change) not in EQUIVALENT]
    with ThreadPoolExecutor(2) as pool:
        survived = list(pool.map(lambda pair: _survives(pair[1], tmp_path / str(pair[0])), tried))
    assert [(one.rule, one.change) for (_, one), alive in zip(tried, survived, strict=True) if alive] == []


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a test file, to be run alone: the first that notices a mutant spares the others.

    Attributes:
        roots: what the case asks for.
        subject: what its whole file asks for.
        watches_all: it expects that no alert fires.
    """

    text: str
    roots: frozenset[str]
    subject: frozenset[str]
    watches_all: bool


@cache
def _list_cases() -> list[Case]:
    """List the cases of all test files, small files first."""
    cases = []
    for test in sorted(TESTS, key=lambda test: test.stat().st_size):
        content = load_test(test)
        subject = frozenset(find_roots(test.read_text("utf-8")))
        for one in content["tests"]:
            text = json.dumps(content | {"tests": [one], "rule_files": [RULES.name]})
            cases.append(Case(text, frozenset(find_roots(text)), subject, "ALERTS{" in text))
    return cases


@cache
def _list_able(rule: str) -> list[tuple[Case, frozenset[str]]]:
    """List the cases a rule can matter to, with the rules each needs; the nearest come first.

    Where no alert may fire, the alerts that depend on the rule are needed as well.
    """
    depending = {get_name(one) for one in list_rules() if "alert" in one and rule in find_needed([get_name(one)])}
    able = []
    for case in _list_cases():
        needed = find_needed(case.roots | depending if case.watches_all else case.roots)
        if rule in needed:
            asked = find_needed(case.subject)
            distance = (rule not in case.subject, rule not in asked, len(asked))
            able.append((distance, case, frozenset(needed)))
    return [(case, needed) for _, case, needed in sorted(able, key=lambda one: one[0])]


def _survives(mutant: Mutant, folder: Path) -> bool:
    folder.mkdir()
    able = sorted(_list_able(mutant.rule), key=lambda one: mutant.shows_in not in one[0].text)
    return not any(_is_killed(mutant, case, needed, folder) for case, needed in able)


def _is_killed(mutant: Mutant, case: Case, needed: frozenset[str], folder: Path) -> bool:
    groups = [
        group | {"rules": [_change(rule, mutant) for rule in group["rules"] if get_name(rule) in needed]}
        for group in load_groups()
    ]
    (folder / RULES.name).write_text(json.dumps({"groups": groups}))
    (folder / "case.yml").write_text(case.text)
    return run_promtool("test", "rules", folder / "case.yml").returncode != 0


def _change(rule: Rule, mutant: Mutant) -> Rule:
    if get_name(rule) != mutant.rule:
        return rule
    hold = {"for": mutant.hold} if mutant.hold else {}
    return dict(rule) | {"expr": mutant.expr} | hold
