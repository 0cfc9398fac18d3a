"""Sort GPU kernels into families by their names, and collectives by what they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from dprankdiag.catalog.operations import OPERATIONS, name_operation
from dprankdiag.catalog.rules import Rule, find_rule, make_rule, read_catalog, read_patterns
from dprankdiag.errors import InputError, TableError

FAMILIES: tuple[str, ...] = (
    "attention",
    "kv_write",
    "gemm",
    "moe_expert",
    "router",
    "norm",
    "activation",
    "sampling",
    "quant",
    "memory",
    "collective",
    "dispatch",
    "combine",
    "notify",
    "other",
)
"""Family names; a family's code (int8 in tables) is its position."""

COMMUNICATION_FAMILIES: tuple[str, ...] = ("collective", "dispatch", "combine", "notify")
"""Families whose kernels may wait for other ranks."""

_CODES = {name: code for code, name in enumerate(FAMILIES)}
_RULE_KEYS = ("family", "operation")


def family_code(name: str) -> int:
    """Give a family's code.

    Raises:
        KeyError: there is no such family.
    """
    return _CODES[name]


def is_communication(code: int) -> bool:
    """Tell whether kernels of a family may wait for other ranks."""
    return FAMILIES[code] in COMMUNICATION_FAMILIES


@dataclass(frozen=True, slots=True)
class KernelCatalog:
    """Ordered rules for kernel names.

    Attributes:
        rules: tried in order, with `family` and, where it is certain, `operation`.
    """

    rules: tuple[Rule, ...]
    _known: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def classify(self, demangled: str, short: str) -> tuple[int, str]:
        """Give the family code and the operation of a kernel ("" for all but communication kernels)."""
        answer = self._known.get((demangled, short))
        if answer is None:
            answer = self._known[demangled, short] = self._look_up(demangled, short)
        return answer

    def _look_up(self, demangled: str, short: str) -> tuple[int, str]:
        text = demangled if short == demangled else f"{demangled}\n{short}"
        rule = find_rule(self.rules, text)
        family = rule.values["family"] if rule else "other"
        if rule is None or family not in COMMUNICATION_FAMILIES:
            return _CODES[family], ""
        if family != "collective":
            return _CODES[family], family
        return _CODES[family], rule.values.get("operation") or name_operation(text)


def load_kernels(extra: Path | None = None) -> KernelCatalog:
    """Load the catalogue of kernel names, with a user's patterns before it if a file is given.

    Raises:
        InputError: the user's file cannot be used; the rule and its line are named.
    """
    shipped = _load_shipped()
    if extra is None:
        return shipped
    return KernelCatalog(_load_extra(extra) + shipped.rules)


def mark_patterns(patterns: Path | None) -> str:
    """Give what two equal files of patterns share, and two others do not; empty without one."""
    return "" if patterns is None else blake2b(patterns.read_bytes(), digest_size=8).hexdigest()


@lru_cache(maxsize=1)
def _load_shipped() -> KernelCatalog:
    try:
        rules = tuple(_check_rule(make_rule(row, _RULE_KEYS)) for row in read_catalog("kernels.toml")["rule"])
    except (KeyError, ValueError) as error:
        raise TableError(str(error), where="catalogue kernels.toml") from error
    return KernelCatalog(rules)


def _load_extra(path: Path) -> tuple[Rule, ...]:
    tables, text = read_patterns(path)
    rows = tables.get("rule")
    if set(tables) != {"rule"} or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError("expected [[rule]] tables with 'family' and 'pattern', and nothing else", where=str(path))
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.split("#")[0].strip() == "[[rule]]"]
    return tuple(_make_extra(row, position, lines, path) for position, row in enumerate(rows))


def _make_extra(row: Mapping[str, Any], position: int, lines: Sequence[int], path: Path) -> Rule:
    try:
        return _check_rule(make_rule(row, _RULE_KEYS, source=str(path)))
    except ValueError as error:
        place = f" (line {lines[position]})" if position < len(lines) else ""
        raise InputError(f"rule {position + 1}{place}: {error}", where=str(path)) from error


def _check_rule(rule: Rule) -> Rule:
    family, operation = rule.values.get("family"), rule.values.get("operation")
    if family not in _CODES:
        raise ValueError(f"'family' is {family!r}, expected one of {', '.join(FAMILIES)}")
    if operation is not None and (family != "collective" or operation not in OPERATIONS):
        raise ValueError(
            f"'operation' is {operation!r}, expected one of {', '.join(OPERATIONS)}, and only with family 'collective'"
        )
    return rule
