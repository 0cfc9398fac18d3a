"""The page that shows how right verdicts are: a section for running engines, one for recordings.

Each section is renewed by its own measurement and left alone by the other.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.table import describe_machine

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


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: its title, what was simulated, and tables in Markdown."""

    title: str
    intro: str
    tables: tuple[str, ...]

    def text(self) -> str:
        """Write the section, with the version and the machine it was measured on."""
        measured = f"{describe_machine()} Commit {find_commit()}."
        return "\n\n".join((f"## {self.title}", self.intro.strip(), *self.tables, measured)) + "\n"


def show_held(holds: bool | None) -> str:
    """Write whether a bar holds; a dash where there is none."""
    return "–" if holds is None else "yes" if holds else "**no**"


def write_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a table in Markdown."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (header, *rows)]
    return "\n".join((lines[0], "|---" * len(header) + "|", *lines[1:]))


def write_section(section: Section, path: Path = PAGE) -> str:
    """Put a section in place of the former one of its title, or behind the others, and return the page."""
    page = path.read_text("utf-8") if path.exists() else ""
    kept = {title: f"## {title}\n{body}" for title, body in re.findall(r"^## (.*)\n((?:(?!^## ).*\n)*)", page, re.M)}
    kept[section.title] = section.text()
    page = "\n".join((_HEAD, *(text.rstrip() + "\n" for text in kept.values())))
    path.write_text(page, "utf-8")
    return page


def find_commit() -> str:
    """Find the commit that is checked out; "+" says that files differ from it."""
    line = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(line, cwd=PAGE.parent, capture_output=True, text=True, check=True).stdout.strip()
