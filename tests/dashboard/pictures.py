"""Take the pictures of the dashboard's pages that the documentation shows, light and dark.

python -m tests.dashboard.pictures [FOLDER]

They are taken of a recorded example, of that against a healthy one (Compare), of a made-up what-if, of a simulated
engine while it has a fault (`live-`), and of what the ledgers of a scenario believed (`scenario-`). Look at them
afterwards: they are how a reader sees the pages first.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, expect

from dprankdiag.dashboard.pages import PAGES
from dprankdiag.dashboard.provider import Provider, show_ledgers, show_runs, show_what_if
from dprankdiag.harness.scenario_ledger import record_ledgers
from dprankdiag.harness.scenarios import find_scenario
from tests.conftest import ROOT
from tests.dashboard.sight import PATIENCE_MS, show_example, visit, wait_for_figures
from tests.dashboard.whatifs import make_whatif
from tests.dashboard.worlds import ENDS_S, names_cause, set_stage
from tests.views.browser import find_browser, start_browser

FOLDER = ROOT / "docs" / "images"
EXAMPLE = "load-one-rank.sqlite"
HEALTHY = "healthy.sqlite"
SCENARIO = "polled"
SCHEMES = ("light", "dark")
WIDTH, HEIGHT = 1200, 1100
SCALE = 0.75
MOST_BYTES = 60_000
QUALITIES = (80, 65, 50, 35, 25)
"""Of WebP; the first is taken that makes a picture small enough."""

LIVE = {"/", "/waiting", "/imbalance", "/ledger"}
"""Pages that show something of their own of a running engine."""


def take_picture(context: BrowserContext, page: Page) -> bytes:
    """Take a picture of the upper part of a page.

    Raises:
        ValueError: it is large even when it is coarse.
    """
    height = min(HEIGHT, int(page.evaluate("document.documentElement.scrollHeight")))
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": SCALE}
    session = context.new_cdp_session(page)
    for quality in QUALITIES:
        told = session.send("Page.captureScreenshot", {"format": "webp", "quality": quality, "clip": clip})
        picture = base64.b64decode(told["data"])
        if len(picture) <= MOST_BYTES:
            return picture
    raise ValueError(f"{page.url}: {len(picture)} bytes")


def take_all(browser: Browser, provider: Provider, prefix: str, paths: set[str]) -> Iterator[tuple[str, bytes]]:
    """Take pictures of pages by name."""
    for scheme in SCHEMES:
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
        with visit(context, provider, scheme) as seen:
            for page_of in PAGES:
                if page_of.path in paths:
                    page = seen.go(page_of.path)
                    wait_for_figures(page, page.locator(".figure").count())
                    page.wait_for_timeout(500)
                    yield f"dashboard-{prefix}{page_of.title.lower()}-{scheme}.webp", take_picture(context, page)
        context.close()


def open_two() -> Provider:
    """Open the example before, and a healthy run after."""
    examples = [show_example(name).snapshot for name in (EXAMPLE, HEALTHY)]
    names = [example.source.replace(".sqlite", ".dprank") for example in examples]
    return show_runs(names, [(example.diagnosis, example.tables) for example in examples])


def main(folder: Path = FOLDER) -> None:
    """Take all pictures."""
    found = find_browser()
    if found is None:
        raise SystemExit("no Chromium on this machine; on Debian: apt-get install chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with ExitStack() as stack:
        browser = stack.enter_context(start_browser(found))
        stage = stack.enter_context(set_stage())
        stage.pass_until(names_cause, most_s=ENDS_S)
        stage.pass_until(lambda _: stage.seconds == ENDS_S, most_s=ENDS_S)
        every = {page_of.path for page_of in PAGES} - {"/ledger", "/compare", "/whatif"}
        pictures = [*take_all(browser, show_example(EXAMPLE), "", every)]
        pictures += take_all(browser, open_two(), "", {"/compare"})
        pictures += take_all(browser, show_what_if("options.json", make_whatif()), "", {"/whatif"})
        pictures += take_all(browser, stage.provider, "live-", LIVE)
        believed = show_ledgers(f"{SCENARIO}.json", record_ledgers(find_scenario(SCENARIO)))
        pictures += take_all(browser, believed, "scenario-", {"/ledger"})
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures:
        (folder / name).write_bytes(picture)
        print(f"{len(picture):6} {name}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
