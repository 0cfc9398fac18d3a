"""Know the Prometheus rules: what each records or alerts on, and the settings a user can change."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from dprankdiag.catalog.rules import read_catalog
from dprankdiag.errors import TableError, UsageError

CATALOG = "prometheus_rules.toml"
ENGINES = ("sglang", "vllm")

_DURATION = r"(?:[0-9]+(?:ms|s|m|h|d|w|y))+"
_MATCHER = r'[a-zA-Z_]\w*(?:=~|!~|!=|=)"(?:[^"\\\n]|\\.)*"'
_KINDS = {
    "duration": (re.compile(_DURATION), "a duration such as 5m"),
    "number": (re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"), "a number such as 1.5"),
    "text": (re.compile(r"[^\s<>\"\\{}]+"), "text without spaces, quotes and braces"),
    "selector": (re.compile(rf"(?:{_MATCHER}(?:,\s*{_MATCHER})*)?"), 'matchers such as job=~"sglang.*"'),
    "labels": (re.compile(r"[a-zA-Z_]\w*(?:,\s*[a-zA-Z_]\w*)*"), "names of labels, with commas between"),
}
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000}


@dataclass(frozen=True, slots=True)
class Setting:
    """Something of the rules that a user can change.

    Attributes:
        kind: duration, number, text, selector or labels; says which values are allowed.
    """

    key: str
    kind: str
    default: str
    meaning: str

    def check(self, value: str) -> str:
        """Return the value without surrounding blanks.

        Raises:
            UsageError: it is not of this kind.
        """
        pattern, expected = _KINDS[self.kind]
        value = value.strip()
        if not pattern.fullmatch(value):
            raise UsageError(f"expected {expected}, got '{value}'", where=f"--set {self.key}")
        return value


@dataclass(frozen=True, slots=True)
class Rule:
    """A recording rule or an alert, with places for settings still in its texts.

    Attributes:
        record: name of the series it records; empty for an alert.
        alert: name of the alert; empty for a recording rule.
        says: what the recorded series means.
        expr: the expression; empty where `engines` holds the expression of each engine.
        engines: for rules of the first layer, the expression over the metrics of each engine.
        fold: aggregation over copies of one rank.
        drop: labels the fold removes beyond those that tell copies apart.
        absent: value of a rank that exists without such a series; None if it stays absent.
        peers: the label `peers` is added.
        hold: how long the condition lasts before the alert fires.
        cause: the cause whose page is the runbook; empty if `page` names another.
        page: the runbook as a path below the documentation.
    """

    record: str = ""
    alert: str = ""
    says: str = ""
    expr: str = ""
    engines: Mapping[str, str] = field(default_factory=dict)
    fold: str = ""
    drop: tuple[str, ...] = ()
    absent: int | None = None
    peers: bool = True
    hold: str = ""
    severity: str = ""
    cause: str = ""
    page: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other."""

    name: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class RuleCatalog:
    """All rules in groups, and all settings by key."""

    settings: Mapping[str, Setting]
    groups: tuple[Group, ...]

    def choose(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the value of every setting: the one given, else its default.

        Raises:
            UsageError: a key that does not exist, or a value it cannot have.
        """
        for key in given:
            if key not in self.settings:
                mend = f"there are {', '.join(self.settings)}"
                raise UsageError(f"no setting '{key}'", where="--set", mend=mend)
        return {key: one.check(given.get(key, one.default)) for key, one in self.settings.items()}


def count_seconds(duration: str) -> float:
    """Return the seconds of a duration as Prometheus writes it, such as 1h30m."""
    parts = re.findall(r"([0-9]+)(ms|[smhdwy])", duration)
    return sum(int(number) * _UNIT_MS[unit] for number, unit in parts) / 1000


@lru_cache(maxsize=1)
def load_rules() -> RuleCatalog:
    """Load the rules shipped with the package."""
    rows = read_catalog(CATALOG)
    try:
        settings = {key: Setting(key=key, **row) for key, row in rows["settings"].items()}
        return RuleCatalog(settings, tuple(_make_group(row) for row in rows["groups"]))
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(str(error), where=f"catalogue {CATALOG}") from error


def _make_group(row: Mapping[str, Any]) -> Group:
    rules: Sequence[Mapping[str, Any]] = row["rules"]
    return Group(row["name"], tuple(_make_rule(rule) for rule in rules))


def _make_rule(row: Mapping[str, Any]) -> Rule:
    values = {key: value for key, value in row.items() if key not in (*ENGINES, "for", "drop")}
    engines = {engine: row[engine].strip() for engine in ENGINES if engine in row}
    rule = Rule(engines=engines, hold=row.get("for", ""), drop=tuple(row.get("drop", ())), **values)
    if bool(rule.record) == bool(rule.alert) or bool(rule.expr) == bool(rule.engines):
        raise ValueError(f"rule {rule.record or rule.alert} needs one name and one expression")
    return rule
