"""`dprankdiag harness serve`, as a user runs it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

from dprankdiag.cli import main


def test_it_serves_until_it_is_told_to_stop_and_frees_its_port(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dprankdiag", "harness", "serve", "even", "--speed", "0.05"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stderr is not None
    try:
        first, second = child.stderr.readline(), child.stderr.readline()
        url = re.search(r"http://127\.0\.0\.1:(\d+)", first)
        assert url is not None, first
        assert re.fullmatch(r"sglang 0\.5\.23, 8 ranks at \S+, busy for \d+ s\n", first)
        assert second == f"next: dprankdiag watch {url[0]} (Ctrl-C here ends it)\n"
        with urlopen(f"{url[0]}/v1/loads", timeout=10) as reply:
            assert len(json.load(reply)["loads"]) == 8
        wanted = json.dumps({"output_dir": str(tmp_path), "num_steps": 5}).encode()
        with urlopen(Request(f"{url[0]}/start_profile", wanted, method="POST"), timeout=30) as reply:
            assert reply.status == 200
        assert len(list(tmp_path.glob("*-TP-*-DP-*-EP-*.trace.json.gz"))) == 8
    finally:
        child.send_signal(signal.SIGINT)
        stdout, _ = child.communicate(timeout=30)
    assert (child.returncode, stdout) == (0, "")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(url[1])), timeout=5)


def test_a_release_may_be_chosen_and_each_engine_of_a_split_has_its_port() -> None:
    from dprankdiag.harness.mock_scenario import serve_scenario
    from dprankdiag.harness.scenarios import find_scenario

    with serve_scenario(find_scenario("rooms"), release="0.5.18") as mocks:
        assert [(mock.engine.role, mock.engine.version) for mock in mocks] == [
            ("prefill", "0.5.18"),
            ("decode", "0.5.18"),
        ]
        assert len({mock.url for mock in mocks}) == 2


@pytest.mark.parametrize("arguments", [["nobody"], ["even", "--speed", "0"], ["even", "--port", "-1"]])
def test_what_cannot_be_served_is_an_error_of_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, ["harness", "serve", *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""


def test_a_port_that_is_taken_is_an_error_of_usage() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = CliRunner().invoke(main, ["harness", "serve", "even", "--port", str(taken.getsockname()[1])])
    assert result.exit_code == 2
    assert "in use" in result.stderr
