"""The dashboard in a real browser: every page on a recording and on a running engine, without a word from outside."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from dprankdiag.dashboard.pages import PAGES
from dprankdiag.dashboard.provider import LiveProvider, Snapshot, show_saved
from dprankdiag.harness.fake_engine import FakeEngine
from dprankdiag.pipelines.poll import Poller
from dprankdiag.pipelines.watch import Watcher
from dprankdiag.units import NS_PER_S
from tests import builders
from tests.dashboard.sight import PATIENCE_MS, Visit, show_example, visit
from tests.dashboard.worlds import BEGINS_S, ENDS_S, LATE_RANK, list_bodies
from tests.views.browser import find_browser, start_browser
from tests.views.results import make_tables

pytestmark = pytest.mark.slow

EXAMPLE = "load-one-rank.sqlite"
FIGURES = {"/": 2, "/waiting": 2, "/timeline": 3, "/imbalance": 1, "/layers": 1, "/ledger": 0, "/export": 0}
PAPER = {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}
INK = {"light": "rgb(27, 31, 36)", "dark": "rgb(230, 237, 243)"}

CHECK = """() => {
  const wrong = [];
  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].map((heading) => Number(heading.tagName[1]));
  if (levels.filter((level) => level === 1).length !== 1) wrong.push("headings of first level: " + levels);
  levels.forEach((level, place) => {
    if (place && level > levels[place - 1] + 1) wrong.push("a heading jumps to level " + level);
  });
  const parts = document.querySelectorAll("#react-entry-point *");
  for (const part of parts)
    if (!part.children.length && part.textContent.trim() && !part.closest("header, nav, main, footer, .skip"))
      wrong.push("outside all parts of the page: " + part.outerHTML.slice(0, 120));
  if (document.documentElement.lang !== "en") wrong.push("no language");
  if (document.querySelectorAll("main").length !== 1) wrong.push("not one main part");
  for (const image of document.querySelectorAll("img:not([alt])")) wrong.push("no words: " + image.outerHTML);
  for (const part of document.querySelectorAll("a, button, summary"))
    if (!(part.textContent.trim() || part.getAttribute("aria-label") || part.dataset.title))
      wrong.push("nothing to read: " + part.outerHTML.slice(0, 120));
  for (const input of document.querySelectorAll("input"))
    if (!input.labels.length && !input.getAttribute("aria-label")) wrong.push("no label: " + input.outerHTML);
  for (const figure of document.querySelectorAll(".figure"))
    if (!figure.getAttribute("aria-label") || !figure.closest("section").querySelector("[data-table]"))
      wrong.push("figure without name or table");
  for (const table of document.querySelectorAll("table"))
    for (const head of table.querySelectorAll("th"))
      if (head.scope !== "col") wrong.push("heading of a table without scope: " + head.outerHTML);
  const ids = [...document.querySelectorAll("[id]")].map((part) => part.id);
  for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) wrong.push("id twice: " + id);
  for (const part of document.querySelectorAll("[aria-labelledby]"))
    if (!document.getElementById(part.getAttribute("aria-labelledby"))) wrong.push("label that is not there");
  return wrong;
}"""
"""What of a page cannot be read without eyes, as a list of complaints."""


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


def wait_for_figures(page: Page, count: int) -> None:
    expect(page.locator(".js-plotly-plot")).to_have_count(count)
    expect(page.locator(".js-plotly-plot:has(.cartesianlayer .xy)")).to_have_count(count)


def find_point(page: Page, figure: int, across: float, down: float) -> tuple[float, float]:
    """Find a point of a figure's area by its shares, where the mouse can reach it."""
    area = page.locator(".js-plotly-plot").nth(figure).locator(".nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    point = box["x"] + box["width"] * across, box["y"] + box["height"] * down
    page.mouse.move(*point)
    return point


def list_buttons(page: Page) -> list[str]:
    titles: list[str] = page.locator(".modebar-btn").evaluate_all(
        "buttons => buttons.map(button => button.dataset.title || button.getAttribute('aria-label') || '')"
    )
    return titles


def assert_nothing_wrong(seen: Visit) -> None:
    assert seen.outside == []
    assert seen.complaints == []
    assert seen.page.evaluate(CHECK) == []
    offered = [
        word
        for title in list_buttons(seen.page)
        for word in ("share", "cloud", "edit", "plotly")
        if word in title.lower()
    ]
    assert offered == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_of_a_recording_shows_what_it_has(context: BrowserContext, scheme: str) -> None:
    with visit(context, show_example(EXAMPLE), scheme) as seen:
        for page_of in PAGES:
            page = seen.go(page_of.path)
            wait_for_figures(page, FIGURES[page_of.path])
            expect(page.locator("#nav a[aria-current=page]")).to_have_text(page_of.title)
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == PAPER[scheme]
            if FIGURES[page_of.path]:
                expect(page.locator(".js-plotly-plot :is(.xtick, .x2tick) text").first).to_have_css("fill", INK[scheme])
            if page_of.path == "/timeline":
                expect(page.locator("#step")).to_have_css("color", INK[scheme])
                expect(page.locator(".dash-input-container")).to_have_css("background-color", PAPER[scheme])
            assert_nothing_wrong(seen)


def test_the_verdict_names_the_rank_its_cause_and_what_to_do(context: BrowserContext) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    with visit(context, show_example(EXAMPLE)) as seen:
        page = seen.go("/")
        expect(page.locator("h1")).to_contain_text("rank 3: 2.45 × the attention work")
        card = page.locator("article.card")
        expect(card.locator("h3")).to_contain_text("load.context")
        for word in ("who", "when", "lost", "confidence", "What else it could be", "What to do"):
            expect(card).to_contain_text(word)
        expect(page.locator(".waterfalllayer .point")).to_have_count(3)
        page.get_by_role("button", name="copy dprankdiag explain load.context").click()
        expect(page.locator(".copy[data-done=copied]")).to_have_count(1)
        assert page.evaluate("navigator.clipboard.readText()") == "dprankdiag explain load.context"
        assert "Attention time of the rank" in str(card.locator("code[title]").first.get_attribute("title"))


@pytest.mark.parametrize(
    "diagnosis, words",
    [
        (builders.even_diagnosis(), "healthy"),
        (builders.even_diagnosis(status="uniform"), "uniform"),
        (builders.undecided_diagnosis(), "cannot tell"),
    ],
    ids=["healthy", "uniform", "cannot tell"],
)
def test_what_is_no_fault_has_a_face_of_its_own(context: BrowserContext, diagnosis: Any, words: str) -> None:
    with visit(context, show_saved("saved", diagnosis, {})) as seen:
        page = seen.go("/")
        expect(page.locator("#page .verdict .status")).to_have_text(words)
        expect(page.locator("article.card")).to_have_count(0)
        if words == "cannot tell":
            expect(page.locator(".untold").first).to_contain_text("Get it with")
        assert_nothing_wrong(seen)


def test_a_click_on_the_heat_map_leads_to_the_step_and_the_address_keeps_it(context: BrowserContext) -> None:
    with visit(context, show_example(EXAMPLE)) as seen:
        page = seen.go("/waiting")
        box = page.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * 5.5 / 19, box["y"] + box["height"] * 3.5 / 8)
        page.mouse.click(box["x"] + box["width"] * 5.5 / 19, box["y"] + box["height"] * 3.5 / 8)
        expect(page.locator("h1")).to_have_text("Timeline")
        expect(page).to_have_url(re.compile(r"/timeline\?group=0&step=5&rank=3$"))
        expect(page.locator("h2").first).to_have_text("Step 5 and those beside it")
        page.go_back()
        expect(page.locator("h1")).to_have_text("Waiting")
        page.get_by_role("link", name="Step 10", exact=True).press("Enter")
        expect(page.locator("h2").first).to_have_text("Step 10 and those beside it")
        expect(page.locator("h2", has_text="Who released whom")).to_be_visible()
        expect(page.locator("[data-table] td").first).to_be_attached()
        page.locator("#step").fill("7")
        page.locator("#step").press("Enter")
        expect(page).to_have_url(re.compile(r"step=7$"))
        assert_nothing_wrong(seen)


def test_an_address_opens_what_it_names(context: BrowserContext) -> None:
    with visit(context, show_example(EXAMPLE)) as seen:
        page = seen.go("/timeline?group=0&step=12&rank=6")
        expect(page.locator("h2").first).to_have_text("Step 12 and those beside it")
        expect(page.locator(".ytick text b, .ytick text tspan", has_text="6").first).to_be_attached()
        assert page.title() == "Timeline · dprankdiag"
        seen.go("/nowhere")
        expect(page.locator("h1")).to_have_text("No such page")
        assert_nothing_wrong(seen)


def test_the_way_leads_from_the_heat_map_to_the_kernel_that_takes_longer(context: BrowserContext) -> None:
    with visit(context, show_example(EXAMPLE)) as seen:
        page = seen.go("/waiting")
        page.mouse.click(*find_point(page, 0, 5.5 / 19, 3.5 / 8))
        expect(page.locator("h2", has_text="Step 5, meeting by meeting")).to_be_visible()
        wait_for_figures(page, 3)
        page.mouse.click(*find_point(page, 1, 0.55, 3.5 / 8))
        expect(page).to_have_url(re.compile(r"/timeline\?group=0&step=5&rank=3&meeting=2$"))
        expect(page.locator("#kernels h2")).to_be_in_viewport()
        section = page.locator("section", has=page.locator("h2", has_text=re.compile("^Kernels$")))
        expect(section).to_contain_text("all_gather, layer 1 (gather), meeting 2 of 0 to 5")
        first = section.locator("[data-table] tbody tr").first
        expect(first).to_contain_text("flash_fwd_splitkv_mla")
        expect(first.locator("td").nth(1)).to_have_text("attention")
        assert "(" in str(first.locator("td[title]").get_attribute("title"))
        wait_for_figures(page, 3)
        assert_nothing_wrong(seen)
        page.locator(".js-plotly-plot").first.evaluate("place => { place.marked = true; }")
        page.locator("summary", has_text="The same over the whole step").click()
        before = page.evaluate("window.scrollY")
        page.get_by_role("link", name="← meeting before").press("Enter")
        expect(page).to_have_url(re.compile(r"meeting=1$"))
        expect(section).to_contain_text("meeting 1 of 0 to 5")
        expect(first).not_to_contain_text("flash_fwd_splitkv_mla")
        assert page.evaluate("window.scrollY") == before
        assert page.locator(".js-plotly-plot").first.evaluate("place => place.marked")
        expect(section.locator("details[open]")).to_have_count(1)
        expect(page.get_by_role("link", name="← meeting before")).to_be_focused()


def test_an_address_opens_the_kernels_it_names(context: BrowserContext) -> None:
    with visit(context, show_example(EXAMPLE)) as seen:
        page = seen.go("/timeline?group=0&step=12&rank=6&meeting=4")
        expect(page.locator("section").last).to_contain_text("Rank 3 comes last")
        expect(page.locator("section").last).to_contain_text("meeting 4 of 0 to 5")
        page.locator("summary", has_text="The same over the whole step").click()
        expect(page.locator("details[open] td", has_text="ncclDevKernel_AllGather").first).to_be_visible()
        assert_nothing_wrong(seen)


def test_hostile_names_of_kernels_are_shown_and_not_obeyed(context: BrowserContext) -> None:
    evil = "</script><img src=x onerror=\"document.title='owned'\"><b>bold</b>"
    kernels = make_tables()["step_kernels"]
    tables = {**make_tables(), "step_kernels": {**kernels, "name": np.full(len(kernels["name"]), evil, object)}}
    with visit(context, show_saved("saved", builders.diagnosis(), tables)) as seen:
        page = seen.go("/timeline")
        wait_for_figures(page, 3)
        expect(page.locator("td", has_text="<b>bold</b>").first).to_be_visible()
        page.mouse.move(*find_point(page, 2, 0.3, 3.5 / 8))
        expect(page.locator(".hoverlayer", has_text="bold")).to_have_count(1)
        assert page.locator("img, main b b").count() == 0
        assert page.title() != "owned"
        assert_nothing_wrong(seen)


def test_files_are_saved_from_the_page(context: BrowserContext) -> None:
    with visit(context, show_example(EXAMPLE)) as seen:
        page = seen.go("/export")
        with page.expect_download() as saved:
            page.get_by_role("link", name="Markdown").click()
        assert saved.value.suggested_filename == "diagnosis.md"
        assert "load.context" in saved.value.path().read_text("utf-8")


def test_hostile_names_are_shown_and_not_obeyed(context: BrowserContext) -> None:
    evil = "</script><img src=x onerror=\"document.title='owned'\"><b>bold</b><a href='javascript:alert(1)'>link</a>"
    diagnosis = builders.diagnosis(headline=evil, notes=(evil,))
    with visit(context, show_saved(evil, diagnosis, make_tables())) as seen:
        for page_of in PAGES:
            page = seen.go(page_of.path)
            assert page.locator("img, main b b, a[href^=javascript]").count() == 0
            assert page.title() != "owned"
        expect(seen.go("/").locator("h1")).to_contain_text("<b>bold</b>")
        assert_nothing_wrong(seen)


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


def test_a_finding_leads_to_where_it_shows(context: BrowserContext) -> None:
    with visit(context, show_example(EXAMPLE)) as seen:
        page = seen.go("/")
        page.get_by_role("link", name="step 10 on the timeline").click()
        expect(page).to_have_url(re.compile(r"/timeline\?group=0&step=10&rank=3$"))
        expect(page.locator("h2", has_text="Who released whom")).to_be_visible()
        assert_nothing_wrong(seen)


def test_an_engine_that_is_gone_is_said_to_give_no_data(context: BrowserContext) -> None:
    with (
        Poller(["http://127.0.0.1:9"]) as poller,
        LiveProvider("nobody", poller, Watcher(), interval_s=1.0) as provider,
        visit(context, provider) as seen,
    ):
        page = seen.go("/ledger")
        expect(page.locator(".trouble")).to_contain_text("127.0.0.1:9")
        expect(page.locator("#state")).to_contain_text("cannot tell")
        expect(page.locator(".missing")).to_contain_text("No data")
        assert_nothing_wrong(seen)
