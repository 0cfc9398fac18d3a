"""The verb whatif: its inputs, outputs and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dprankdiag.cli import main
from tests.pipelines.whatifs import serve_uneven, write_log

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log") / "run.jsonl", serve_uneven(40))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["whatif", *(str(one) for one in arguments)])


def test_json_on_stdout_and_markdown_in_a_file(log: Path, tmp_path: Path) -> None:
    page = tmp_path / "told.md"
    told = run(log, "--format", "json", "-o", page, "--gpus", 8, "--fail-on", "better", "--quiet")
    assert (told.exit_code, told.stderr) == (1, "")
    document = json.loads(told.stdout)
    assert document["source"]["gpus"] == 8
    assert document["source"]["paths"] == [str(log)]
    assert page.read_text().startswith("# ")


def test_a_log_that_cannot_tell_is_answered_and_may_fail(tmp_path: Path) -> None:
    rows = [{"arrival_s": at, "input_tokens": 5, "output_tokens": 2, "rank": 0} for at in range(5)]
    path = write_log(tmp_path / "short.jsonl", rows)
    assert run(path).exit_code == 0
    assert run(path, "--fail-on", "inconclusive").exit_code == 1


@pytest.mark.parametrize(
    "name, text, code, what",
    [
        ("absent.jsonl", None, 2, "no such file"),
        ("page.prom", "up 1\n", 3, "tells of no requests"),
        ("broken.jsonl", '{"arrival_s": 1, "input_tokens": 1, "output_tokens": 1}\n{oops\n', 3, "no JSON"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, name: str, text: str | None, code: int, what: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    told = run(path)
    assert (told.exit_code, told.stdout) == (code, "")
    (line,) = [line for line in told.stderr.splitlines() if line.startswith("dprankdiag: ")]
    assert what in line


def test_an_input_is_named_once(log: Path) -> None:
    assert run(log, log).exit_code == 2


def test_an_output_of_no_known_kind_is_refused(log: Path, tmp_path: Path) -> None:
    assert run(log, "-o", tmp_path / "x.html").exit_code == 2
