"""Engines in a Prometheus, watched and recorded: ticks come more often than scrapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dprankdiag.collectors.http import Access
from dprankdiag.model.ledgers import LedgerAnswer, NoData
from dprankdiag.pipelines.ledgers import diagnose_view, view_whole
from dprankdiag.pipelines.poll import Poller
from dprankdiag.pipelines.record import record
from dprankdiag.pipelines.recordings import read_recorded_file
from dprankdiag.pipelines.snapshots import diagnose_ledger_files
from dprankdiag.pipelines.watch import Report, Watcher
from dprankdiag.store.first_time import FirstTime
from dprankdiag.store.recorder import Recorder
from dprankdiag.store.recording import read_recording
from dprankdiag.units import NS_PER_S
from tests.e2e.live_pages import Page, read_page
from tests.stored import START_S, SmallPrometheus

SCRAPE_S = 15


@pytest.fixture
def page(fixtures: Path) -> Page:
    folder = fixtures / "sglang-0.5.23" / "count-skew"
    return read_page(folder / "metrics_t0.prom", folder / "metrics_t1.prom")


class World:
    """An engine that is scraped every 15 s; a tick asks the server."""

    def __init__(self, page: Page) -> None:
        self.server = SmallPrometheus()
        self.page = page
        self.scraped_s = START_S - 20 * SCRAPE_S

    def go_to(self, at_s: float, until_s: float = float("inf")) -> None:
        self.server.now_s = START_S + at_s
        while self.scraped_s <= min(self.server.now_s, START_S + until_s):
            self.server.scrape(
                self.page.render(self.scraped_s - START_S + 3600), self.scraped_s, job="e", instance="10.0.0.1:1"
            )
            self.scraped_s += SCRAPE_S


@pytest.fixture
def world(page: Page) -> World:
    return World(page)


@pytest.fixture
def poller(world: World) -> Iterator[Poller]:
    target = "prometheus+http://p:9090"
    with closing(Poller([target], Access(reply_s=60.0), transport=world.server.transport(), clock=lambda: 7)) as told:
        yield told


def watch(world: World, poller: Poller, ticks: int, step_s: float = 5.0, until_s: float = float("inf")) -> list[Report]:
    watcher, reports = Watcher(15.0), []
    for number in range(ticks):
        world.go_to(number * step_s, until_s)
        reports.append(watcher.observe(poller.poll(), round(world.server.now_s * NS_PER_S)))
    return reports


def name(report: Report) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.cause, finding.ranks) for finding in report.diagnosis.findings]


def test_a_finding_is_named_at_the_second_scrape_and_not_at_the_second_tick(world: World, poller: Poller) -> None:
    reports = watch(world, poller, 6)
    assert [bool(name(report)) for report in reports] == [False, False, False, True, True, True]
    assert name(reports[-1]) == [("load.requests", (3,))]


def test_an_engine_that_is_scraped_no_more_is_not_judged_any_more(world: World, poller: Poller) -> None:
    reports = watch(world, poller, 18, until_s=15.0)
    assert name(reports[4])
    assert not reports[-1].tables
    assert reports[-1].diagnosis.status == "inconclusive"
    assert [item.reason for item in reports[-1].failed] == ["holds no fresh series of an engine"]


def test_the_first_tick_judges_what_is_stored_already(world: World, poller: Poller) -> None:
    world.go_to(0)
    report = Watcher(15.0).conclude_once(poller.poll(), round(world.server.now_s * NS_PER_S))
    assert name(report) == [("load.requests", (3,))]


def test_each_scrape_is_recorded_once_at_its_own_moment(world: World, poller: Poller, tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    with Recorder(path) as recorder:
        for number in range(10):
            world.go_to(number * 5.0)
            recorder.write(poller.poll(), round((world.server.now_s + 1) * NS_PER_S))
    told, gaps = read_recording(path, by_tick=True)
    assert gaps == ()
    stamps = [(answer.taken_ns or 0) / NS_PER_S - START_S for answer in told]
    assert stamps == [float(at) for at in range(-60, 46, SCRAPE_S)]
    diagnosis, _ = diagnose_ledger_files([read_recorded_file(path)])
    assert [(finding.cause, finding.ranks) for finding in diagnosis.findings] == [("load.requests", (3,))]
    assert diagnosis.time.end_ns == round((START_S + 45) * NS_PER_S)


def test_what_is_counted_as_recorded_is_what_is_new(world: World, poller: Poller) -> None:
    moment = [0.0]

    def wait(seconds: float) -> bool:
        moment[0] += seconds
        return moment[0] > 20

    def poll() -> list[LedgerAnswer | NoData]:
        world.go_to(moment[0])
        return poller.poll()

    done = record(poll, lambda told, at_ns: None, wait, interval_s=5.0, now=lambda: moment[0])
    assert (done.ticks, done.answers) == (5, 6)


def test_only_samples_of_servers_are_left_out_when_they_come_again(world: World, poller: Poller) -> None:
    world.go_to(0)
    told = poller.poll()
    first = FirstTime()
    asked = LedgerAnswer("sglang-loads", "http://a/v1/loads", "sglang", taken_ns=5)
    assert first.pick([*told, asked]) == [*told, asked]
    assert first.pick([*told, asked]) == [asked]


def test_an_engine_keeps_its_name_when_another_comes(world: World, poller: Poller, page: Page) -> None:
    watcher = Watcher(15.0)
    names = []
    for number in range(12):
        world.go_to(number * 15.0)
        if 4 <= number < 8:
            world.server.scrape(page.render(3600 + number * 15.0), world.server.now_s, job="f", instance="10.0.0.2:1")
        report = watcher.observe(poller.poll(), round(world.server.now_s * NS_PER_S))
        names.append(sorted({rank.engine for rank in report.diagnosis.ranks}))
    assert names[0] == names[-1] == ["default"]
    assert ["default", "f"] in names
    assert all("default" in told for told in names)


def test_views_of_stored_engines_are_those_of_engines(world: World, poller: Poller) -> None:
    from dprankdiag.pipelines.live import join_live

    world.go_to(0)
    (ledger,) = join_live([one for one in poller.poll() if isinstance(one, LedgerAnswer)])
    assert ledger.seconds is not None
    assert ledger.seconds.tolist() == [0.0, 15.0, 30.0, 45.0, 60.0]
    assert [finding.cause for finding in diagnose_view(view_whole(ledger)).findings] == ["load.requests"]
