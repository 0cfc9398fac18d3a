"""The page in a real browser, opened from disk: it paints, asks for nothing, and obeys no text of a recording."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from dprankdiag.views.html import render
from tests import builders
from tests.views.browser import DRAWN, find_browser, start_browser
from tests.views.results import make_tables
from tests.views.test_markdown import make_hostile

pytestmark = pytest.mark.slow

EVIL = "</script><img src=x onerror=\"document.title='owned'\"><b>bold</b><a href='javascript:alert(1)'>link</a>"
INK = {"light": "rgb(27, 31, 36)", "dark": "rgb(230, 237, 243)"}
PAPER = {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}
FIGURES = ("lost", "waits-0", "worst-0", "arrivals-0", "layers-0", "ranks")


@dataclass
class Visit:
    """A page that was opened, and all that it asked for or complained of."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = find_browser()
    if found is None:
        pytest.skip("no Chromium on this machine; on Debian: apt-get install chromium")
    with start_browser(found) as browser:
        yield browser


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(20_000)
    yield context
    context.close()


def _open(context: BrowserContext, path: Path, text: str, scheme: Any = "light") -> Visit:
    path.write_text(text, "utf-8", "backslashreplace")
    page = context.new_page()
    page.emulate_media(color_scheme=scheme)
    visit = Visit(page)
    page.on("request", lambda request: visit.requests.append(request.url))
    page.on("console", lambda message: visit.complaints.append(message.text))
    page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector(DRAWN, state="attached")
    return visit


def _color_of_text(page: Page, figure: str) -> str:
    text = page.locator(f"#{figure} :is(.xtick, .x2tick) text").first
    color: str = text.evaluate("element => getComputedStyle(element).fill")
    return color


def _paper(page: Page) -> str:
    color: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return color


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_paints_every_figure_and_asks_for_nothing(
    context: BrowserContext, tmp_path: Path, scheme: str
) -> None:
    path = tmp_path / "run.html"
    visit = _open(context, path, render(builders.diagnosis(), make_tables()), scheme)
    page = visit.page
    assert visit.requests == [path.as_uri()]
    assert visit.complaints == []
    for figure in FIGURES:
        box = page.locator(f"#{figure} .main-svg").first.bounding_box()
        assert box is not None
        assert box["width"] > 600
        assert box["height"] > 200
        assert page.locator(f"#{figure} :is(.xtick, .x2tick) text").count() > 1
    assert page.locator("#lost .waterfalllayer .point").count() == 3
    assert page.locator("#waits-0 .heatmaplayer image").count() == 1
    assert page.locator("#layers-0 .heatmaplayer image").count() == 2
    assert page.locator("#arrivals-0 .boxlayer path.box").count() == 8
    assert page.locator("#worst-0 .barlayer .point path").count() > 100
    assert page.locator("#ranks .barlayer .point path").count() == 32
    assert _paper(page) == PAPER[scheme]
    assert {_color_of_text(page, figure) for figure in FIGURES} == {INK[scheme]}
    titles = page.locator(".modebar-btn").evaluate_all("buttons => buttons.map(button => button.dataset.title)")
    assert len(titles) > len(FIGURES)
    assert not [title for title in titles for word in ("share", "cloud", "edit", "plotly") if word in title.lower()]
    assert page.locator("a[href]").count() == 0


def test_figures_follow_a_change_of_colours_and_print_dark_on_white(context: BrowserContext, tmp_path: Path) -> None:
    page = _open(context, tmp_path / "run.html", render(builders.diagnosis(), make_tables())).page
    page.emulate_media(color_scheme="dark")
    expect(page.locator("#ranks .xtick text").first).to_have_css("fill", INK["dark"])
    page.emulate_media(color_scheme="dark", media="print")
    expect(page.locator("#ranks .xtick text").first).to_have_css("fill", "rgb(0, 0, 0)")
    assert _paper(page) == PAPER["light"]


def test_hostile_names_are_shown_and_not_obeyed(context: BrowserContext, tmp_path: Path) -> None:
    tables = dict(make_tables())
    tables["positions"] = {**tables["positions"], "operation": np.full(6, EVIL, object)}
    diagnosis = make_hostile(EVIL)
    diagnosis = replace(diagnosis, ranks=(*diagnosis.ranks, builders.rank(0, engine="other")))
    visit = _open(context, tmp_path / "run.html", render(diagnosis, tables))
    page = visit.page
    assert visit.complaints == []
    assert page.locator("img").count() == 0
    assert page.locator("a[href], .plotly a").count() == 0
    assert page.title().startswith("findings: ")
    assert EVIL in str(page.locator("h1").text_content())
    assert EVIL in str(page.locator("#ranks .xtick text").first.text_content())
    page.evaluate("Plotly.Fx.hover('worst-0', [{curveNumber: 2, pointNumber: 0}])")
    assert "<b>bold</b>" in str(page.locator("#worst-0 .hoverlayer .hovertext").first.text_content())


def test_the_policy_stops_what_a_script_in_the_page_would_fetch(context: BrowserContext, tmp_path: Path) -> None:
    visit = _open(context, tmp_path / "run.html", render(builders.undecided_diagnosis(), {}))
    tried = "fetch('http://127.0.0.1:9/x').then(() => 'fetched', () => 'stopped')"
    assert visit.page.evaluate(tried) == "stopped"
    visit.page.evaluate("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/y'}))")
    visit.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 1'}))"
    )
    assert visit.page.evaluate("window.ran === undefined")
    assert len([complaint for complaint in visit.complaints if "Content Security Policy" in complaint]) >= 3


def test_an_undecided_page_shows_what_to_do_and_a_command_to_copy(context: BrowserContext, tmp_path: Path) -> None:
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit = _open(context, tmp_path / "run.html", render(builders.undecided_diagnosis(), {}))
    page = visit.page
    assert page.locator(".figure").count() == 0
    assert page.locator("ul.missing li").count() == 2
    assert page.locator("h2").first.text_content() == "What cannot be told"
    button = page.get_by_role("button", name="copy nsys profile -t cuda,nvtx,osrt")
    button.click()
    expect(button).to_have_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == "nsys profile -t cuda,nvtx,osrt"
    assert visit.complaints == []
