"""What the dashboard costs that looks at 320 running ranks for ten minutes, once a second, in an open browser."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page

from dprankdiag.dashboard.history import KEPT_ROWS
from dprankdiag.dashboard.pages import PAGES
from tests.bench.commands import show_dashboard
from tests.bench.fleet import RANKS_A_NODE
from tests.bench.table import Figure
from tests.conftest import ROOT
from tests.views.browser import find_browser, start_browser

pytestmark = pytest.mark.bench

NODES = 40
RANKS = NODES * RANKS_A_NODE
FULL_TICKS = KEPT_ROWS // RANKS + 5
"""By then the history of so many ranks is full, and memory has to be flat."""

MEASURED_S = 300
MOST_S = 1200
LOOKS_S = 20
"""The browser goes on to the next page after so many seconds."""

WATCH = """() => {
  window.ages = [];
  let last = null;
  new MutationObserver(() => {
    const moment = document.getElementById("moment");
    if (!moment || moment.dataset.atMs === last) return;
    last = moment.dataset.atMs;
    requestAnimationFrame(() => setTimeout(() => window.ages.push([location.pathname, Date.now() - Number(last)])));
  }).observe(document, {subtree: true, childList: true, attributes: true, attributeFilter: ["data-at-ms"]});
}"""
"""Note how old each new moment is once it is drawn, ms; both clocks are of this machine."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the dashboard had used and asked at a moment."""

    at_s: float
    cpu_s: float
    rss_bytes: int
    ticks: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """The deployment, in a process of its own."""

    process: subprocess.Popen[str]
    address: str

    def count(self) -> int:
        """Ask how often it was asked."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self._read())

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def run_fleet() -> Iterator[Fleet]:
    """Run the deployment."""
    command = [sys.executable, "-m", "tests.bench.fleet", str(NODES), str(MOST_S + 120)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            yield Fleet(process, process.stdout.readline().strip())
        finally:
            process.kill()


@contextmanager
def run_dashboard(targets: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Run the dashboard as it is installed; gives its address and its process."""
    with subprocess.Popen(show_dashboard(targets), stderr=subprocess.PIPE, text=True) as dashboard:
        assert dashboard.stderr is not None
        try:
            yield dashboard.stderr.readline().split()[2], dashboard.pid
        finally:
            dashboard.terminate()


def take_sample(process: int, ticks: int) -> Sample:
    """Read what a process uses."""
    spent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(spent[11]) + int(spent[12])) / os.sysconf("SC_CLK_TCK")
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return Sample(time.monotonic(), cpu_s, pages * os.sysconf("SC_PAGE_SIZE"), ticks)


def look_around(page: Page, address: str, process: int, fleet: Fleet) -> list[Sample]:
    """Go from page to page until memory was measured long enough; gives a sample a second."""
    page.goto(address)
    page.locator("#moment").wait_for()
    page.evaluate(WATCH)
    samples: list[Sample] = []
    began_s = time.monotonic()
    full_s: float | None = None
    while time.monotonic() < min(began_s + MOST_S, (full_s or math.inf) + MEASURED_S):
        if len(samples) % LOOKS_S == 0:
            title = PAGES[len(samples) // LOOKS_S % len(PAGES)].title
            page.get_by_role("link", name=title, exact=True).first.click()
        page.wait_for_timeout(1000)
        samples.append(take_sample(process, fleet.count()))
        if full_s is None and samples[-1].ticks >= FULL_TICKS:
            full_s = time.monotonic()
    return samples


def test_ten_minutes_of_many_ranks_leave_memory_flat_and_miss_no_tick(figures: list[Figure]) -> None:
    found = find_browser()
    if found is None:
        pytest.skip("no Chromium on this machine; on Debian: apt-get install chromium")
    with run_fleet() as fleet, start_browser(found) as browser:
        targets = [f"{fleet.address}/node-{node}" for node in range(NODES)]
        with run_dashboard(targets) as (address, process):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            samples = look_around(page, address, process, fleet)
            ages = page.evaluate("window.ages")
    by_page: defaultdict[str, list[float]] = defaultdict(list)
    for path, age in ages:
        by_page[path].append(age / 1000)
    at_s = np.array([sample.at_s for sample in samples]) - samples[0].at_s
    rss = np.array([sample.rss_bytes for sample in samples]) / 2**20
    cpu = np.array([sample.cpu_s for sample in samples])
    ticks = np.array([sample.ticks for sample in samples])
    late = at_s >= at_s[-1] - MEASURED_S
    lasted = float(at_s[-1])
    slope = float(np.polyfit(at_s[late], rss[late], 1)[0])
    held = float(np.median(rss[late]))
    for begin in range(0, int(lasted), 60):
        here = (at_s >= begin) & (at_s < begin + 60)
        used = np.ptp(cpu[here]) / max(np.ptp(ticks[here]), 1)
        print(f"{begin:5} s: {np.median(rss[here]):6.1f} MiB, {np.ptp(ticks[here])} ticks, CPU of each {used:.2f} s")
    print({path: f"{len(one)} × {statistics.median(one):.2f} s" for path, one in by_page.items()}, os.getloadavg())
    how = f"`dashboard` of {NODES} targets for {lasted:.0f} s, a tick a second, Chromium open on each page in turn"
    measured = [
        Figure(
            "dashboard, ticks missed of 320 ranks",
            100 * max(1 - float(np.ptp(ticks)) / lasted, 0.0),
            2.0,
            how,
            unit="%",
        ),
        Figure(
            "dashboard, CPU, a tick of 320 ranks and its page",
            float(np.ptp(cpu[late]) / max(np.ptp(ticks[late]), 1)),
            1.0,
            f"the same; all of the process, last {MEASURED_S} s",
            unit="s",
        ),
        Figure("dashboard, memory of 320 ranks", held, 512, f"the same; median of the last {MEASURED_S} s", unit="MiB"),
        Figure(
            "dashboard, growth of that memory",
            100 * slope * MEASURED_S / held,
            2.0,
            f"the same; slope of the last {MEASURED_S} s times their length",
            unit="%",
        ),
        Figure(
            "dashboard, tick to screen, slowest page",
            max(statistics.median(one) for one in by_page.values()),
            2.5,
            "the same; from the moment of the tick until the page is drawn, median of each page",
            unit="s",
        ),
    ]
    figures += measured
    for figure in measured:
        assert figure.holds, figure.row()
