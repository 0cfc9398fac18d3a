"""The page that shows how right verdicts on ledgers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.table import describe_machine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "accuracy.md"

_HEAD = """# Accuracy

This page is written by `./dev bench`; do not edit it. Deployments are simulated by the harness, which shares no
physics, names or parsers with what is measured: requests with sessions, a router, KV pools, steps in lockstep or alone,
waits at step borders, gauges and snapshots of some age. Shares have 95 % bounds (Wilson).

| what | measured | bar | holds | how |
|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Mark:
    """One line of the table.

    Attributes:
        what: the quantity.
        value, bar: what came out, and what should.
        how: on what.
        holds: None where there is no bar.
    """

    what: str
    value: str
    bar: str
    how: str
    holds: bool | None

    def row(self) -> str:
        """Write the line in Markdown."""
        held = "–" if self.holds is None else "yes" if self.holds else "**no**"
        return f"| {self.what} | {self.value} | {self.bar} | {held} | {self.how} |"


def write_accuracy(marks: Sequence[Mark], path: Path = PAGE) -> str:
    """Write the page and return it."""
    page = _HEAD + "\n".join(mark.row() for mark in marks) + f"\n\n{describe_machine()}\n"
    path.write_text(page, "utf-8")
    return page
