"""A browser for the tests of the dashboard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.dashboard.sight import PATIENCE_MS
from tests.views.browser import find_browser, start_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = find_browser()
    if found is None:
        pytest.skip("no Chromium on this machine; on Debian: apt-get install chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with start_browser(found) as browser:
        yield browser


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    yield context
    context.close()
