"""Tables of what was measured, and the pages that show them, part by part."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"

_HEAD = """# Performance

This page is written by `./dev bench`; do not edit it. Every ratio compares commands that ran by turns on one machine,
so it says more than any number of seconds would. Exports are made by the harness: {kernels:,} kernels, each with its
launch call, 16 layers, and one rank that carries three times the context in one step of a hundred.

| what | measured | bar | holds | how |
|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    Attributes:
        what: the quantity.
        value: what came out.
        bar: the most it may be, or the least.
        at_least: the bar is a lower one.
        unit: written behind both; empty for a ratio.
        how: commands and repetitions.
    """

    what: str
    value: float
    bar: float
    how: str
    at_least: bool = False
    unit: str = "×"

    @property
    def holds(self) -> bool:
        """Tell whether the bar holds."""
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def row(self) -> str:
        """Write the line in Markdown."""
        sign = "≥" if self.at_least else "≤"
        held = "yes" if self.holds else "**no**"
        return f"| {self.what} | {self.value:.3g} {self.unit} | {sign} {self.bar:g} {self.unit} | {held} | {self.how} |"


def describe_machine() -> str:
    """Describe the class of the machine and what ran on it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"Measured on {os.cpu_count()} cores of {platform.machine()}, {memory:.0f} GiB, {platform.system()}; "
        f"Python {platform.python_version()}, numpy {version('numpy')}, pandas {version('pandas')}, "
        f"SQLite {sqlite3.sqlite_version}."
    )


def write_page(figures: Sequence[Figure], kernels: int, path: Path = PAGE) -> str:
    """Renew the lines of what was measured, keep the others and the sections behind them, and return the page."""
    former, sections = _read_sections(path)
    lines = {
        _name(line): line for line in former.splitlines() if line.startswith("| ") and not line.startswith("| what")
    }
    lines |= {_name(figure.row()): figure.row() for figure in figures}
    rows = "\n".join(lines.values())
    measured = f"{describe_machine()} Lines are renewed one by one, the last at commit {find_commit()}."
    return _join(f"{_HEAD.format(kernels=kernels)}{rows}\n\n{measured}\n", sections, path)


def _name(line: str) -> tuple[str, str]:
    """Name a line by what was measured and how; quantities repeat, and so do ways."""
    cells = line.strip("| \n").split(" | ")
    return cells[0], cells[-1]


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


def write_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a table in Markdown."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (header, *rows)]
    return "\n".join((lines[0], "|---" * len(header) + "|", *lines[1:]))


def put_section(section: Section, path: Path = PAGE, head: str | None = None) -> str:
    """Put a section in place of the former one of its title, or behind the others, and return the page.

    Args:
        head: what stands before the sections; as it is if not given.
    """
    former, sections = _read_sections(path)
    sections[section.title] = section.text()
    return _join(former if head is None else head, sections, path)


def _read_sections(path: Path) -> tuple[str, dict[str, str]]:
    """Read what stands before the sections of a page, and each section by its title."""
    page = path.read_text("utf-8") if path.exists() else ""
    head = re.split(r"^## ", page, maxsplit=1, flags=re.M)[0]
    return head, {
        title: f"## {title}\n{body}" for title, body in re.findall(r"^## (.*)\n((?:(?!^## ).*\n)*)", page, re.M)
    }


def _join(head: str, sections: Mapping[str, str], path: Path) -> str:
    page = "\n".join(text.rstrip() + "\n" for text in (head, *sections.values()))
    path.write_text(page, "utf-8")
    return page


def find_commit() -> str:
    """Find the commit that is checked out; "+" says that files differ from it."""
    line = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(line, cwd=PAGE.parent, capture_output=True, text=True, check=True).stdout.strip()
