"""Curves over kernels, ranks and steps, for the page; and that the page keeps its other parts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bench.growth import SMALL, TITLE, measure
from tests.bench.table import Figure, Section, put_section, write_page, write_table


@pytest.mark.bench
def test_the_curves_are_measured_for_the_page(tmp_path: Path) -> None:
    if shutil.which("sqlite3") is None:
        pytest.skip("the sqlite3 shell is missing: it sets the pace that others are measured by")
    print(put_section(measure(tmp_path)))


@pytest.mark.bench
def test_small_curves_hold_a_row_for_each_size(tmp_path: Path) -> None:
    text = measure(tmp_path, SMALL).text()
    assert text.startswith(f"## {TITLE}\n")
    assert [line.count("|") for line in text.splitlines() if line.startswith("|---")] == [7, 7, 5, 5]
    for label in ("5,000", "10,000", "2", "4", "8", "20", "40"):
        assert f"\n| {label} |" in text
    assert not list(tmp_path.iterdir())


def test_a_part_of_the_page_is_renewed_alone(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    write_page([Figure("wall", 1.0, 2.0, "once")], 1000, page)
    for title, cell in (("A", "old"), ("B", "kept"), ("A", "new")):
        put_section(Section(title, "Said of it.", (write_table(("what",), [(cell,)]),)), page)
    text = write_page([Figure("wall", 1.5, 2.0, "once")], 1000, page)
    assert text == page.read_text("utf-8")
    assert text.startswith("# Performance\n")
    assert "| wall | 1.5 × |" in text
    assert "| wall | 1 × |" not in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## A", "## B"]
    assert "| old |" not in text
    assert "| new |" in text
    assert "| kept |" in text
