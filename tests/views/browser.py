"""The browser of this machine, driven without any download."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DRAWN = "html[data-figures=drawn]"
"""What a page matches when all its figures are drawn."""


def find_browser() -> str | None:
    """Find a Chromium; None if there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


@contextmanager
def start_browser(path: str) -> Iterator[Browser]:
    """Start a browser without a window."""
    # The sandbox of the browser cannot start as root.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        try:
            yield browser
        finally:
            browser.close()
