"""Take the documentation's pictures of the HTML page anew: ``python -m tests.golden.pictures``; needs chromium."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from dprankdiag.harness.suites import WORLDS, write_world
from dprankdiag.pipelines.diagnose import diagnose
from dprankdiag.views import html
from tests.golden.update import ROOT
from tests.views.browser import DRAWN, find_browser, start_browser

IMAGES = ROOT / "docs" / "images"
WIDTH = 1280
LEEWAY = 12

PICTURES = (
    ("findings-light.png", "load", "light", "body", ".card .scroll"),
    ("figures-light.png", "load", "light", "#waits-0-title", "section:has(#worst-0)"),
    ("figures-dark.png", "load", "dark", "#waits-0-title", "section:has(#worst-0)"),
    ("layers-light.png", "expert", "light", "#layers-0-title", "section:has(#layers-0)"),
    ("inconclusive-light.png", "undecided", "light", "body", "section:has(.missing) >> nth=1"),
    ("inconclusive-dark.png", "undecided", "dark", "body", "section:has(.missing) >> nth=1"),
)
"""File, page, colours, and the elements at whose top and bottom the picture begins and ends."""


def main() -> None:
    """Take all pictures."""
    found = find_browser()
    if found is None:
        raise SystemExit("no Chromium on this machine; on Debian: apt-get install chromium")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, start_browser(found) as browser:
        pages = _write_pages(Path(name))
        for file, page, scheme, top, bottom in PICTURES:
            _take(browser, pages[page], IMAGES / file, scheme, top, bottom)


def _write_pages(folder: Path) -> dict[str, Path]:
    """Write the pages; the recordings are named without their folder, so that no picture shows it."""
    os.chdir(folder)
    Path("load-one-rank.sqlite").symlink_to(ROOT / "examples" / "load-one-rank.sqlite")
    write_world(WORLDS["one_file_per_rank_clock"], Path(), name="rank")
    recordings = {
        "load": [Path("load-one-rank.sqlite")],
        "expert": write_world(WORLDS["hot_expert"], Path(), name="expert"),
        "undecided": [Path("rank-0.sqlite")],
    }
    pages = {}
    for name, paths in recordings.items():
        outcome = diagnose(paths)
        pages[name] = folder / f"{name}.html"
        pages[name].write_text(html.render(outcome.diagnosis, outcome.tables), "utf-8")
    return pages


def _take(browser: Browser, page_path: Path, file: Path, scheme: Any, top: str, bottom: str) -> None:
    page = browser.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme=scheme)
    page.goto(page_path.as_uri())
    page.wait_for_selector(DRAWN, state="attached")
    first, last = (page.locator(selector).first.bounding_box() for selector in (top, bottom))
    assert first is not None
    assert last is not None
    begin = max(first["y"] - LEEWAY, 0)
    height = last["y"] + last["height"] + LEEWAY - begin
    page.screenshot(path=file, full_page=True, clip={"x": 0, "y": begin, "width": WIDTH, "height": height})
    page.close()


if __name__ == "__main__":
    main()
