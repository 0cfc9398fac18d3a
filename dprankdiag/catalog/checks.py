"""Find what is wrong, missing or to be known in how an engine is set up, from what it tells of itself."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dprankdiag.catalog.ledger import load_fields
from dprankdiag.catalog.rules import read_catalog
from dprankdiag.errors import TableError
from dprankdiag.model.checkup import LEVELS, Check, Level
from dprankdiag.model.ledgers import Fact

_WHERE = "catalogue checks.toml"
_PLACE = re.compile(r"\{([^{}]+)\}")
_TESTS = ("is", "is_not", "among", "at_least", "at_most", "known")

EXPERT_TOKENS = "expert_tokens"
"""Stands beside the fields of the ledger for what is told by layer and GPU."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A test of one fact. A fact that is not known meets no test but `known = false`."""

    fact: str
    test: str
    value: Any

    def holds(self, facts: Mapping[str, Fact]) -> bool:
        """Tell whether the facts meet it."""
        if self.test == "known":
            return (self.fact in facts) == bool(self.value)
        if self.fact not in facts:
            return False
        told = facts[self.fact]
        if self.test == "is":
            return _same(told, self.value)
        if self.test == "is_not":
            return not _same(told, self.value)
        if self.test == "among":
            return any(_same(told, one) for one in self.value)
        if isinstance(told, bool) or not isinstance(told, int | float):
            return False
        return told >= float(self.value) if self.test == "at_least" else told <= float(self.value)


def _same(told: Fact, value: Fact) -> bool:
    return told == value and isinstance(told, bool) == isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A row of the catalogue; it speaks where all its conditions hold."""

    key: str
    level: Level
    what: str
    why: str
    todo: str
    source: str
    when: tuple[Condition, ...]

    def fill(self, facts: Mapping[str, Fact]) -> Check | None:
        """Make the finding with the facts in its words; None where it does not apply."""
        if not all(condition.holds(facts) for condition in self.when):
            return None
        what, why, todo = (_fill(text, facts) for text in (self.what, self.why, self.todo))
        return Check(self.key, self.level, what, why, todo, self.source)


def _fill(text: str, facts: Mapping[str, Fact]) -> str:
    return _PLACE.sub(lambda found: str(facts.get(found[1], "unknown")), text)


@dataclass(frozen=True, slots=True)
class Need:
    """Fields that together show a cause; a target that tells them all can be judged.

    Attributes:
        engine: the only one that can tell them; None if any can.
        get_it_with: how to get them, where that is not what metrics in general need.
    """

    fields: tuple[str, ...]
    text: str
    engine: str | None = None
    get_it_with: str | None = None


def find_checks(facts: Mapping[str, Fact]) -> tuple[Check, ...]:
    """List what the facts give rise to, the gravest first."""
    found = [check for row in load_checks().values() if (check := row.fill(facts)) is not None]
    return tuple(sorted(found, key=lambda check: LEVELS.index(check.level)))


def load_checks() -> dict[str, CheckRow]:
    """Load all checks by key, in the order of the catalogue."""
    return dict(_load_shipped()[0])


def load_families(engine: str) -> tuple[str, ...]:
    """Name the families of an engine that judging its ledger rests on."""
    return tuple(read_catalog("checks.toml")["families"][engine])


def load_needs() -> dict[str, tuple[Need, ...]]:
    """Load, for each cause that a ledger can show, the sets of fields that show it, the best first."""
    return dict(_load_shipped()[1])


@lru_cache(maxsize=1)
def _load_shipped() -> tuple[dict[str, CheckRow], dict[str, tuple[Need, ...]]]:
    tables = read_catalog("checks.toml")
    try:
        checks = {key: _make_check(key, row) for key, row in tables["checks"].items()}
        return checks, {cause: tuple(_make_need(row) for row in rows) for cause, rows in tables["shown_by"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(str(error), where=_WHERE) from error


def _make_check(key: str, row: Mapping[str, Any]) -> CheckRow:
    if row["level"] not in LEVELS:
        raise ValueError(f"{key} has level {row['level']!r}")
    if set(row) - {"level", "what", "why", "todo", "source", "when"}:
        raise ValueError(f"{key} has unknown keys")
    when = tuple(_make_condition(key, one) for one in _as_list(row["when"]))
    if not when:
        raise ValueError(f"{key} always speaks")
    return CheckRow(key, row["level"], row["what"], row["why"], row.get("todo", ""), row["source"], when)


def _make_condition(key: str, row: Mapping[str, Any]) -> Condition:
    (test,) = set(row) - {"fact"}
    if test not in _TESTS:
        raise ValueError(f"{key} has the unknown test {test!r}")
    return Condition(row["fact"], test, row[test])


def _make_need(row: Mapping[str, Any]) -> Need:
    unknown = set(row["fields"]) - set(load_fields()) - {EXPERT_TOKENS}
    if unknown:
        raise ValueError(f"unknown fields {sorted(unknown)}")
    return Need(tuple(row["fields"]), row["text"], row.get("engine"), row.get("get_it_with"))


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]
