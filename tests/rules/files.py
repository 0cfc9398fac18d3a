"""The rule file and its promtool tests, and which rules each of them needs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT
from tests.prometheus import find_tool

RULES = ROOT / "rules" / "dprankdiag.rules.yml"
TESTS = sorted((ROOT / "rules" / "tests").glob("*_test.yml"))
RECORDED = re.compile(r"\b[a-z_]+:[a-z_]+:[a-z_]+\b")

Rule = Mapping[str, Any]


def load_groups(path: Path = RULES) -> list[dict[str, Any]]:
    """Load the groups of a rule file."""
    groups: list[dict[str, Any]] = yaml.safe_load(path.read_text("utf-8"))["groups"]
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
    rules = list_rules()
    needed: set[str] = set()
    waiting = set(roots)
    while waiting:
        name = waiting.pop()
        needed.add(name)
        for rule in rules:
            if name in (get_name(rule), rule.get("alert")):
                needed.add(get_name(rule))
                waiting |= set(RECORDED.findall(rule["expr"])) - needed
    return needed


def find_roots(test: Path) -> set[str]:
    """Return the alerts and series that a test file asks for."""
    text = test.read_text("utf-8")
    return set(re.findall(r"alertname: (\w+)", text)) | set(RECORDED.findall(text))


def run_promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool; the test is skipped where there is none."""
    command: Sequence[str | Path] = [find_tool("promtool"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
