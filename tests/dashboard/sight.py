"""A dashboard that is served and looked at by a real browser, with all that the browser asked for or complained of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from playwright.sync_api import BrowserContext, Page, expect

from dprankdiag.dashboard.app import create_app
from dprankdiag.dashboard.provider import OfflineProvider, Provider, show_saved
from dprankdiag.dashboard.serve import serve
from dprankdiag.pipelines.diagnose import Options, diagnose
from tests.conftest import ROOT
from tests.dashboard.access import list_barriers

PATIENCE_MS = 20_000


@dataclass
class Visit:
    """A page that was opened, what it asked others for, and what it complained of."""

    page: Page
    address: str
    outside: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def go(self, path: str) -> Page:
        self.page.goto(self.address + path)
        self.page.locator("#page h1").wait_for()
        return self.page


@contextmanager
def look(context: BrowserContext, address: str, scheme: Any = "light") -> Iterator[Visit]:
    """Open a page on what is served; the network but that server is shut."""
    page = context.new_page()
    page.emulate_media(color_scheme=scheme)
    seen = Visit(page, address)

    def shut(route: Any) -> None:
        url = route.request.url
        if url.startswith((f"{address}/", "data:", "blob:")):
            route.continue_()
        else:
            seen.outside.append(url)
            route.abort()

    page.route("**/*", shut)
    page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    try:
        yield seen
    finally:
        page.close()


@contextmanager
def visit(context: BrowserContext, provider: Provider, scheme: Any = "light") -> Iterator[Visit]:
    """Serve a provider and open a page on it."""
    with serve(create_app(provider)) as address, look(context, address, scheme) as seen:
        yield seen


@cache
def show_example(name: str) -> OfflineProvider:
    """Diagnose a recording of the examples."""
    outcome = diagnose([ROOT / "examples" / name], Options(keep_steps=True))
    return show_saved(name, outcome.diagnosis, outcome.tables, outcome.steps)


def wait_for_figures(page: Page, count: int) -> None:
    expect(page.locator(".js-plotly-plot")).to_have_count(count)
    expect(page.locator(".js-plotly-plot:has(.cartesianlayer .xy)")).to_have_count(count)


def _list_buttons(page: Page) -> list[str]:
    titles: list[str] = page.locator(".modebar-btn").evaluate_all(
        "buttons => buttons.map(button => button.dataset.title || button.getAttribute('aria-label') || '')"
    )
    return titles


def assert_nothing_wrong(seen: Visit) -> None:
    wrong = [*seen.outside, *seen.complaints, *list_barriers(seen.page)]
    assert not wrong, "\n".join(wrong)
    offered = [
        word
        for title in _list_buttons(seen.page)
        for word in ("share", "cloud", "edit", "plotly")
        if word in title.lower()
    ]
    assert offered == []
