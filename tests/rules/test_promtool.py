"""promtool accepts the rules and every unit test of them; a rule broken in any way turns some test red."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.rules.files import RULES, TESTS, find_needed, find_roots, get_name, list_rules, load_groups, run_promtool
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
            for case in yaml.safe_load(test.read_text("utf-8"))["tests"]
            for one in case.get("alert_rule_test", [])
            if one["alertname"] == name
        ]
        assert any(one.get("exp_alerts") for one in asked), name
        assert any(not one.get("exp_alerts") for one in asked), name


def test_there_are_mutants_of_every_rule() -> None:
    assert {one.rule for one in MUTANTS} == {get_name(rule) for rule in list_rules()}
    assert not set(EQUIVALENT) - {(one.rule, one.change) for one in MUTANTS}


@pytest.mark.slow
def test_no_mutant_survives(tmp_path: Path) -> None:
    run_promtool("--version")
    tried = [(number, one) for number, one in enumerate(MUTANTS) if (one.rule, one.change) not in EQUIVALENT]
    with ThreadPoolExecutor(2) as pool:
        survived = list(pool.map(lambda pair: _survives(pair[1], tmp_path / str(pair[0])), tried))
    assert [(one.rule, one.change) for (_, one), alive in zip(tried, survived, strict=True) if alive] == []


def _survives(mutant: Mutant, folder: Path) -> bool:
    (folder / "tests").mkdir(parents=True)
    return not any(_is_killed(mutant, test, folder) for test in _order_tests(mutant.rule))


@cache
def _needed_by(test: Path, rule: str) -> frozenset[str]:
    """Name the rules a test needs to see a change of one rule: what it asks for, and all alerts where none may fire."""
    roots = find_roots(test)
    if "ALERTS{" in test.read_text("utf-8"):
        roots |= {get_name(one) for one in list_rules() if "alert" in one and rule in find_needed([get_name(one)])}
    return frozenset(find_needed(roots))


@cache
def _order_tests(rule: str) -> list[Path]:
    """List the tests a rule can matter to, those that ask for it first, small ones before large ones."""
    able = [test for test in TESTS if rule in _needed_by(test, rule)]
    return sorted(able, key=lambda test: (rule not in find_needed(find_roots(test)), test.stat().st_size))


def _is_killed(mutant: Mutant, test: Path, folder: Path) -> bool:
    needed = _needed_by(test, mutant.rule)
    groups = load_groups()
    for group in groups:
        group["rules"] = [
            _change(rule, mutant) if get_name(rule) == mutant.rule else rule
            for rule in group["rules"]
            if get_name(rule) in needed
        ]
    (folder / RULES.name).write_text(yaml.safe_dump({"groups": groups}))
    (folder / "tests" / test.name).write_bytes(test.read_bytes())
    return run_promtool("test", "rules", folder / "tests" / test.name).returncode != 0


def _change(rule: dict[str, object], mutant: Mutant) -> dict[str, object]:
    changed = rule | {"expr": mutant.expr}
    return changed | {"for": mutant.hold} if mutant.hold else changed
