"""Which rank is slow in which layer: a hot expert looks unlike a slow GPU."""

from __future__ import annotations

from dprankdiag.dashboard.pages.base import Elements, Page, explain_missing, show_heading, show_panel, show_words
from dprankdiag.dashboard.places import Place
from dprankdiag.dashboard.provider import Snapshot
from dprankdiag.views.panels import make_group_panels

MEANINGS = {
    "layer": "Ordinal of the pair of gather and scatter in a step, from 0.",
    "before the gather": "Attention and what belongs to it: work that follows the rank's own requests.",
    "after the gather": "Experts: work that follows what all ranks' tokens choose.",
    "beyond the median": "Time between meetings less the median of the ranks at the same meeting.",
}


def render(snapshot: Snapshot, place: Place) -> Elements:
    """Show the excess of each rank in each layer."""
    says = (
        "A hot expert is another rank in each layer, after the gather; a slow chip is one rank in all, on both sides."
    )
    panels = make_group_panels("layers", snapshot.diagnosis, snapshot.tables)
    parts = [show_panel(panel, reason=explain_missing(snapshot), meanings=MEANINGS) for panel in panels]
    return [show_heading("Layers", says), *parts, show_words(MEANINGS)]


PAGE = Page("/layers", "Layers", render)
