"""The product beside mock engines over real sockets: one rank that holds long requests, none, and a slow GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dprankdiag.cli import main
from dprankdiag.dashboard.provider import LiveProvider
from dprankdiag.harness.mock_engine import MockEngine
from dprankdiag.harness.mock_sglang import MockSglang
from dprankdiag.harness.mock_vllm import MockVllm, open_ports, split_ports
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.pipelines.poll import Poller
from dprankdiag.pipelines.watch import Report, Watcher
from dprankdiag.store.recorder import Recorder
from dprankdiag.units import NS_PER_S
from tests.harness.served_worlds import LONG_RANK, RANKS, Clock, serve_sglang, serve_vllm
from tests.harness.test_fake_engine import ask

START_S = 8.0
TICKS = 16


@contextmanager
def poll(urls: Sequence[str], clock: Clock) -> Iterator[Poller]:
    with closing(Poller(urls, clock=lambda: round(clock() * NS_PER_S), patience_s=30.0)) as poller:
        yield poller


def watch(mocks: Sequence[MockEngine], clock: Clock, ticks: int = TICKS) -> list[Report]:
    """Watch with a tick a second of the engines' own clock."""
    watcher, reports = Watcher(10.0), []
    with poll([mock.url for mock in mocks], clock) as poller:
        for _ in range(ticks):
            reports.append(watcher.observe(poller.poll(), round(clock() * NS_PER_S)))
            clock.now_s += 1.0
    return reports


def name_findings(diagnosis: Diagnosis) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.cause, finding.ranks) for finding in diagnosis.findings]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("version", "cause"), [("0.5.9", "load.context"), ("0.5.18", "load.context"), ("0.5.23", "load.prefill")]
)
def test_watch_names_the_rank_that_gets_long_requests(version: str, cause: str) -> None:
    """Long prompts come and are held; a release that counts pairs shows that computing them makes most of these."""
    outcome, engine = serve_sglang(long=True)
    clock = Clock()
    with MockSglang(outcome, replace(engine, version=version), clock=clock, start_at_s=START_S) as mock:
        last = watch([mock], clock)[-1]
    assert name_findings(last.diagnosis) == [(cause, (LONG_RANK,))]


def test_watch_says_nothing_of_even_ranks_at_any_tick() -> None:
    clock = Clock()
    with MockSglang(*serve_sglang(long=False), clock=clock, start_at_s=START_S) as mock:
        reports = watch([mock], clock)
    assert [name_findings(report.diagnosis) for report in reports] == [[]] * TICKS
    assert all(not report.failed for report in reports)


def test_even_ranks_and_a_slow_gpu_of_vllm_read_the_same() -> None:
    told = []
    for slow in (1.0, 1.6):
        clock = Clock()
        with MockVllm(*serve_vllm(slow), clock=clock, start_at_s=START_S) as mock:
            last = watch([mock], clock)[-1]
        told.append((last.diagnosis.status, name_findings(last.diagnosis)))
    assert told[0] == told[1]
    assert told[0][1] == []


def test_the_ports_of_an_external_balancer_are_judged_as_one_engine() -> None:
    outcome, engine = serve_vllm()
    clock = Clock()
    ports, stack = open_ports(outcome, split_ports(engine), clock=clock, start_at_s=START_S)
    with stack:
        last = watch(ports, clock, ticks=4)[-1]
    assert {(rank.engine, rank.rank) for rank in last.diagnosis.ranks} == {
        (last.diagnosis.ranks[0].engine, rank) for rank in range(RANKS)
    }


def test_two_snapshots_of_metrics_and_loads_name_the_rank(tmp_path: Path) -> None:
    clock = Clock()
    with MockSglang(*serve_sglang(long=True), clock=clock, start_at_s=START_S) as mock:
        paths = []
        for moment in (0, 15):
            clock.now_s += moment
            for name, path in (("metrics.prom", "/metrics"), ("loads.json", "/v1/loads")):
                saved = tmp_path / f"{moment}-{name}"
                saved.write_bytes(ask(mock.url + path))
                paths.append(f"one@{moment}={saved}")
    result = run("analyze", *paths, "--format", "json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert [(finding["cause"], finding["ranks"]) for finding in told["findings"]] == [("load.prefill", [LONG_RANK])]


def test_a_recording_of_a_mock_names_the_rank(tmp_path: Path) -> None:
    path = tmp_path / "day.dprec"
    clock = Clock()
    with ExitStack() as stack:
        mock = stack.enter_context(MockSglang(*serve_sglang(long=True), clock=clock, start_at_s=START_S))
        recorder = stack.enter_context(Recorder(path))
        poller = stack.enter_context(poll([mock.url], clock))
        for _ in range(TICKS):
            recorder.write(poller.poll(), round(clock() * NS_PER_S))
            clock.now_s += 1.0
    told = json.loads(run("analyze", path, "--format", "json").stdout)
    assert [(finding["cause"], finding["ranks"]) for finding in told["findings"]] == [("load.prefill", [LONG_RANK])]


def test_the_commands_ask_a_mock_as_they_ask_an_engine(tmp_path: Path) -> None:
    with MockSglang(*serve_sglang(long=True), speed=10.0, start_at_s=START_S) as mock:
        doctor = run("doctor", mock.url, "--format", "json")
        record = run("record", mock.url, "-o", tmp_path / "a.dprec", "--interval", "100ms", "--duration", "300ms")
        once = run("watch", mock.url, "--once", "--interval", "700ms", "--format", "json")
    assert doctor.exit_code == record.exit_code == once.exit_code == 0
    (checkup,) = json.loads(doctor.stdout)["targets"]
    assert (checkup["engine"], checkup["version"], len(checkup["ranks"])) == ("sglang", "0.5.23", RANKS)
    assert checkup["missing_ranks"] == []
    told = json.loads(once.stdout)
    (finding,) = told["findings"]
    # In real time the seconds looked at vary: with more or fewer prompts among them.
    assert finding["cause"] in ("load.context", "load.prefill")
    assert finding["ranks"] == [LONG_RANK]


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_the_dashboard_is_given_every_rank_of_a_mock(kind: str) -> None:
    clock = Clock()
    mock: MockEngine = (
        MockSglang(*serve_sglang(long=True), clock=clock, start_at_s=START_S)
        if kind == "sglang"
        else MockVllm(*serve_vllm(), clock=clock, start_at_s=START_S)
    )
    with mock, poll([mock.url], clock) as poller:
        provider = LiveProvider("mock", poller, Watcher(10.0), interval_s=1.0, moment=lambda: round(clock() * NS_PER_S))
        for _ in range(4):
            provider.tick()
            clock.now_s += 1.0
        snapshot = provider.latest()
    assert snapshot is not None
    assert not snapshot.failures
    assert sorted(rank.rank for rank in snapshot.diagnosis.ranks) == list(range(RANKS))
