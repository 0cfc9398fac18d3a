"""Each part of the page is renewed alone."""

from __future__ import annotations

from pathlib import Path

from tests.bench.accuracy import Section, write_section, write_table


def test_a_section_takes_the_place_of_its_former_self_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "accuracy.md"
    for title, intro in (("Engines", "old"), ("Recordings", "kept"), ("Engines", "new")):
        page = write_section(Section(title, intro, (write_table(("what", "measured"), [("a", 1)]),)), path)
    assert path.read_text("utf-8") == page
    assert page.count("## Engines") == page.count("## Recordings") == 1
    assert "old" not in page
    assert page.index("## Engines") < page.index("## Recordings")
    assert "new\n\n| what | measured |\n|---|---|\n| a | 1 |" in page
