"""Read catalogue files, and match names against ordered rules: the first that matches wins.

A trace has up to a few thousand kernel names of up to some kilobytes, and there are about a hundred rules. So each
alternative of a pattern carries the plain text it cannot match without, and is only run where that text occurs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dprankdiag.errors import InputError, TableError

_FLAGS = re.IGNORECASE | re.MULTILINE
_BREAKS = frozenset(".^$([{)]}\\")


@dataclass(frozen=True, slots=True)
class Alternative:
    """One regular expression of a rule, and lower-case text every match contains ("" if none is known)."""

    text: str
    needs: str
    expression: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a name is when any of the alternatives is found in it.

    Attributes:
        values: the other keys of the rule: family, operation, role ...
        source: where the fact comes from.
    """

    alternatives: tuple[Alternative, ...]
    values: Mapping[str, str]
    source: str

    def is_found_in(self, text: str, lowered: str) -> bool:
        """Search the alternatives in a text, of which `lowered` is the lower-case form."""
        return any(one.needs in lowered and one.expression.search(text) for one in self.alternatives)


def find_rule(rules: Iterable[Rule], text: str) -> Rule | None:
    """Find the first rule that matches."""
    lowered = text.lower()
    return next((rule for rule in rules if rule.is_found_in(text, lowered)), None)


def read_catalog(name: str) -> dict[str, Any]:
    """Read a TOML file of the catalogue that is shipped with the package."""
    import tomllib

    path = Path(__file__).with_name(name)
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise TableError(f"cannot be read: {error}", where=f"catalogue {name}") from error


def read_patterns(path: Path) -> tuple[dict[str, Any], str]:
    """Read a user's TOML file of patterns; return its tables and its text.

    Raises:
        InputError: it cannot be read or is no TOML; the line is named where the parser knows it.
    """
    import tomllib

    try:
        text = path.read_text("utf-8")
        return tomllib.loads(text), text
    except UnicodeDecodeError as error:
        raise InputError("expected UTF-8 text", where=str(path)) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"is no valid TOML: {' '.join(str(error).split())}", where=str(path)) from error


def make_rule(row: Mapping[str, Any], allowed: Iterable[str], *, source: str = "", whole: bool = False) -> Rule:
    """Make a rule of a TOML row.

    Args:
        row: `pattern` (one or a list), optional `source`, and the keys of `allowed`.
        allowed: other keys that may occur; their values are texts.
        source: used where the row has none.
        whole: patterns must match the whole text, instead of being found in it.

    Raises:
        ValueError: what is wrong with the row, in one line.
    """
    unknown = sorted(set(row) - {"pattern", "source", *allowed})
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}")
    patterns = row.get("pattern")
    texts = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError("'pattern' must be a regular expression or a list of them")
    values = {key: row[key] for key in allowed if key in row}
    for key, value in {**values, "source": row.get("source", source)}.items():
        if not isinstance(value, str):
            raise ValueError(f"{key!r} must be a text")
    return Rule(tuple(_make_alternative(text, whole) for text in texts), values, row.get("source", source))


def _make_alternative(text: str, whole: bool) -> Alternative:
    try:
        expression = re.compile(rf"\A(?:{text})\Z" if whole else text, _FLAGS)
    except re.error as error:
        raise ValueError(f"'pattern' {text!r} is no regular expression: {error}") from error
    return Alternative(text, find_needed_text(text), expression)


def find_needed_text(pattern: str) -> str:
    """Find the longest plain text that every match of a regular expression contains, in lower case.

    Only text outside groups and classes counts, and none if the expression branches at top level or sets flags.
    """
    if re.search(r"\(\?[aiLmsux-]+[:)]", pattern):
        return ""
    runs: list[str] = []
    run, depth, position = "", 0, 0
    while position < len(pattern):
        char = pattern[position]
        if char == "|" and depth == 0:
            return ""
        if char in "*?{" and depth == 0:
            run = run[:-1]
        is_plain = depth == 0 and char not in _BREAKS and char not in "*+?|"
        run = run + char if is_plain else _close_run(runs, run)
        depth += (char == "(") - (char == ")")
        position = _skip(pattern, position)
    _close_run(runs, run)
    return max(runs, key=len, default="").lower()


def _close_run(runs: list[str], run: str) -> str:
    runs.append(run)
    return ""


def _skip(pattern: str, position: int) -> int:
    """Step over one character, one escape, one class or one repeat count."""
    char = pattern[position]
    if char == "\\":
        return position + 2
    if char == "{":
        return pattern.find("}", position) + 1 or position + 1
    if char != "[":
        return position + 1
    end = position + 2 + (pattern[position + 1 : position + 2] == "^")
    while end < len(pattern) and pattern[end] != "]":
        end += 2 if pattern[end] == "\\" else 1
    return end + 1
