"""The page that shows how right verdicts are: a section for running engines, one for recordings.

Each section is renewed by its own measurement and left alone by the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.bench.table import Section, put_section

PAGE = Path(__file__).resolve().parents[2] / "docs" / "accuracy.md"

_HEAD = """# Accuracy

This page is written by `./dev bench`; do not edit it. Deployments are simulated by the harness, which shares no
physics, names or parsers with what is measured. Shares have 95 % bounds (Wilson).
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
        return f"| {self.what} | {self.value} | {self.bar} | {show_held(self.holds)} | {self.how} |"


def show_held(holds: bool | None) -> str:
    """Write whether a bar holds; a dash where there is none."""
    return "–" if holds is None else "yes" if holds else "**no**"


def write_section(section: Section, path: Path = PAGE) -> str:
    """Put a section in place of the former one of its title, or behind the others, and return the page."""
    return put_section(section, path, _HEAD)
