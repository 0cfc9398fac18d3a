"""`dprankdiag export` as a user runs it, and its page over a real socket."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dprankdiag.cli.exporter import Health, find_late_s, serve_metrics
from dprankdiag.views.metrics import DiagnosisMetrics
from tests import builders
from tests.cli.test_live import TOOL, engine, nobody, run, url  # noqa: F401
from tests.small_engine import SmallEngine, serve


def get(address: str, **headers: str) -> httpx.Response:
    return httpx.get(address, headers=headers, trust_env=False, timeout=30)


@contextmanager
def export(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run it on a free port; gives the process and the address of its page without the path."""
    command = [TOOL, "export", *arguments, "--interval", "100ms", "--listen", "127.0.0.1:0", "--deployment", "a"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stderr is not None
    try:
        yield child, child.stderr.readline().split(" at ")[1].split("/metrics")[0]
    finally:
        child.terminate()
        child.communicate(timeout=30)


def wait_for(address: str, words: str) -> str:
    deadline = time.monotonic() + 30
    page = ""
    while words not in page and time.monotonic() < deadline:
        page = get(address).text
        time.sleep(0.05)
    assert words in page
    return page


def test_it_serves_what_it_finds_and_how_it_is(url: str) -> None:  # noqa: F811
    with export(url) as (child, address):
        page = wait_for(f"{address}/metrics", 'dprankdiag_ranks{deployment="a",engine="default"} 4.0')
        assert {family.name for family in text_string_to_metric_families(page)} >= {"dprankdiag_status"}
        assert f'dprankdiag_target_up{{deployment="a",target="{url}"}} 1.0' in page
        health = get(f"{address}/healthz")
        assert (health.status_code, health.json()["alive"], health.json()["ready"]) == (200, True, True)
        assert get(f"{address}/readyz").status_code == 200
        assert get(f"{address}/else").status_code == 404
        assert "/healthz" in get(address).text
        opened = get(f"{address}/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert opened.headers["content-type"].startswith("application/openmetrics-text")
        assert opened.text.endswith("# EOF\n")
        assert httpx.head(f"{address}/metrics", trust_env=False).text == ""
    assert child.returncode == 0


def test_it_waits_for_targets_that_are_not_there_yet(nobody: str) -> None:  # noqa: F811
    with export(nobody) as (child, address):
        page = wait_for(f"{address}/metrics", f'dprankdiag_target_up{{deployment="a",target="{nobody}"}} 0.0')
        assert 'dprankdiag_status{deployment="a",status="inconclusive"} 1.0' in page
        assert get(f"{address}/healthz").json()["targets_without_data"] == [nobody]
        assert (get(f"{address}/healthz").status_code, get(f"{address}/readyz").status_code) == (200, 503)
        assert child.poll() is None


def test_a_target_that_comes_is_judged(engine: SmallEngine, nobody: str) -> None:  # noqa: F811
    port = int(nobody.rpartition(":")[2])
    with export(nobody, "--timeout", "200ms") as (_, address):
        wait_for(f"{address}/metrics", "} 0.0")
        with serve(engine, port=port):
            page = wait_for(f"{address}/metrics", 'dprankdiag_ranks{deployment="a",engine="default"} 4.0')
    assert f'dprankdiag_target_up{{deployment="a",target="{nobody}"}} 1.0' in page


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("http://127.0.0.1:1", "--listen", "0.0.0.0:9"), "others could reach it"),
        (("http://me:hush@127.0.0.1:1",), "holds credentials"),
        (("http://127.0.0.1:1", "--select", 'a="b"'), "none is given"),
        (("prometheus+http://127.0.0.1:1", "--select", "up"), "expected label matchers"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    result = run("export", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "hush" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_taken_port_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run("export", "http://127.0.0.1:1", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "cannot listen" in result.stderr


def test_it_is_late_after_three_ticks_at_their_longest() -> None:
    now = [0.0]
    health = Health(find_late_s(5.0, 5.0), now=lambda: now[0])
    assert health.tell()["alive"]
    now[0] = 46.0
    assert not health.tell()["alive"]
    health.note_tick(judged=True)
    now[0] = 90.0
    assert health.tell() == {
        "alive": True,
        "ready": True,
        "ticks": 1,
        "tick_age_seconds": 44.0,
        "verdict_age_seconds": 44.0,
        "targets_without_data": [],
    }
    health.note_tick(judged=False, silent=("http://a:1",))
    now[0] = 92.0
    assert (health.tell()["alive"], health.tell()["ready"]) == (True, False)


def test_a_stuck_loop_fails_the_check() -> None:
    health = Health(0.0)
    health.note_tick(judged=True)
    with serve_metrics(DiagnosisMetrics("a"), health, "127.0.0.1", 0) as port:
        time.sleep(0.01)
        told = get(f"http://127.0.0.1:{port}/healthz")
        assert (told.status_code, json.loads(told.text)["alive"]) == (503, False)


def test_a_client_that_says_nothing_holds_nobody_up() -> None:
    metrics = DiagnosisMetrics("a")
    metrics.show(builders.diagnosis(), {})
    with (
        serve_metrics(metrics, Health(60.0), "127.0.0.1", 0) as port,
        socket.create_connection(("127.0.0.1", port)),
    ):
        assert "dprankdiag_finding_active" in get(f"http://127.0.0.1:{port}/metrics").text
