"""Break one rule at a time, mechanically: what a slip of the hand would do to its expression."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SPELLINGS = ("sglang:", "sglang_", "vllm:", "vllm_")
_RANKED = ('dp_rank!=""', 'tp_rank!=""', 'engine!=""')
"""Dropped only where ranks are counted: every other rule is joined with those ranks, which removes the same series."""

_MATCHER = re.compile(r'[a-z_]+(?:=~|!~|!=|=)"[^"]*"(?=[,}])')
_COMPARISON = re.compile(r"(?<= )(>=|<=|==|>|<)(?= )")
_OPPOSITE = {">=": "<", "<=": ">", "==": "!=", ">": "<", "<": ">"}
_OPERATOR_LINE = re.compile(r"( *)(and|or|unless) ")
_OTHER_FOLD = {"max": "min", "min": "max", "sum": "max", "avg": "max"}

_COPIES_OF_ONE = "copies of the constant 1"
_ANY_ABOVE_0 = "some is above 0 if and only if the sum is"
_ONE_SERIES = "only one series is left when this is taken"

EQUIVALENT = {
    ("DPRankGone", "max without → min without"): _COPIES_OF_ONE,
    ("DPRankCannotJudge steps_not_counted", "sum without → max without"): _ANY_ABOVE_0,
    ("DPRankCannotJudge stages_not_counted", "sum without → max without"): _ANY_ABOVE_0,
    ("instance_rank:dprank_kv_usage:skewed", "sum without → max without"): _ANY_ABOVE_0,
    ("instance_rank:dprank_kv_usage:skewed", "instance kept"): "the match ignores it again",
    ("instance:dprank_expert_balancedness:mean", "max without → min without"): _ONE_SERIES,
    ("instance_rank:dprank_prefill_tokens:rate", "sum without → max without"): _ONE_SERIES,
    ("instance_rank:dprank_token_seconds:mean", "max without → min without"): _ONE_SERIES,
    ("instance_rank:dprank_snapshot_time_seconds:last", "no sglang:"): "load answers have underscores only",
}
"""Mutants that mean the same, each with the reason."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule with one change: its name, what was done, the expression and how long the condition must last.

    Attributes:
        shows_in: what a case that notices it is likely to hold.
    """

    rule: str
    change: str
    expr: str
    hold: str | None = None
    shows_in: str = ""


def make_mutants(name: str, expr: str, hold: str | None) -> Iterator[Mutant]:
    """Make every mutant of a rule."""
    if hold is not None:
        yield Mutant(name, "no for", expr, "0s")
    for change, changed, spelling in _lose_spelling(expr):
        yield Mutant(name, change, changed, hold, f'"series": "{spelling}')
    changes = [*_drop_matcher(name, expr), *_flip(expr), *_drop_arm(expr), *_refold(expr)]
    for change, changed in changes:
        yield Mutant(name, change, changed, hold)


def _lose_spelling(expr: str) -> Iterator[tuple[str, str, str]]:
    for spelling in _SPELLINGS:
        changed = re.sub(rf"(?<![\w:]){spelling}(?=\w)", "gone" + spelling[-1], expr)
        if changed != expr:
            yield f"no {spelling}", changed, spelling


def _drop_matcher(name: str, expr: str) -> Iterator[tuple[str, str]]:
    for matcher in dict.fromkeys(_MATCHER.findall(expr)):
        if matcher not in _RANKED or name.endswith(":present"):
            changed = expr.replace("{" + matcher + ",", "{").replace("," + matcher, "").replace(matcher, "")
            yield f"no {matcher}", changed


def _flip(expr: str) -> Iterator[tuple[str, str]]:
    for number, found in enumerate(_COMPARISON.finditer(expr), 1):
        sign = _OPPOSITE[found[0]]
        yield f"{found[0]} → {sign} ({number})", expr[: found.start()] + sign + expr[found.end() :]


def _drop_arm(expr: str) -> Iterator[tuple[str, str]]:
    """Drop an operand of a set operator that begins a line, with the deeper lines that follow it."""
    lines = expr.splitlines()
    for start, line in enumerate(lines):
        found = _OPERATOR_LINE.match(line)
        if found is None or _is_other_spelling(line):
            continue
        end = start + 1
        while end < len(lines) and _belongs(lines[end], len(found[1])):
            end += 1
        yield f"no '{line.strip()}'", "\n".join(lines[:start] + lines[end:])


def _is_other_spelling(line: str) -> bool:
    return bool(re.search(r"(?<![\w:])(?:sglang|vllm)_", line)) and not re.search(r"(?:sglang|vllm):", line)


def _belongs(line: str, depth: int) -> bool:
    deeper = len(line) - len(line.lstrip()) > depth
    return deeper or (line.strip() == ")" and len(line) - len(line.lstrip()) == depth and depth > 0)


def _refold(expr: str) -> Iterator[tuple[str, str]]:
    for fold, other in _OTHER_FOLD.items():
        changed = re.sub(rf"\b{fold} without\b", f"{other} without", expr, count=1)
        if changed != expr:
            yield f"{fold} without → {other} without", changed
    changed = expr.replace("without (rank, instance, pod)", "without (rank)")
    if changed != expr:
        yield "instance kept", changed
    changed = expr.replace("ignoring (rank, instance, pod)", "ignoring (rank)")
    if changed != expr:
        yield "instance matched", changed
