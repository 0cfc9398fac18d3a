"""A real Prometheus scrapes `dprankdiag export`: our rules fire on its series, and stop when the engine is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.live_pages import read_page, serve_pages
from tests.prometheus import Server, find_tool, run_prometheus

pytestmark = pytest.mark.slow

PATIENCE_S = 90.0
OWN = {"DPRankFinding", "DPRankFindingCritical", "DPRankTargetSilent", "DPRankDiagnosisStopped", "DPRankLostTime"}


@dataclass
class Watched:
    """An engine whose requests are uneven, `export` beside it, and a Prometheus with our rules that scrapes both."""

    server: Server
    stop_engine: Callable[[], None]
    exporter: subprocess.Popen[str]


@pytest.fixture
def watched(fixtures: Path, tmp_path: Path) -> Iterator[Watched]:
    find_tool("prometheus")
    rules = tmp_path / "rules.yml"
    short = ("window=4s", "interval=1s", "hold=2s", "tick_age_s=8")
    options = [part for one in short for part in ("--set", one)]
    tool = [sys.executable, "-m", "dprankdiag"]
    subprocess.run([*tool, "rules", *options, "-o", rules], check=True)
    folder = fixtures / "sglang-0.5.23" / "count-skew"
    page = read_page(folder / "metrics_t0.prom", folder / "metrics_t1.prom")
    with ExitStack() as stack:
        engine = stack.enter_context(ExitStack())
        address = engine.enter_context(serve_pages({"e": page}))
        arguments = [f"http://{address}/e", "--interval", "1s", "--timeout", "1s", "--listen", "127.0.0.1:0"]
        exporter = subprocess.Popen([*tool, "export", *arguments], stderr=subprocess.PIPE, text=True)
        stack.callback(exporter.communicate, timeout=30)
        stack.callback(exporter.terminate)
        assert exporter.stderr is not None
        place = exporter.stderr.readline().split("//")[1].split("/")[0]
        server = stack.enter_context(run_prometheus(tmp_path, rules, {"e": ["e"]}, address, place))
        yield Watched(server, engine.close, exporter)


def wait_for(server: Server, wanted: set[tuple[str, str]]) -> None:
    deadline, firing = time.monotonic() + PATIENCE_S, set[tuple[str, str]]()
    while firing != wanted and time.monotonic() < deadline:
        time.sleep(0.5)
        firing = {one for one in server.list_firing().get("dprankdiag", set()) if one[0] in OWN}
    assert firing == wanted


def test_alerts_on_our_own_series_come_and_go_with_the_engine(watched: Watched) -> None:
    wait_for(watched.server, {("DPRankFinding", "3")})
    watched.stop_engine()
    wait_for(watched.server, {("DPRankTargetSilent", "")})
    told = watched.server.ask("query", query="dprankdiag_finding_active")["result"]
    assert told == []
    assert watched.exporter.poll() is None
