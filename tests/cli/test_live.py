"""The commands that ask running engines, as a user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from dprankdiag.cli import main
from dprankdiag.cli.exporter import read_address
from dprankdiag.errors import UsageError
from dprankdiag.store.recording import read_recording
from tests.pipelines.test_doctor import configuration, loads, sglang_page
from tests.small_engine import SmallEngine, serve

TOOL = Path(sys.executable).with_name("dprankdiag")


@pytest.fixture
def engine() -> SmallEngine:
    return SmallEngine(
        {"/metrics": [sglang_page(range(4))], "/v1/loads": [loads(range(4))], "/server_info": [configuration()]}
    )


@pytest.fixture
def url(engine: SmallEngine) -> Iterator[str]:
    with serve(engine) as address:
        yield address


@pytest.fixture
def nobody() -> str:
    """Give an address at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_record_keeps_every_tick_and_sums_up(url: str, tmp_path: Path) -> None:
    path = tmp_path / "day.dprec"
    result = run("record", url, "-o", path, "--interval", "50ms", "--duration", "200ms")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    assert re.search(r"\d ticks, .* answers of 3 interfaces, up to 4 ranks.*; .* judges it\n$", result.stderr)
    answers, gaps = read_recording(path)
    assert {answer.interface for answer in answers} == {"sglang-metrics", "sglang-loads", "sglang-server-info"}
    assert all(gap.absent for gap in gaps)
    assert b"hush" not in path.read_bytes()


def test_record_without_an_answer_is_no_input(nobody: str, tmp_path: Path) -> None:
    result = run("record", nobody, "-o", tmp_path / "a.dprec", "--interval", "20ms", "--duration", "60ms")
    assert result.exit_code == 3
    assert "dprankdiag doctor" in result.stderr
    assert result.stderr.count("no data") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_recording_cleanly(url: str, tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "a.dprec"
    command = [TOOL, "record", url, "-o", path, "--interval", "20ms"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not (path.exists() and path.stat().st_size and Path(f"{path}-wal").exists()) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    child.send_signal(number)
    stdout, stderr = child.communicate(timeout=30)
    assert child.returncode == 0, stderr
    assert stdout == ""
    assert "ticks" in stderr
    assert os.listdir(tmp_path) == ["a.dprec"]
    assert read_recording(path)[0]


def test_record_adds_to_a_recording_and_to_nothing_else(url: str, tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    for _ in range(2):
        assert run("record", url, "-o", path, "--interval", "1s", "--duration", "100ms").exit_code == 0
    assert len(read_recording(path)[0]) == 6
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    assert run("record", url, "-o", notes).exit_code == 2
    assert notes.read_text() == "mine"


def test_a_token_reaches_the_engine_and_no_output(
    engine: SmallEngine, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_KEY", "hush")
    path = tmp_path / "a.dprec"
    for arguments in (
        ("record", url, "-o", path, "--duration", "10ms"),
        ("watch", url, "--once", "--interval", "50ms"),
        ("doctor", url, "--format", "json"),
        ("capture", url),
    ):
        result = run(*arguments, "--token-env", "ENGINE_KEY")
        assert result.exit_code == 0, result.stderr
        assert "hush" not in result.stdout + result.stderr
    assert b"hush" not in path.read_bytes()
    assert {headers.get("authorization") for headers in engine.headers} == {"Bearer hush"}


@pytest.mark.parametrize("verb", ["record", "watch", "doctor", "capture"])
def test_a_token_or_a_password_on_the_command_line_is_refused_and_not_repeated(verb: str, tmp_path: Path) -> None:
    output = ("-o", tmp_path / "a.dprec") if verb == "record" else ()
    for arguments in (("http://me:hush@127.0.0.1:1",), ("http://127.0.0.1:1", "--token-env", "hush-hush")):
        result = run(verb, *arguments, *output)
        assert result.exit_code == 2
        assert "hush" not in result.stderr
        assert result.stderr.count("\n") == 1


def test_watch_once_prints_the_whole_diagnosis(url: str) -> None:
    result = run("watch", url, "--once", "--interval", "50ms", "--format", "json")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert {rank["rank"] for rank in document["ranks"]} == {0, 1, 2, 3}
    assert document["schema_version"] == 1
    assert "What each rank tells" in run("watch", url, "--once", "--interval", "50ms").stdout


def test_watch_writes_an_object_a_line_or_a_block_a_tick(url: str) -> None:
    lines = run("watch", url, "--interval", "50ms", "--duration", "150ms", "--format", "json").stdout.splitlines()
    assert 2 <= len(lines) <= 4
    assert all(json.loads(line)["status"] for line in lines)
    blocks = run("watch", url, "--interval", "50ms", "--duration", "100ms").stdout.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ inconclusive: ", line) for line in blocks)


def test_watch_fails_where_it_is_asked_to(url: str) -> None:
    assert run("watch", url, "--once", "--interval", "50ms", "--fail-on", "inconclusive").exit_code == 1
    assert run("watch", url, "--once", "--interval", "50ms", "--fail-on", "warning").exit_code == 0
    result = run("watch", url, "--interval", "50ms", "--duration", "10s", "--fail-on", "inconclusive")
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 1


def test_watch_without_an_answer_is_no_input(nobody: str) -> None:
    for how in (("--once",), ("--duration", "100ms")):
        result = run("watch", nobody, "--interval", "50ms", *how)
        assert result.exit_code == 3, how
        assert "no target told numbers" in result.stderr


def test_watch_keeps_a_recording_beside(url: str, tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    assert run("watch", url, "--once", "--interval", "50ms", "-o", path).exit_code == 0
    assert len([answer for answer in read_recording(path)[0] if answer.ranks]) == 4


def test_watch_serves_its_findings_to_prometheus(url: str) -> None:
    command = [TOOL, "watch", url, "--interval", "60s", "--listen", "127.0.0.1:0", "--deployment", "a"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stderr is not None
    assert child.stdout is not None
    try:
        said = child.stderr.readline()
        child.stdout.readline()
        address = said.split(" at ")[1].strip()
        page = httpx.get(address, trust_env=False).text
        assert 'dprankdiag_status{deployment="a",status="inconclusive"} 1.0' in page
        assert 'dprankdiag_ledger_age_seconds{deployment="a",engine="default",rank="3"} 0.0' in page
        assert "python_info" not in page
    finally:
        child.terminate()
        child.communicate(timeout=30)
    assert child.returncode == 0


def test_watch_ends_when_nobody_reads_any_more(url: str) -> None:
    script = f"set -o pipefail; {TOOL} watch {url} --interval 50ms --duration 60s | head -n 1"
    began = time.monotonic()
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 50


@pytest.mark.parametrize(
    "text, address",
    [
        (":9479", ("127.0.0.1", 9479)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:80", ("::1", 80)),
        ("9", ("127.0.0.1", 9)),
    ],
)
def test_the_port_to_listen_at_is_on_this_machine(text: str, address: tuple[str, int]) -> None:
    assert read_address(text, allow_remote=False) == address


@pytest.mark.parametrize("text", ["0.0.0.0:9", "[::]:9", "10.0.0.1:9", "example.org:9"])
def test_others_are_let_in_only_where_the_user_says_so(text: str) -> None:
    with pytest.raises(UsageError, match="others could reach it"):
        read_address(text, allow_remote=False)
    assert read_address(text, allow_remote=True)[1] == 9


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:99999"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        read_address(text, allow_remote=True)


def test_a_port_that_is_taken_is_one_line(url: str) -> None:
    result = run("watch", url, "--once", "--interval", "50ms", "--listen", url.removeprefix("http://"))
    assert result.exit_code == 2
    assert "cannot listen" in result.stderr


def test_doctor_prints_a_page_and_an_object(url: str) -> None:
    page = run("doctor", url, "--versions")
    assert page.exit_code == 0
    for part in ("SGLang 0.5.23", "4 DP ranks", "Interfaces", "Can be judged", "Versions", "httpx"):
        assert part in page.stdout
    document = json.loads(run("doctor", url, "--format", "json").stdout)
    (target,) = document["targets"]
    assert target["ranks"] == [0, 1, 2, 3]
    assert document["versions"]["Python"]
    assert {"cause", "answer", "text", "get_it_with"} == set(target["causes"][0])


def test_doctor_of_nothing_is_no_input_and_of_something_is_a_warning(url: str, nobody: str) -> None:
    alone = run("doctor", nobody)
    assert alone.exit_code == 3
    assert "nothing answered" in alone.stderr
    both = run("doctor", url, nobody)
    assert both.exit_code == 0
    assert f"warning: {nobody}: nothing answered" in both.stderr


def test_capture_prints_lines_and_starts_nothing(engine: SmallEngine, url: str) -> None:
    result = run("capture", url, "--steps", 12)
    assert result.exit_code == 0
    assert f"curl -fsS -X POST {url}/start_profile" in result.stdout
    assert '"num_steps": 12' in result.stdout
    assert not [path for path in engine.asked if "profile" in path]


def test_capture_of_an_engine_that_cannot_be_asked_takes_its_name(nobody: str) -> None:
    assert run("capture", nobody).exit_code == 3
    result = run("capture", nobody, "--engine", "vllm", "--format", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["plans"][0]["assumed"] is True


def test_a_target_given_twice_is_refused(url: str, tmp_path: Path) -> None:
    arguments: Sequence[tuple[object, ...]] = (
        ("record", url, url, "-o", tmp_path / "a.dprec"),
        ("watch", url, url, "--once"),
        ("doctor", url, url),
    )
    for given in arguments:
        assert run(*given).exit_code == 2
