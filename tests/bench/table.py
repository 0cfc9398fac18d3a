"""The table of what a diagnosis costs, and the page that shows it."""

from __future__ import annotations

import os
import platform
import sqlite3
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


def write_page(figures: list[Figure], kernels: int, path: Path = PAGE) -> str:
    """Write the page and return it."""
    rows = "\n".join(figure.row() for figure in figures)
    page = f"{_HEAD.format(kernels=kernels)}{rows}\n\n{describe_machine()}\n"
    path.write_text(page, "utf-8")
    return page
