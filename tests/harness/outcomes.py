"""Answers to hold against truths: what a perfect diagnosis would say, and what others might."""

from __future__ import annotations

from dprankdiag.harness.answers import Answer, Outcome, Said
from dprankdiag.harness.cases import Case, Facts, learn_facts
from dprankdiag.harness.faults import Fault
from dprankdiag.harness.worlds import Truth, World

BASE = {"seed": 1, "ranks": 4, "steps": 8, "layers": 2}


def know(*faults: Fault, suite: str = "S", silent: bool = False, **changes: object) -> Facts:
    """Find what is true of a small world with some faults."""
    world = World(**(BASE | changes), faults=faults)  # type: ignore[arg-type]
    return learn_facts(Case("case", world, suite, silent=silent), world)


def tell(true: Truth, **changes: object) -> Said:
    """Make the finding that a perfect diagnosis would print."""
    ratio = true.lost_ratio
    perfect = {
        "cause": true.answerable, "ranks": true.ranks, "severity": "critical", "lost_ratio": ratio,
        "interval": (0.9 * ratio, 1.1 * ratio), "confidence": 0.99,
    }  # fmt: skip
    return Said(**(perfect | changes))  # type: ignore[arg-type]


def judge(facts: Facts, *findings: Said, status: str | None = "findings", unexplained_ns: int = 0) -> Outcome:
    """Hold findings against a truth."""
    return Outcome(facts, Answer(status, findings, facts.lost_ns, unexplained_ns, facts.lost_ns / facts.wall_ns))


def perfect(facts: Facts) -> Outcome:
    """Say exactly what is true."""
    told = [tell(true) for true in facts.truths if not facts.is_calm]
    return judge(facts, *told, status="findings" if told else "healthy")
