"""The dashboard of running engines in a real browser: what begins, ends and stops there shows on every page."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from dprankdiag.dashboard.app import create_app
from dprankdiag.dashboard.pages import PAGES
from dprankdiag.dashboard.provider import LiveProvider, Snapshot
from dprankdiag.dashboard.serve import serve
from dprankdiag.harness.fake_engine import FakeEngine, Fault
from dprankdiag.pipelines.poll import Poller
from dprankdiag.pipelines.watch import Watcher
from dprankdiag.units import NS_PER_S
from tests import builders
from tests.dashboard.sight import PATIENCE_MS, Visit, assert_nothing_wrong, look, visit, wait_for_figures
from tests.dashboard.worlds import BEGINS_S, ENDS_S, LATE_RANK, Stage, list_bodies, names_cause, set_stage

pytestmark = pytest.mark.slow


@pytest.fixture
def live() -> Iterator[LiveProvider]:
    """Give a running engine of which every quarter of a second one second passes."""
    bodies = list_bodies()
    seconds = itertools.count()
    start_ns = time.time_ns()
    with (
        FakeEngine({path: list(texts) for path, texts in bodies.items()}) as engine,
        Poller([engine.url]) as poller,
        LiveProvider(
            engine.url,
            poller,
            Watcher(),
            interval_s=0.25,
            moment=lambda: start_ns + next(seconds) * NS_PER_S,
        ) as provider,
    ):
        yield provider


def read_range(page: Page) -> list[float]:
    shown: list[float] = page.locator(".js-plotly-plot").evaluate("place => place.layout.yaxis.range")
    return shown


def test_a_fault_of_a_running_engine_shows_within_ten_seconds_and_clears_after(
    context: BrowserContext, live: LiveProvider
) -> None:
    with visit(context, live) as seen:
        page = seen.go("/ledger")
        expect(page.locator("#state")).to_contain_text("cannot tell")
        expect(page.locator("[data-table] tbody tr")).to_have_count(8)
        page.locator("summary").click()
        page.get_by_role("link", name="Verdict").focus()
        expect(page.locator("#state")).to_contain_text("findings")
        found = live.latest()
        assert found is not None
        (event,) = [item for item in reversed(found.events) if item.text.startswith("begins: single_point.host")]
        assert event.text.endswith(f"rank {LATE_RANK}")
        expect(page.locator("td", has_text="single_point.host")).to_have_count(1)
        expect(page.locator("details[open]")).to_have_count(1)
        assert page.evaluate("document.activeElement.textContent") == "Verdict"
        for page_of in PAGES:
            page.get_by_role("link", name=page_of.title, exact=True).click()
            expect(page.locator("#nav a[aria-current=page]")).to_have_text(page_of.title)
            page.locator("#page h1").wait_for()
        page.get_by_role("link", name="Verdict", exact=True).click()
        expect(page.locator("h1")).to_contain_text(f"rank {LATE_RANK}: the others wait for its host")
        expect(page.locator("#page .verdict .status")).to_have_text("cannot tell", timeout=2 * PATIENCE_MS)
        last = live.latest()
        assert last is not None
        assert last.at_ns is not None
        start_ns = last.at_ns - last.revision * NS_PER_S
        began, ended = ((item.at_ns - start_ns) / NS_PER_S for item in reversed(last.events))
        assert BEGINS_S <= began <= BEGINS_S + 10
        assert ENDS_S < ended <= ENDS_S + 25
        assert_nothing_wrong(seen)


def test_the_zoom_of_a_live_figure_outlasts_new_numbers(context: BrowserContext, live: LiveProvider) -> None:
    with visit(context, live) as seen:
        page = seen.go("/waiting")
        wait_for_figures(page, 1)
        page.locator(".js-plotly-plot").evaluate("place => { place.marked = true; }")
        whole = read_range(page)[0]
        box = page.locator(".js-plotly-plot .nsewdrag").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 4)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 3 / 4, steps=4)
        page.mouse.up()
        page.wait_for_function(
            "whole => document.querySelector('.js-plotly-plot').layout.yaxis.range[0] !== whole", arg=whole
        )
        zoomed = read_range(page)
        before = page.locator("#moment").text_content()
        expect(page.locator("#moment")).not_to_have_text(str(before))
        page.wait_for_timeout(1500)
        assert page.locator(".js-plotly-plot").evaluate("place => place.marked")
        assert read_range(page) == zoomed
        assert_nothing_wrong(seen)


def test_a_hidden_tab_asks_for_nothing(context: BrowserContext, live: LiveProvider) -> None:
    with visit(context, live) as seen:
        page = seen.go("/ledger")
        page.locator("#moment").wait_for()
        page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")
        page.wait_for_timeout(1200)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.wait_for_timeout(3000)
        assert asked == []


@dataclass(frozen=True)
class Stuck:
    """A live provider that has nothing new any more."""

    snapshot: Snapshot
    interval_s: float | None = 1.0

    def latest(self) -> Snapshot:
        return self.snapshot


def test_numbers_that_stopped_coming_are_marked(context: BrowserContext) -> None:
    snapshot = Snapshot(0, "engine", builders.diagnosis(), {}, at_ns=10**18)
    with visit(context, Stuck(snapshot)) as seen:
        page = seen.go("/")
        expect(page.locator("#moment")).to_have_text("2001-09-09T01:46:40Z")
        assert page.locator("#moment.late").count() == 0
        expect(page.locator("#moment.late")).to_be_visible()


@contextmanager
def open_all(context: BrowserContext, scheme: str) -> Iterator[tuple[Stage, dict[str, Visit]]]:
    """Open every page, each in a tab, on an engine of which no second has passed."""
    with ExitStack() as stack:
        stage = stack.enter_context(set_stage())
        address = stack.enter_context(serve(create_app(stage.provider)))
        tabs = {page_of.path: stack.enter_context(look(context, address, scheme)) for page_of in PAGES}
        for path, tab in tabs.items():
            tab.go(path)
        yield stage, tabs


MARKED = ".js-plotly-plot .ytick text:has(b, tspan)"


def expect_fault(path: str, page: Page) -> None:
    expect(page.locator("#state")).to_contain_text(f"findings rank {LATE_RANK}: the others wait for its host")
    if path == "/":
        expect(page.locator("h1")).to_contain_text(f"rank {LATE_RANK}: the others wait for its host")
        expect(page.locator("article.card h3")).to_contain_text("single_point.host")
    if path == "/waiting":
        expect(page.locator(MARKED)).to_have_text(str(LATE_RANK))
    if path == "/imbalance":
        expect(page.locator("figcaption")).to_contain_text("late hosts")
        wait_for_figures(page, 1)
    if path in ("/timeline", "/blame", "/layers"):
        expect(page.locator(".missing").first).to_contain_text("dprankdiag capture TARGET")
    if path == "/ledger":
        row = page.locator("tbody tr", has=page.locator("td", has_text="single_point.host"))
        expect(row.locator("td").first).to_have_text(f"* {LATE_RANK}")
        expect(page.locator("li", has_text=f"begins: single_point.host, rank {LATE_RANK}")).to_have_count(1)
    if path == "/export":
        with page.expect_download() as saved:
            page.get_by_role("link", name="Markdown").click()
        assert "single_point.host" in saved.value.path().read_text("utf-8")


def expect_even(path: str, page: Page) -> None:
    expect(page.locator("#state .findings")).to_have_count(0)
    expect(page.locator("article.card")).to_have_count(0)
    if path == "/waiting":
        expect(page.locator(MARKED)).to_have_count(0)
    if path == "/ledger":
        expect(page.locator("td", has_text="single_point.host")).to_have_count(0)
        expect(page.locator("li", has_text=f"ends: single_point.host, rank {LATE_RANK}")).to_have_count(1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_that_is_open_shows_a_fault_and_its_end(context: BrowserContext, scheme: str) -> None:
    with open_all(context, scheme) as (stage, tabs):
        before = stage.pass_until(lambda _: stage.seconds == BEGINS_S, most_s=BEGINS_S)
        assert not before.diagnosis.findings
        stage.pass_until(names_cause, most_s=10)
        for path, tab in tabs.items():
            expect_fault(path, tab.page)
            assert_nothing_wrong(tab)
        stage.pass_until(lambda _: stage.seconds == ENDS_S, most_s=ENDS_S)
        stage.pass_until(lambda last: not last.diagnosis.findings, most_s=25)
        for path, tab in tabs.items():
            expect_even(path, tab.page)
            assert tab.complaints == []


def test_every_page_that_is_open_says_that_an_engine_gives_no_data_and_that_it_does_again(
    context: BrowserContext,
) -> None:
    with open_all(context, "light") as (stage, tabs):
        stage.pass_until(lambda last: bool(last.diagnosis.ranks), most_s=3)
        for tab in tabs.values():
            expect(tab.page.locator(".trouble")).to_have_count(0)
        stage.engine.faults.update(dict.fromkeys(stage.engine.bodies, Fault(status=503)))
        stage.pass_until(lambda last: bool(last.failures), most_s=1)
        for tab in tabs.values():
            expect(tab.page.locator(".trouble")).to_contain_text(f"{stage.engine.url}/metrics")
            expect(tab.page.locator(".trouble")).to_contain_text("503")
            expect(tab.page.locator(".trouble code")).to_have_text("dprankdiag doctor TARGET")
            assert_nothing_wrong(tab)
        stage.engine.faults.clear()
        stage.pass_until(lambda last: not last.failures, most_s=10)
        for tab in tabs.values():
            expect(tab.page.locator(".trouble")).to_have_count(0)


def test_an_engine_that_never_answers_is_said_so_on_every_page(context: BrowserContext) -> None:
    with (
        Poller(["http://127.0.0.1:9"]) as poller,
        LiveProvider("nobody", poller, Watcher(), interval_s=1.0) as provider,
        visit(context, provider) as seen,
    ):
        for page_of in PAGES:
            page = seen.go(page_of.path)
            expect(page.locator(".trouble")).to_contain_text("127.0.0.1:9")
            expect(page.locator("#state")).to_contain_text("cannot tell")
            assert_nothing_wrong(seen)
        expect(seen.go("/ledger").locator(".missing")).to_contain_text("No data")
