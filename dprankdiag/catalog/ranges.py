"""Tell what an annotated range means from its name: a step, a meeting of ranks, or work of a family."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

from dprankdiag.catalog.operations import name_operation
from dprankdiag.catalog.rules import Rule, find_rule, make_rule, read_catalog
from dprankdiag.errors import TableError

ROLES: tuple[str, ...] = ("meeting", "call", "step", "compute", "other")
_KEYS = ("role", "family", "operation")

_MODULE = re.compile(r"\{\s*['\"]Module['\"]\s*:\s*['\"]([^'\"]*)['\"]")
_SERIALS = re.compile(r",\s*(?:seq|op_id|sizes|input_op_ids|stack_trace)\s*=.*", re.DOTALL)
_NUMBERED = re.compile(r"^layers?[ _.]?#[ _.:/]+|[ _.:(\[]+(?:layer[ _.=]?)?#[)\]]?$", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")


def template(name: str) -> str:
    """Strip a range's name of what differs between its repeats.

    Runs of digits become `#`; serial numbers and shapes that torch appends are cut; of a layerwise marker, whose text
    is a dict of module and shapes, the module path is left.

    Source: facts of NVTX rows in public exports; sglang --enable-layerwise-nvtx-marker.
    """
    module = _MODULE.match(name)
    text = module.group(1) if module else _SERIALS.sub("", name)
    return _DIGITS.sub("#", text).strip()


@dataclass(frozen=True, slots=True)
class RangeKind:
    """What a range means.

    Attributes:
        role: "meeting" (holds the caller until its peers have come), "call" (starts communication and returns),
            "step", "compute", or "other".
        family: kernel family of compute; None if it spans several or is no compute.
        operation: what a meeting or call does; "" for all else.
    """

    role: str
    family: str | None
    operation: str


@dataclass(frozen=True, slots=True)
class RangeCatalog:
    """Ordered rules for range names, each matching the whole template."""

    rules: tuple[Rule, ...]
    _known: dict[str, RangeKind] = field(default_factory=dict, init=False, repr=False, compare=False)

    def classify(self, name: str) -> RangeKind:
        """Tell what a range of this name means."""
        text = template(name)
        kind = self._known.get(text)
        if kind is None:
            kind = self._known[text] = self._look_up(text, name)
        return kind

    def _look_up(self, text: str, name: str) -> RangeKind:
        rule = find_rule(self.rules, text) or find_rule(self.rules, _NUMBERED.sub("", text))
        if rule is None:
            return RangeKind("other", None, "")
        role = rule.values["role"]
        operation = rule.values.get("operation", "")
        if role in ("meeting", "call"):
            operation = operation or name_operation(name)
        return RangeKind(role, rule.values.get("family"), operation)


@lru_cache(maxsize=1)
def load_ranges() -> RangeCatalog:
    """Load the catalogue of range names."""
    try:
        rows = read_catalog("ranges.toml")["rule"]
        return RangeCatalog(tuple(_check_role(make_rule(row, _KEYS, whole=True)) for row in rows))
    except (KeyError, ValueError) as error:
        raise TableError(str(error), where="catalogue ranges.toml") from error


def _check_role(rule: Rule) -> Rule:
    if rule.values.get("role") not in ROLES:
        raise ValueError(f"'role' is {rule.values.get('role')!r}, expected one of {', '.join(ROLES)}")
    return rule
