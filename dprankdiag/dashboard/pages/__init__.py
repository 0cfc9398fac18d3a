"""The pages, one a file, in reading order."""

from __future__ import annotations

from dprankdiag.dashboard.pages import (
    blame,
    compare,
    export,
    imbalance,
    layers,
    ledger,
    timeline,
    verdict,
    waiting,
    whatif,
)
from dprankdiag.dashboard.pages.base import Page

PAGES: tuple[Page, ...] = (
    verdict.PAGE,
    waiting.PAGE,
    timeline.PAGE,
    blame.PAGE,
    imbalance.PAGE,
    layers.PAGE,
    ledger.PAGE,
    compare.PAGE,
    whatif.PAGE,
    export.PAGE,
)
"""What there is to open, the answer first. What needs data that nothing keeps yet has no page here."""

BY_PATH = {page.path: page for page in PAGES}
