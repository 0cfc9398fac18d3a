"""What each rank of a running engine tells of itself, and what began and ended."""

from __future__ import annotations

from dash import html

from dprankdiag.dashboard.dispatches import MEANINGS, show_ledgers
from dprankdiag.dashboard.elements import show_table
from dprankdiag.dashboard.pages.base import Elements, Page, show_heading, show_missing, show_words, show_words_of
from dprankdiag.dashboard.places import Place
from dprankdiag.dashboard.provider import Snapshot
from dprankdiag.model.ledger_results import LEDGER_RANKS
from dprankdiag.views.ledgers import LEGEND, describe_columns, list_ledger_rows, list_states
from dprankdiag.views.watch import format_moment
from dprankdiag.views.words import count_of

MOST_ROWS = 2048
NO_LEDGER = (
    "A recording of kernels holds no numbers of the engine. dprankdiag dashboard TARGET shows them live (TARGET is its "
    "URL, such as http://HOST:30000); dprankdiag record TARGET keeps them for later."
)
UNTOLD = "Numbers that are not told are a dash, never 0."
STATE = "The causes of findings that name the rank; idle where most of its steps are without work of its own."


def render(snapshot: Snapshot, place: Place) -> Elements:
    """Show a row a rank, what gives no data, and the events."""
    heading = show_heading("Ledger", f"What each rank tells of itself. {UNTOLD}")
    if snapshot.ledgers is not None and not snapshot.tables:
        heading = show_heading("Ledger", f"What routers believed as they sent requests on, and what was true. {UNTOLD}")
        return [heading, *show_ledgers(snapshot.ledgers, place), show_words(MEANINGS)]
    parts: Elements = [heading, *_show_ranks(snapshot)]
    if snapshot.failures:
        rows = [(item.where, item.interface, item.reason) for item in snapshot.failures]
        table = show_table("failures", "No data", ("target", "interface", "reason"), rows)
        parts.append(html.Section([html.H2("No data"), table], className="card untold"))
    if snapshot.at_ns is not None:
        items = [html.Li(f"{format_moment(event.at_ns)} {event.text}") for event in snapshot.events]
        none = html.P("Nothing has begun or ended since this dashboard was started.")
        parts.append(html.Section([html.H2("Events"), show_words_of("events", [html.Ul(items) if items else none])]))
    if snapshot.ledgers is not None:
        parts += [*show_ledgers(snapshot.ledgers, place), show_words(MEANINGS)]
    words = {column.name: f"{column.meaning}. Unit: {column.unit}." for column in LEDGER_RANKS.columns[2:]}
    return [*parts, show_words(describe_columns(words) | {"state": STATE})]


def _show_ranks(snapshot: Snapshot) -> Elements:
    headings, rows = list_ledger_rows(snapshot.diagnosis, snapshot.tables, MOST_ROWS)
    if not rows:
        told = snapshot.diagnosis.headline if snapshot.at_ns is not None else NO_LEDGER
        return [show_missing(told)]
    states = list_states(snapshot.diagnosis, snapshot.tables)
    shown = [[*row, states.get(row[0].removeprefix("* "), "")] for row in rows]
    words = {column.name: f"{column.meaning} ({column.unit})" for column in LEDGER_RANKS.columns[2:]}
    meanings = describe_columns(words) | {"state": STATE}
    table = show_table("ranks", "Ranks", (*headings, "state"), shown, headings, meanings)
    count = html.P(f"{count_of(len(rows), 'rank')}: {LEGEND} * a finding names it.")
    return [html.Section([html.H2("Ranks"), table, count])]


PAGE = Page("/ledger", "Ledger", render)
