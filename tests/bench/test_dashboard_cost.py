"""How soon the dashboard shows a large recording, in a real browser."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from dprankdiag.dashboard.app import create_app
from dprankdiag.dashboard.provider import OfflineProvider, show_saved
from dprankdiag.dashboard.serve import serve
from dprankdiag.model.schema import Columns
from tests import builders
from tests.bench.table import Figure
from tests.views.browser import find_browser, start_browser
from tests.views.results import make_tables

pytestmark = pytest.mark.bench

RANKS, STEPS, LONG = 64, 2000, 20_000
ZOOM = """async () => {
  const graph = document.querySelector(".js-plotly-plot");
  const times = [];
  for (let turn = 0; turn < 7; turn++) {
    const began = performance.now();
    await Plotly.relayout(graph, {"xaxis.range": [100 + turn, 400 + turn]});
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    times.push(performance.now() - began);
  }
  return times;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = find_browser()
    if found is None:
        pytest.skip("no Chromium on this machine; on Debian: apt-get install chromium")
    with start_browser(found) as browser:
        yield browser


def make_provider(n_steps: int) -> OfflineProvider:
    """Make a saved diagnosis of many ranks and steps; only its size is like a real one."""
    small = dict(make_tables(n_ranks=RANKS, layers=16))
    chance = np.random.default_rng(1)
    ids = {
        "group": np.zeros(RANKS * n_steps),
        "step": np.repeat(np.arange(n_steps), RANKS),
        "rank": np.tile(np.arange(RANKS), n_steps),
    }
    rows: Columns = {
        name: ids.get(name, chance.random(RANKS * n_steps) * max(float(values.mean()), 1.0)).astype(values.dtype)
        for name, values in small["rank_steps"].items()
    }
    length = int(small["steps"]["end_ns"][0] - small["steps"]["start_ns"][0])
    number = np.arange(n_steps, dtype=np.int64)
    moments = {"step": number, "start_ns": number * length, "end_ns": (number + 1) * length}
    steps = {name: moments.get(name, 0 * number).astype(values.dtype) for name, values in small["steps"].items()}
    members: Columns = {
        "group": np.zeros(RANKS, np.int16),
        "rank": np.arange(RANKS, dtype=np.int32),
        "engine": np.array(["default"] * RANKS, object),
    }
    tables = {**small, "rank_steps": rows, "steps": steps, "members": members}
    ranks = tuple(builders.rank(number) for number in range(RANKS))
    return show_saved("large", builders.diagnosis(ranks=ranks), tables)


def time_meetings(page: Page, address: str) -> float:
    """Return the seconds from a click on a link to another meeting until its kernels show."""
    page.goto(f"{address}/timeline")
    chosen, links = page.locator("#kernels strong"), page.locator("#kernels a.stay")
    chosen.wait_for()
    times = []
    for turn in range(6):
        before = chosen.text_content()
        began = time.perf_counter()
        links.nth(2 if turn % 2 else 0).click()
        page.wait_for_function("old => document.querySelector('#kernels strong').textContent !== old", arg=before)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def time_page(page: Page, address: str, ready: str) -> float:
    """Return the seconds from the scripts being there until something shows; the first opening fills the cache."""
    times = []
    for _ in range(4):
        page.goto(address)
        began = time.perf_counter()
        page.locator(ready).first.wait_for()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def test_a_large_recording_is_shown_soon(browser: Browser, figures: list[Figure]) -> None:
    measured = []
    drawn = ".js-plotly-plot:has(.cartesianlayer .xy)"
    for n_steps in (STEPS, LONG):
        how = f"{RANKS} ranks × {n_steps:,} steps, Chromium, median of 3"
        with serve(create_app(make_provider(n_steps))) as address:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            verdict = time_page(page, address, "#page article.card")
            waits = time_page(page, f"{address}/waiting", drawn)
            meeting = time_meetings(page, address)
            page.goto(f"{address}/waiting")
            page.locator(drawn).first.wait_for()
            zoom = statistics.median(page.evaluate(ZOOM)[1:]) / 1000
            page.close()
        measured += [
            Figure("dashboard, verdict on screen once scripts are there", verdict, 2.0, how, unit="s"),
            Figure("dashboard, heat map of waits on screen", waits, 2.0 if n_steps == STEPS else 4.0, how, unit="s"),
            Figure("dashboard, kernels of another meeting on screen", meeting, 0.3, how, unit="s"),
            Figure("dashboard, zoom into the heat map", zoom, 0.3, how, unit="s"),
        ]
    figures += measured
    for figure in measured:
        assert figure.holds, figure.row()
