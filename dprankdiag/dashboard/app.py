"""The dashboard as a Dash application of one provider; nothing of it is global, several may live side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update, set_props
from dash.development.base_component import Component

from dprankdiag import __version__
from dprankdiag.dashboard.downloads import add_downloads
from dprankdiag.dashboard.elements import make_elements
from dprankdiag.dashboard.pages import BY_PATH, PAGES
from dprankdiag.dashboard.pages.base import show_advice, show_words_of
from dprankdiag.dashboard.pages.blame import BLAMED
from dprankdiag.dashboard.pages.timeline import MEETINGS
from dprankdiag.dashboard.pages.waiting import find_longest
from dprankdiag.dashboard.parts import Id, take_apart
from dprankdiag.dashboard.places import Place, read_place, write_address
from dprankdiag.dashboard.provider import Provider, Snapshot
from dprankdiag.dashboard.security import Entrance, guard, write_policy
from dprankdiag.views.assets import read_asset
from dprankdiag.views.markup import tag
from dprankdiag.views.watch import format_moment

TITLE = "dprankdiag"
SHORTEST_PERIOD_S = 1.0
FEWEST_LATE_S, LATE_PERIODS = 5.0, 4.0
"""Numbers are marked as late after so many seconds and so many periods without new ones."""

ASK_WHY = show_advice("dprankdiag doctor TARGET says what is missing and how to get it.")

MOST_BYTES = 2**20
"""What a browser may send at once; it only ever says what it looks at."""

TO_STEP = {"waits": "/timeline", BLAMED: "/blame"}
"""What begins the key of a figure of steps → the page on which a click shows the step."""

_INDEX = """<!doctype html>
<html lang="en">
<head>
{%metas%}
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{%title%}</title>
{%favicon%}
{%css%}
<style>STYLE</style>
</head>
<body>
{%app_entry%}
<noscript><p>The dashboard needs JavaScript. Without it: dprankdiag analyze, or its HTML page.</p></noscript>
{%config%}
{%scripts%}
{%renderer%}
</body>
</html>"""


def create_app(provider: Provider, entrance: Entrance | None = None) -> Dash:
    """Make the application; `app.server` is its WSGI application.

    Args:
        provider: what is shown.
        entrance: who may look; this machine alone if not given.
    """
    app = Dash(
        __name__,
        assets_folder="assets",
        pages_folder="",
        use_pages=False,
        serve_locally=True,
        compress=False,
        suppress_callback_exceptions=True,
        index_string=_INDEX.replace("STYLE", read_asset("report.css")),
        title=TITLE,
        update_title=None,  # type: ignore[arg-type]  # None leaves the title alone, as its documentation says
        add_log_handler=False,
        enable_mcp=False,
    )
    app.layout = _lay_out(provider)
    _add_callbacks(app, provider)
    server = app.server
    server.config["MAX_CONTENT_LENGTH"] = MOST_BYTES
    add_downloads(server, provider)
    guard(server, entrance or Entrance(), write_policy(app.csp_hashes()))
    return app


def _lay_out(provider: Provider) -> Component:
    period_s = max(provider.interval_s or SHORTEST_PERIOD_S, SHORTEST_PERIOD_S)
    late: dict[str, Any] = {"data-late-ms": str(round(1000 * max(FEWEST_LATE_S, LATE_PERIODS * period_s)))}
    live: dict[str, Any] = {"aria-live": "polite"}
    named: dict[str, Any] = {"aria-label": "Pages"}
    return html.Div(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Interval(id="tick", interval=round(1000 * period_s), disabled=provider.interval_s is None),
            dcc.Store(id="beat", data=0),
            dcc.Store(id="answered", data=0),
            dcc.Store(id="shown"),
            html.A("Skip to the page", href="#page", className="skip"),
            html.Header(
                [
                    html.Div(
                        [
                            html.Span(TITLE, className="brand"),
                            html.Nav(id="nav", **named),
                            html.Span(id="source", className="source", **late),
                        ],
                        className="bar",
                    ),
                    html.P(id="state", className="state", **live),
                ]
            ),
            html.Main(id="page", tabIndex=-1),
            html.Footer(f"dprankdiag {__version__}. Nothing on this page is sent or fetched outside."),
        ]
    )


def _add_callbacks(app: Dash, provider: Provider) -> None:
    # A hidden tab lets its beats pass: the next question is asked when somebody looks again.
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("dprankdiag", "beat"),
        Output("beat", "data"),
        Input("tick", "n_intervals"),
        State("beat", "data"),
        State("answered", "data"),
    )

    @app.callback(
        Output("page", "children"),
        Output("nav", "children"),
        Output("state", "children"),
        Output("source", "children"),
        Output("shown", "data"),
        Output("answered", "data"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("beat", "data"),
        State("shown", "data"),
    )
    def show(path: str | None, search: str | None, beat: int, shown: Shown | None) -> tuple[Any, ...]:
        screen = show_place(provider.latest(), read_place(path, search), shown)
        for part, properties in screen.changes:
            set_props(part, properties)
        return *screen.outputs, beat

    @app.callback(
        Output("url", "href"),
        Input({"type": "figure", "key": ALL}, "clickData"),
        State({"type": "figure", "key": ALL}, "id"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def go_to_clicked(clicks: list[Any], graphs: list[dict[str, str]], search: str | None) -> Any:
        return find_clicked(provider.latest(), clicks, graphs, read_place(None, search).rank) or no_update

    @app.callback(
        Output("url", "href", allow_duplicate=True),
        Input("step", "value"),
        State("step-shown", "data"),
        prevent_initial_call=True,
    )
    def go_to_typed(step: int | None, shown: dict[str, int] | None) -> Any:
        return find_typed(step, shown) or no_update


Shown = dict[str, Any]
"""What is on the screen: its address, with and without the meeting, revision, and the digests of frame and parts."""


@dataclass(frozen=True, slots=True)
class Screen:
    """What to change on the screen.

    Attributes:
        outputs: the page, the list of pages, the state in a line, what is looked at, and what is shown then.
        changes: parts of the page and their new properties, where the page itself stays.
    """

    outputs: tuple[Any, ...]
    changes: tuple[tuple[Id, dict[str, Any]], ...] = ()


def show_place(snapshot: Snapshot | None, place: Place, shown: Shown | None) -> Screen:
    """Make what the screen shows at a place, and of that only what it does not show already."""
    address, revision = write_address(place), -1 if snapshot is None else snapshot.revision
    view = write_address(replace(place, meeting=None))
    stays = shown is not None and shown["view"] == view
    if shown is not None and (shown["address"], shown["revision"]) == (address, revision):
        return Screen((no_update,) * 5)
    nav = no_update if stays else _show_nav()
    elements = _show_page(snapshot, place)
    parts = take_apart(elements)
    now: Shown = {"address": address, "view": view, "revision": revision, "frame": parts.frame, "parts": parts.digests}
    words = ("", "") if snapshot is None else (_show_state(snapshot), _show_source(snapshot))
    if shown is not None and stays and shown["frame"] == parts.frame:
        return Screen((no_update, nav, *words, now), tuple(parts.list_changes(shown["parts"])))
    return Screen((elements, nav, *words, now))


def _show_page(snapshot: Snapshot | None, place: Place) -> list[Any]:
    if snapshot is None:
        return [html.H1("No answer yet"), html.P("The first answer of the targets is awaited.")]
    page = BY_PATH.get(place.path)
    content = page.render(snapshot, place) if page else _show_unknown(place)
    return [show_words_of("trouble", _show_trouble(snapshot)), *content]


def _show_nav() -> Component:
    """List the pages; the browser's script marks the current one."""
    return html.Ul([html.Li(dcc.Link(page.title, href=page.path)) for page in PAGES])


def _show_state(snapshot: Snapshot) -> list[Any]:
    status = snapshot.diagnosis.status
    badge = tag("span", "cannot tell" if status == "inconclusive" else status, class_=f"status {status}")
    return [*make_elements(badge), " ", snapshot.diagnosis.headline]


def _show_source(snapshot: Snapshot) -> list[Any]:
    if snapshot.at_ns is None:
        return [snapshot.source]
    moment: dict[str, Any] = {"data-at-ms": str(snapshot.at_ns // 1_000_000)}
    return [f"{snapshot.source}, ", html.Time(format_moment(snapshot.at_ns), id="moment", **moment)]


def _show_trouble(snapshot: Snapshot) -> list[Any]:
    """Say what keeps the numbers from being complete or new."""
    items = [html.Li(f"{item.where} ({item.interface}): {item.reason}") for item in snapshot.failures]
    parts: list[Any] = []
    if snapshot.trouble:
        parts.append(html.P([html.Strong("Nothing new comes. "), snapshot.trouble], role="alert", className="trouble"))
    if items:
        parts.append(html.Div([html.Strong("No data from:"), html.Ul(items), html.P(ASK_WHY)], className="trouble"))
    return parts


def _show_unknown(place: Place) -> list[Any]:
    links = [html.Li(dcc.Link(page.title, href=page.path)) for page in PAGES]
    return [html.H1("No such page"), html.P(f"There is no page {place.path}. There are:"), html.Ul(links)]


def find_clicked(
    snapshot: Snapshot | None, clicks: list[Any], graphs: list[dict[str, str]], rank: int | None = None
) -> str | None:
    """Find the address of the step that was clicked on a heat map of waits, or of the meeting clicked in a step.

    Of a column of several steps the longest is meant.

    Args:
        rank: looked at already; a click on a meeting leaves it.
    """
    for click, graph in zip(clicks, graphs, strict=True):
        subject, _, where = graph["key"].partition("-")
        if snapshot is None or not click or not click.get("points"):
            continue
        point = click["points"][0]
        if subject == MEETINGS and (meeting := _read_meeting(point)) is not None:
            group, _, step = where.partition("-")
            return write_address(Place("/timeline", int(group), int(step), rank, meeting))
        if subject in TO_STEP:
            longest, row = find_longest(snapshot, int(where), int(point["x"])), str(point.get("y", ""))
            return write_address(Place(TO_STEP[subject], int(where), longest, int(row) if row.isdigit() else None))
    return None


def _read_meeting(point: dict[str, Any]) -> int | None:
    """Read the meeting's position that a figure of a step tells of what was clicked: alone, or after its words."""
    told = point.get("customdata")
    position = told[-1] if isinstance(told, list) and told else told
    return position if isinstance(position, int) and position >= 0 else None


def find_typed(step: int | None, shown: dict[str, int] | None) -> str | None:
    """Find the address of the step that was typed, if it is another one."""
    if step is None or shown is None or step == shown["step"]:
        return None
    return write_address(Place("/timeline", shown["group"], int(step)))
