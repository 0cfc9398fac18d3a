"""`dprankdiag harness run`: which executor is taken, what it refuses, and what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from dprankdiag.harness.run_choice import PYTHON_VARIABLE

Run = Callable[..., Result]


def test_the_model_needs_nothing_and_writes_the_same_case(run: Run, tmp_path: Path) -> None:
    ran = run("harness", "run", "--executor", "model", "--fault", "slow_link", "-o", tmp_path)
    assert ran.exit_code == 0, ran.stderr
    assert "1 written, executor model (as asked for)" in ran.stderr
    made = json.loads((tmp_path / "slow_link" / "truth.json").read_text())
    (true,) = made["facts"]["truths"]
    assert (true["cause"], true["ranks"]) == ("single_point.link", [2])
    assert all((tmp_path / "slow_link" / path).exists() for path in made["paths"])


@pytest.mark.parametrize(
    "arguments,said",
    [
        (("--executor", "sockets", "--fault", "host_contended"), "launch nothing"),
        (("--executor", "sockets", "--format", "torch"), "sockets need no torch"),
        (("--executor", "gloo", "--python", "/nowhere/python"), "/nowhere/python cannot be run"),
        (("--executor", "model", "--fault", "nonsense"), "there are healthy, long_context"),
    ],
)
def test_what_cannot_be_run_is_an_error_of_usage(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    result = run("harness", "run", *arguments, "-o", tmp_path / "ran")
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (tmp_path / "ran").exists()
