"""`dprankdiag harness`: lists, makes and scores; what it writes is what the harness knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from dprankdiag.cli import harness
from dprankdiag.harness.scenarios import SCENARIOS
from dprankdiag.harness.suites import WORLDS
from dprankdiag.harness.trace_suites import SUITES

Run = Callable[..., Result]


def test_worlds_and_suites_are_listed_with_their_truth(run: Run) -> None:
    listed = json.loads(run("harness", "list", "--json").stdout)
    assert {world["name"] for world in listed["worlds"]} == set(WORLDS)
    assert {suite["suite"] for suite in listed["suites"]} == set(SUITES)
    slow = next(world for world in listed["worlds"] if world["name"] == "slow_gpu")
    assert (slow["truths"][0]["cause"], slow["truths"][0]["ranks"]) == ("single_point.gpu", [2])
    text = run("harness", "list").stdout
    assert "single_point.gpu" in text
    assert "suite" in text


def test_a_named_world_is_made_scored_and_not_asked_about_again(run: Run, tmp_path: Path) -> None:
    made = run("harness", "make", "load_context", "-o", tmp_path)
    assert made.exit_code == 0
    assert f"harness score {tmp_path}" in made.stderr
    assert (tmp_path / "load_context" / "recording" / "load_context.sqlite").exists()
    assert json.loads((tmp_path / "load_context" / "truth.json").read_text())["facts"]["truths"][0]["ranks"] == [3]
    first = json.loads(run("harness", "score", tmp_path, "--json").stdout)
    assert [(case["name"], case["right"]) for case in first["cases"]] == [("load_context", True)]
    (tmp_path / "load_context" / "recording" / "load_context.sqlite").unlink()
    assert json.loads(run("harness", "score", tmp_path, "--json").stdout) == first


def test_what_was_said_of_a_suite_is_kept_and_shown_again(run: Run, tmp_path: Path) -> None:
    drawn = ("--count", 2, "--seed", 3, "--kernels", 4000)
    told = run("harness", "score", "H", *drawn, "-o", tmp_path)
    assert told.exit_code == 0
    assert "false alarms" in told.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["H-2-3-4000-nsys-fixed.jsonl"]
    assert run("harness", "score", tmp_path).stdout == told.stdout


def test_one_case_of_a_draw_can_be_made_alone(run: Run, tmp_path: Path) -> None:
    drawn = ("H", "-o", tmp_path, "--count", 3, "--seed", 3, "--kernels", 4000)
    assert run("harness", "make", *drawn, "--only", "0001-healthy").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["0001-healthy"]
    assert run("harness", "make", *drawn, "--only", "0009-healthy").exit_code == 2


def test_torch_traces_can_be_made(run: Run, tmp_path: Path) -> None:
    assert run("harness", "make", "healthy", "-o", tmp_path, "--format", "torch").exit_code == 0
    assert len(list((tmp_path / "healthy" / "recording").glob("*.trace.json.gz"))) == WORLDS["healthy"].ranks


def test_real_processes_are_run_recorded_and_scored(run: Run, tmp_path: Path) -> None:
    ran = run("harness", "run", "--fault", "host_burst", "--executor", "sockets", "-o", tmp_path)
    assert ran.exit_code == 0
    assert "executor sockets" in ran.stderr
    assert (tmp_path / "host_burst" / "recording" / "host_burst.sqlite").exists()
    scored = json.loads(run("harness", "score", tmp_path, "--json").stdout)
    assert [(case["name"], case["right"]) for case in scored["cases"]] == [("host_burst", True)]


@pytest.mark.parametrize(
    "arguments,said",
    [
        (("score", "nonsense"), "no suite, world or folder"),
        (("make", "nonsense", "-o", "."), "no suite, world or folder"),
        (("make", "T1", "-o", ".", "--count", 1, "--kernels", 1000, "--format", "torch"), "only exports"),
        (("score", "."), "holds no recordings"),
        (("run", "--fault", "nonsense", "-o", "."), "no fault 'nonsense'"),
    ],
)
def test_what_cannot_be_done_is_an_error_of_usage(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("harness", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_each_part_explains_itself(run: Run) -> None:
    for part in harness.command.commands:
        assert run("harness", part, "--help").exit_code == 0


def test_make_tells_the_numbers_of_a_scenario(run: Callable[..., Result]) -> None:
    told = json.loads(run("harness", "make", "burst", "--json").stdout)
    assert told["figures"]["most_on_one_rank"] == 20
    assert told["trace"]["cause"] == told["metrics"]["cause"] == "load.requests"
    assert told["trace"]["ranks"] == [7]


def test_make_writes_the_recording_of_a_scenario_with_its_truth(run: Callable[..., Result], tmp_path: Path) -> None:
    assert run("harness", "make", "even", "-o", tmp_path).exit_code == 0
    assert json.loads((tmp_path / "even" / "truth.json").read_text("utf-8"))["facts"]["truths"] == []
    assert list((tmp_path / "even" / "recording").glob("*.sqlite"))


@pytest.mark.parametrize(
    ("asked", "mend"),
    [
        (["S", "--json"], "--json tells of one scenario"),
        (["scenarios", "--json"], "--json tells of one scenario"),
        (["burst"], "nowhere to write to"),
    ],
)
def test_make_says_what_is_missing(asked: list[str], mend: str, run: Callable[..., Result]) -> None:
    result = run("harness", "make", *asked)
    assert result.exit_code == 2
    assert mend in result.stderr


def test_list_names_the_scenarios(run: Callable[..., Result]) -> None:
    shown = run("harness", "list").stdout
    assert all(it.title in shown for it in SCENARIOS.values())
