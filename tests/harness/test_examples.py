"""The example recordings are what their page says, and can be made anew."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from dprankdiag.harness.worlds import truth

EXAMPLES = Path(__file__).parents[2] / "examples"
NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")


def load_script() -> ModuleType:
    """Import the script that makes the examples."""
    spec = importlib.util.spec_from_file_location("make_examples", EXAMPLES / "make_examples.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_library_stamps(content: bytes) -> bytes:
    """Blank the fields of a database header that tell the writing library's version and changes."""
    return content[:24] + bytes(4) + content[28:92] + bytes(8) + content[100:]


def test_the_examples_are_made_byte_for_byte_by_their_script(tmp_path: Path) -> None:
    script = load_script()
    script.main(tmp_path)
    for name in script.EXAMPLES:
        made, kept = (folder / f"{name}.sqlite" for folder in (tmp_path, EXAMPLES))
        assert without_library_stamps(made.read_bytes()) == without_library_stamps(kept.read_bytes())


def test_the_examples_are_small_and_their_page_tells_the_truth() -> None:
    script = load_script()
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for name, (world, _) in script.EXAMPLES.items():
        assert (EXAMPLES / f"{name}.sqlite").stat().st_size < 600_000
        assert script.describe(truth(world)) in page


def read_numbers(page: str) -> tuple[list[str], list[float]]:
    """Part a page into its text and its numbers, whose last digit is the machine's: sums round as its chip adds."""
    return re.split(NUMBER, page), [float(number) for number in re.findall(NUMBER, page)]


def test_the_scrapes_are_made_to_the_last_digits_by_their_script(tmp_path: Path) -> None:
    script = load_script()
    script.main(tmp_path)
    for name in script.LEDGERS:
        kept = sorted((EXAMPLES / name).iterdir())
        assert [path.name for path in kept] == sorted(path.name for path in (tmp_path / name).iterdir())
        for path in kept:
            text, numbers = read_numbers(path.read_text("utf-8"))
            made_text, made_numbers = read_numbers((tmp_path / name / path.name).read_text("utf-8"))
            assert made_text == text
            assert made_numbers == pytest.approx(numbers, rel=1e-12, abs=1e-12)
        assert sum(path.stat().st_size for path in kept) < 600_000
