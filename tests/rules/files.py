"""The rule file and its promtool tests, and which rules each of them needs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT
from tests.prometheus import find_tool

RULES = ROOT / "rules" / "dprankdiag.rules.yml"
TESTS = sorted((ROOT / "rules" / "tests").glob("*_test.yml"))
RECORDED = re.compile(r"\b[a-z_]+:[a-z_]+:[a-z_]+\b")

Rule = Mapping[str, Any]


@cache
def load_test(test: Path) -> dict[str, Any]:
    """Load a test file, by the C parser: these files are long."""
    content: dict[str, Any] = yaml.load(test.read_text("utf-8"), Loader=yaml.CSafeLoader)
    return content


@cache
def load_groups() -> list[dict[str, Any]]:
    """Load the groups of the rule file."""
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return groups


def list_rules() -> list[Rule]:
    """List all rules of all groups."""
    return [rule for group in load_groups() for rule in group["rules"]]


def get_name(rule: Rule) -> str:
    """Return the name of a rule; alerts of one name differ by their labels."""
    if "record" in rule:
        return str(rule["record"])
    extra = [value for key, value in rule["labels"].items() if key in ("reason", "ledger")]
    return " ".join([rule["alert"], *extra])


def find_needed(roots: Iterable[str]) -> set[str]:
    """Return the names of the rules that some alerts and series need, themselves included."""
    return set().union(*(_find_needed_by(name) for name in roots))


@cache
def _find_needed_by(name: str) -> frozenset[str]:
    needed = {name}
    for rule in list_rules():
        if name in (get_name(rule), rule.get("alert")):
            needed.add(get_name(rule))
            needed |= find_needed(RECORDED.findall(rule["expr"]))
    return frozenset(needed)


def find_roots(text: str) -> set[str]:
    """Return the alerts and series that a test asks for."""
    return set(re.findall(r'"?alertname"?: "?(\w+)', text)) | set(RECORDED.findall(text))


def run_promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool; the test is skipped where there is none."""
    command: Sequence[str | Path] = [find_tool("promtool"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
