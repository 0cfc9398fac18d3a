"""The dashboard in a real browser: every page of a recording, without a word from outside."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from dprankdiag.dashboard.pages import PAGES
from dprankdiag.dashboard.provider import show_runs, show_saved, show_what_if
from tests import builders
from tests.dashboard.access import list_barriers
from tests.dashboard.sight import assert_nothing_wrong, show_example, visit, wait_for_figures
from tests.dashboard.whatifs import make_whatif
from tests.pipelines.test_compare import late, side
from tests.views.results import make_tables

pytestmark = pytest.mark.slow

EXAMPLE = "load-one-rank.sqlite"
FIGURES = {
    "/": 2,
    "/waiting": 2,
    "/timeline": 3,
    "/blame": 4,
    "/imbalance": 1,
    "/layers": 1,
    "/ledger": 0,
    "/compare": 0,
    "/whatif": 1,
    "/export": 0,
}
PAPER = {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}
INK = {"light": "rgb(27, 31, 36)", "dark": "rgb(230, 237, 243)"}


def find_point(page: Page, figure: int, across: float, down: float) -> tuple[float, float]:
    """Find a point of a figure's area by its shares, where the mouse can reach it."""
    area = page.locator(".js-plotly-plot").nth(figure).locator(".nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    assert box is not None
    point = box["x"] + box["width"] * across, box["y"] + box["height"] * down
    page.mouse.move(*point)
    return point


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


ADD = "const add = (place) => place.appendChild(document.createElement('p'));"


def test_what_bars_a_reader_is_found(context: BrowserContext) -> None:
    plants = {
        "color-contrast": "Object.assign(add(main), {textContent: 'pale', style: 'color: #bbb'})",
        "image-alt": "main.append(document.createElement('img'))",
        "region": "add(document.body).textContent = 'outside'",
        "figure without name or table": "main.querySelector('.figure').removeAttribute('aria-label')",
        "id twice": "add(main).id = 'page'",
    }
    with visit(context, show_example(EXAMPLE)) as seen:
        page = seen.go("/layers")
        for plant in plants.values():
            page.evaluate(f"() => {{ {ADD} const main = document.querySelector('main'); {plant}; }}")
        found = list_barriers(page)
        assert [rule for rule in plants if not any(rule in complaint for complaint in found)] == []


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


def test_the_way_leads_from_the_blame_of_a_step_to_its_chain_and_on_to_the_kernels(context: BrowserContext) -> None:
    with visit(context, show_example(EXAMPLE)) as seen:
        page = seen.go("/blame")
        wait_for_figures(page, 4)
        expect(page.locator("h2", has_text="The chain of blame of step 10")).to_be_visible()
        page.mouse.click(*find_point(page, 1, 5.5 / 19, 3.5 / 8))
        expect(page).to_have_url(re.compile(r"/blame\?group=0&step=5&rank=3$"))
        expect(page.locator("h2", has_text="The chain of blame of step 5")).to_be_visible()
        page.get_by_role("link", name="step after →").press("Enter")
        expect(page.locator("h2", has_text="The chain of blame of step 6")).to_be_visible()
        page.get_by_role("link", name="Rank 3").first.press("Enter")
        expect(page).to_have_url(re.compile(r"/timeline\?group=0&step=6&rank=3&meeting=0$"))
        expect(page.locator("section").last).to_contain_text("Rank 3 comes last")
        assert_nothing_wrong(seen)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_two_bundles_are_compared_and_their_sides_swapped(context: BrowserContext, scheme: str) -> None:
    runs = [side(late(mean_ns), claimed=mean_ns > 0) for mean_ns in (400_000, 0)]
    provider = show_runs(["slow.dprank", "fast.dprank"], [(run.diagnosis, run.tables) for run in runs])
    with visit(context, provider, scheme) as seen:
        page = seen.go("/compare")
        wait_for_figures(page, 2)
        expect(page.locator(".outcome .status")).to_have_text("better")
        assert_nothing_wrong(seen)
        page.get_by_role("link", name="swap the sides").press("Enter")
        expect(page.locator(".outcome .status")).to_have_text("worse")
        expect(page).to_have_url(re.compile(r"/compare\?before=1&after=0$"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_to_set_is_copied_from_a_what_if(context: BrowserContext, scheme: str) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    with visit(context, show_what_if("options.json", make_whatif()), scheme) as seen:
        page = seen.go("/whatif")
        wait_for_figures(page, 1)
        page.get_by_role("button", name="copy --load-balance-method total_tokens").click()
        expect(page.locator(".copy[data-done=copied]")).to_have_count(1)
        assert page.evaluate("navigator.clipboard.readText()") == "--load-balance-method total_tokens"
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


def test_a_finding_leads_to_where_it_shows(context: BrowserContext) -> None:
    with visit(context, show_example(EXAMPLE)) as seen:
        page = seen.go("/")
        page.get_by_role("link", name="step 10 on the timeline").click()
        expect(page).to_have_url(re.compile(r"/timeline\?group=0&step=10&rank=3$"))
        expect(page.locator("h2", has_text="Who released whom")).to_be_visible()
        assert_nothing_wrong(seen)
