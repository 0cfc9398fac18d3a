"""An hour of mock engines in a real Prometheus gives the verdicts of an hour beside the engines.

The hour is played by the engines' own clock. At every scrape both are asked: our collectors, whose answers go into a
recording, and the page, which becomes a sample in blocks of Prometheus with the moment of the scrape.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from dprankdiag.cli import main
from dprankdiag.harness.mock_scenario import serve_scenario
from dprankdiag.harness.scenarios import find_scenario
from dprankdiag.pipelines.poll import Poller
from dprankdiag.store.recorder import Recorder
from dprankdiag.units import NS_PER_S
from tests.harness.served_worlds import Clock
from tests.harness.test_fake_engine import ask
from tests.prometheus import Blocks, Server, find_tool, serve_blocks

pytestmark = pytest.mark.slow

HOUR_S, SCRAPE_S = 3600, 60
"""Prometheus scrapes once a minute unless it is told otherwise."""

EXPECTED: dict[str, list[tuple[str, list[int]]]] = {
    "even": [],
    "busy_rank": [("load.requests", [3])],
    "long_context": [("load.prefill", [2])],
    "thrash": [("load.kv_pressure", [2]), ("load.prefill", [2])],
}


@dataclass(frozen=True, slots=True)
class Hour:
    """An hour that has passed.

    Attributes:
        recordings: scenario → what was told beside its engine.
    """

    server: Server
    recordings: dict[str, Path]


class Network(httpx.BaseTransport):
    """Asks over real sockets, and remembers what came.

    Attributes:
        bodies: path → the last body.
    """

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self._sockets = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._sockets.handle_request(request)
        with closing(answer):
            body = answer.read()
        self.bodies[request.url.path] = body
        return httpx.Response(answer.status_code, content=body)

    def close(self) -> None:
        self._sockets.close()


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hour]:
    find_tool("prometheus")
    folder = tmp_path_factory.mktemp("hour")
    blocks, recordings = Blocks(), {name: folder / f"{name}.dprec" for name in EXPECTED}
    for name, recording in recordings.items():
        clock = Clock(float(int(time.time()) - HOUR_S))
        with ExitStack() as stack:
            (mock,) = stack.enter_context(serve_scenario(find_scenario(name), clock=clock, loop=True))
            recorder = stack.enter_context(Recorder(recording))
            network = Network()
            poller = Poller(
                [mock.url], transport=network, clock=lambda clock=clock: round(clock() * NS_PER_S), patience_s=30.0
            )
            stack.enter_context(closing(poller))
            for _ in range(HOUR_S // SCRAPE_S):
                clock.now_s += SCRAPE_S
                recorder.write(poller.poll(), round(clock() * NS_PER_S))
                blocks.add(network.bodies["/metrics"].decode(), clock(), job=name, instance=f"{name}:30000")
                loads = ask(f"{mock.url}/v1/loads?format=prometheus").decode()
                blocks.add(loads, clock(), job=f"{name}-loads", instance=f"{name}:30000")
    blocks.write(folder)
    with serve_blocks(folder) as server:
        yield Hour(server, recordings)


def diagnose(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["analyze", *map(str, arguments), "--format", "json"])
    assert result.exit_code == 0, result.stderr
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def sum_up(told: dict[str, Any]) -> tuple[str, list[tuple[str, list[int]]]]:
    return told["status"], [(finding["cause"], finding["ranks"]) for finding in told["findings"]]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_hour_in_prometheus_gives_the_verdict_of_the_hour_beside_the_engine(hour: Hour, name: str) -> None:
    direct = diagnose(hour.recordings[name])
    stored = diagnose(f"prometheus+{hour.server.url}", "--select", f'job=~"{name}(-loads)?"')
    assert sum_up(stored) == sum_up(direct)
    assert sum_up(stored)[1] == EXPECTED[name]
