"""`dprankdiag dashboard` as a user runs it, and the WSGI entry that does the same."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from dprankdiag.cli import main
from dprankdiag.views.whatif import render
from tests.conftest import ROOT
from tests.dashboard.whatifs import make_whatif
from tests.pipelines.test_doctor import configuration, loads, sglang_page
from tests.small_engine import SmallEngine, serve

TOOL = Path(sys.executable).with_name("dprankdiag")
EXAMPLE = ROOT / "examples" / "load-one-rank.sqlite"
SECRET = "correct horse battery"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["dashboard", *(str(argument) for argument in arguments)])


@contextmanager
def start(*arguments: object, **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start the command on a free port; give its address."""
    command: Sequence[object] = [TOOL, "dashboard", *arguments, "--port", "0"]
    child = subprocess.Popen(
        [str(part) for part in command], stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert child.stderr is not None
    try:
        for line in child.stderr:
            if found := re.search(r"dashboard at (http://\S+)", line):
                yield found[1], child
                return
        raise AssertionError(f"ended with {child.wait()}")
    finally:
        child.kill()
        child.wait()
        child.stderr.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recording_is_shown_to_this_machine_alone_until_a_signal(number: signal.Signals) -> None:
    with start(EXAMPLE, HOST="0.0.0.0", DASH_DEBUG="true") as (address, child):
        assert address.startswith("http://127.0.0.1:")
        answer = httpx.get(address)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "load.context" in httpx.get(f"{address}/download/diagnosis.md").text
        assert httpx.get(address, headers={"Host": "evil.example"}).status_code == 403
        port = int(address.rpartition(":")[2])
        with socket.socket() as other, pytest.raises(OSError, match="refused"):
            other.connect(("127.0.0.2", port))
        child.send_signal(number)
        assert child.wait(20) == 0


@pytest.mark.slow
def test_several_bundles_are_opened_to_be_compared(tmp_path: Path) -> None:
    files = [tmp_path / folder / "run.dprank" for folder in ("before", "after")]
    for file in files:
        file.parent.mkdir()
        assert CliRunner().invoke(main, ["analyze", str(EXAMPLE), "-o", str(file), "--quiet"]).exit_code == 0
    with start(*files) as (address, child):
        assert "load.context" in httpx.get(f"{address}/download/diagnosis.md").text
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 0
    result = run(files[0], EXAMPLE)
    assert result.exit_code == 2
    told = f"bundles are shown with bundles only; save the others as bundles: dprankdiag analyze {EXAMPLE} -o X.dprank"
    assert told in result.stderr


@pytest.mark.slow
def test_a_what_if_is_opened_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    path.write_text(render(make_whatif(), "json"))
    with start(path) as (address, _):
        assert "see the page What-if" in httpx.get(f"{address}/download/diagnosis.md").text


@pytest.mark.slow
def test_a_running_engine_is_asked_and_what_it_tells_is_kept(tmp_path: Path) -> None:
    pages = {"/metrics": [sglang_page(range(4))], "/v1/loads": [loads(range(4))], "/server_info": [configuration()]}
    with serve(SmallEngine(pages)) as engine, start(engine, "-o", tmp_path / "day.dprec") as (address, child):
        for _ in range(100):
            answer = httpx.get(f"{address}/download/diagnosis.json")
            if answer.status_code == 200 and answer.json()["ranks"]:
                break
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.2)
        assert len(answer.json()["ranks"]) == 4
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 0
    assert (tmp_path / "day.dprec").stat().st_size > 0


@pytest.mark.slow
def test_others_need_the_token_to_view(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    with start(EXAMPLE, "--host", "0.0.0.0", "--allow-remote", "--view-token-file", path) as (address, _):
        local = address.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(local).status_code == 401
        assert httpx.get(local, headers={"Authorization": f"Bearer {SECRET}"}).status_code == 200


def test_a_server_for_others_is_refused_without_a_token() -> None:
    result = run(EXAMPLE, "--host", "0.0.0.0")
    assert (result.exit_code, "--allow-remote and a token" in result.stderr) == (2, True)
    result = run(EXAMPLE, "--host", "0.0.0.0", "--allow-remote")
    assert (result.exit_code, "--view-token-file" in result.stderr) == (2, True)


def test_a_token_on_the_command_line_is_not_repeated() -> None:
    result = run(EXAMPLE, "--allow-remote", "--view-token-env", SECRET)
    assert result.exit_code == 2
    assert "horse" not in result.stderr


@pytest.mark.parametrize(
    "arguments, told",
    [
        ([ROOT / "nowhere" / "a.sqlite"], f"no such file or folder; ls -a {ROOT}\n"),
        (["127.0.0.1:30000"], "of a running engine name the address: http://127.0.0.1:30000"),
        ([EXAMPLE, "http://127.0.0.1:1"], "cannot be shown together"),
        (["http://127.0.0.1:1", "http://127.0.0.1:1"], "named twice"),
        ([EXAMPLE, "-o", "x.dprec"], "-o: keeps what running engines tell"),
        (["http://127.0.0.1:1", "-o", "/nowhere/x.dprec"], "name a file in a folder that is there"),
        (["http://127.0.0.1:1", "--window", "1", "--interval", "5"], "--window: shorter than --interval"),
        ([EXAMPLE, "--port", "70000"], "--port"),
        ([EXAMPLE, "--host", "192.0.2.1", "--allow-remote"], "--host takes an address of this machine"),
        ([EXAMPLE, "--host", "no-name.invalid", "--allow-remote"], "--host takes an address of this machine"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_line(
    arguments: list[object], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIEW", SECRET)
    result = run(*arguments, "--view-token-env", "VIEW")
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_taken_port_is_said_so_before_anything_is_read() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = run("nowhere.sqlite", "--port", taken.getsockname()[1])
    assert result.exit_code == 2
    assert "(Address already in use); choose another with --port; 0 takes a free one" in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_wsgi_entry_takes_the_same_words_as_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("DPRANKDIAG_DASHBOARD", f"{EXAMPLE} --allow-host board.example")
    from dashboards.app import make_application

    client = make_application().test_client()
    assert client.get("/", headers={"Host": "board.example"}).status_code == 200
    assert client.get("/", headers={"Host": "other.example"}).status_code == 403
