"""A scoreboard as tables to read, and as one object for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dprankdiag.harness.answers import Outcome, list_ranks
from dprankdiag.harness.cases import HEALTHY, Facts
from dprankdiag.harness.score import Rate
from dprankdiag.harness.scoreboard import Scoreboard, names_no_other, stays_same
from dprankdiag.harness.transforms import INVARIANT
from dprankdiag.harness.worlds import Truth


def render_board(board: Scoreboard) -> str:
    """Write the tables: what went wrong, causes, slowdowns, changes, simple rules, and the figures with their bars."""
    return "\n\n".join(table for table in _list_tables(board) if table) + "\n"


def describe_board(board: Scoreboard) -> dict[str, Any]:
    """Give the same as an object, with every case."""
    return {
        "cases": [_describe(it) for it in board.outcomes],
        "causes": [
            {"cause": cause, "precision": _describe_rate(precision), "recall": _describe_rate(recall)}
            for cause, precision, recall in board.per_cause()
        ],
        "slowdowns": [
            {"slowdown_ratio": size, "named": _describe_rate(named), "findings_right": _describe_rate(right)}
            for size, named, right in board.per_slowdown()
        ],
        "changes": [{"change": name, "kept": _describe_rate(rate)} for name, rate in board.by_change()],
        "rules": [
            {"rule": rule, "culprits": _describe_rate(hits), "false_alarms": _describe_rate(alarms)}
            for rule, hits, alarms in board.simple_rules()
        ],
        "figures": [{"what": it.what, "value": it.value, "bar": it.bar, "holds": it.holds} for it in board.figures()],
    }


def render_facts(
    facts: Sequence[Facts], suites: Mapping[str, tuple[int | None, str]], scenarios: Sequence[Mapping[str, str]]
) -> str:
    """Write what is true of worlds, what suites hold with how many cases, and what scenarios are about."""
    header = ("world", "ranks", "steps", "cause", "to be told", "culprits", "who", "when", "lost", "slower by")
    rows = [row for it in facts for row in _list_facts(it)]
    listed = [(letter, str(count or "fixed"), content) for letter, (count, content) in suites.items()]
    about = [(it["name"], it["engine"], it["title"]) for it in scenarios]
    tables = (
        [header, *rows],
        [("suite", "cases", "holds"), *listed],
        [("scenario", "engine", "about"), *about],
    )
    return "\n\n".join(align(table) for table in tables) + "\n"


def describe_facts(facts: Facts) -> dict[str, Any]:
    """Give what is true of a world as an object."""
    return {
        "name": facts.name,
        "ranks": facts.ranks,
        "steps": facts.steps,
        "healthy": not facts.truths,
        "expected": facts.expected,
        "lost_ns": facts.lost_ns,
        "wall_ns": facts.wall_ns,
        "slowdown_ratio": facts.slowdown_ratio,
        "truths": [_describe_truth(it) for it in facts.truths],
    }


def list_failures(board: Scoreboard) -> list[tuple[str, ...]]:
    """List what was not answered right: case, slowdown, the truth, what was said."""
    return [row for outcome in board.outcomes for row in _list_failures(outcome)]


def align(rows: Sequence[Sequence[str]]) -> str:
    """Set rows in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)


def _list_tables(board: Scoreboard) -> Iterator[str]:
    failures = list_failures(board)
    if failures:
        yield align([("not right", "slower by", "truth", "said"), *failures])
    yield _table(("cause", "precision", "recall"), board.per_cause())
    yield _table(
        ("slower by", "named", "findings right"), [(f"{100 * it[0]:g} %", *it[1:]) for it in board.per_slowdown()]
    )
    yield _table(("change", "kept"), board.by_change())
    yield _table(("rule", "exactly the culprits, from 10 %", "false alarms"), board.simple_rules())
    figures = [(it.what, it.value, it.bar, {True: "yes", False: "NO", None: ""}[it.holds]) for it in board.figures()]
    yield _table(("measured", "", "bar", "holds"), figures)


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return align([tuple(header), *(tuple(map(str, row)) for row in rows)]) if rows else ""


def _list_failures(outcome: Outcome) -> Iterator[tuple[str, ...]]:
    facts = outcome.facts
    name, slower = f"{facts.suite} {facts.name}".strip(), f"{100 * facts.slowdown_ratio:.1f} %"
    truth = "; ".join(f"{it.answerable} {list_ranks(it.ranks)} {100 * it.lost_ratio:.1f} %" for it in facts.truths)
    if facts.silent:
        truth = f"nothing to be told ({truth})"
    if not outcome.right:
        yield name, slower, truth or facts.expected, outcome.answer.summary()
    for change, answer in outcome.changed.items():
        if not (stays_same if change in INVARIANT else names_no_other)(outcome, change):
            yield f"{name}, {change}", slower, f"was: {outcome.answer.summary()}", answer.summary()


def _describe(outcome: Outcome) -> dict[str, Any]:
    facts = outcome.facts
    return {
        "name": facts.name,
        "suite": facts.suite,
        "expected": facts.expected,
        "truths": [_describe_truth(it) for it in facts.truths],
        "slowdown_ratio": facts.slowdown_ratio,
        "said": outcome.answer.summary(),
        "right": outcome.right,
    }


def _describe_rate(rate: Rate) -> dict[str, Any]:
    return {"hits": rate.hits, "count": rate.count, "bounds": list(rate.bounds)}


def _describe_truth(true: Truth) -> dict[str, Any]:
    return {
        "cause": true.cause,
        "answerable": true.answerable,
        "ranks": list(true.ranks),
        "who": true.who,
        "when": true.when,
        "lost_ns": true.lost_ns,
        "lost_ratio": true.lost_ratio,
        "slowdown_ratio": true.slowdown_ratio,
    }


def _list_facts(facts: Facts) -> Iterator[tuple[str, ...]]:
    place = (facts.name, str(facts.ranks), str(facts.steps))
    if not facts.truths:
        yield (*place, HEALTHY, HEALTHY, "-", "-", "-", "-", "-")
    for true in facts.truths:
        lost, slower = f"{true.lost_ns / 1e6:.2f} ms", f"{100 * true.slowdown_ratio:.1f} %"
        told = (str(true.cause), str(true.answerable), list_ranks(true.ranks), str(true.who), str(true.when))
        yield (*place, *told, lost, slower)
