"""What the exit code says, and that the same question gets the same answer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dprankdiag.pipelines.diagnose import diagnose
from tests.proof.command import run_here, run_process
from tests.proof.filler import fill
from tests.proof.scenario import Scenario, attention_of, play
from tests.proof.verdicts import verdict

CAPTURE = "real-nvtx-4proc-2022.4.2.sqlite"


@pytest.fixture
def capture(captures: Path) -> Path:
    return captures / CAPTURE


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("restarted at noon\n")
    return path


def test_a_finding_is_an_answer_and_exits_0(capture: Path) -> None:
    answer = run_process("analyze", capture)
    assert (answer.code, answer.stderr) == (0, "")
    assert "rank 2" in answer.stdout


def test_a_named_file_of_unknown_kind_among_good_ones_exits_3(capture: Path, notes: Path) -> None:
    for order in ([capture, notes], [notes, capture]):
        answer = run_here("analyze", *order)
        assert answer.is_refusal
        assert notes.name in answer.stderr


def test_in_a_folder_it_is_skipped_with_a_note_and_exits_0(capture: Path, notes: Path) -> None:
    shutil.copy(capture, notes.parent)
    answer = run_here("analyze", notes.parent, "--format", "json")
    assert answer.code == 0
    assert answer.stderr.count("\n") == 1
    assert f"{notes.name}: skipped" in answer.stderr
    said = json.loads(answer.stdout)
    assert {Path(source["path"]).name: source["status"] for source in said["inputs"]} == {
        CAPTURE: "used",
        notes.name: "skipped",
    }
    assert len(said["findings"]) == 2


def test_a_damaged_file_among_good_ones_is_warned_of_and_exits_0(capture: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(capture.read_bytes()[:300_000])
    answer = run_here("analyze", capture, cut, "--format", "json")
    assert answer.code == 0
    assert "cut.sqlite: unused" in answer.stderr
    assert len(json.loads(answer.stdout)["findings"]) == 2


def test_a_folder_without_any_input_exits_3(notes: Path, tmp_path: Path) -> None:
    assert run_here("analyze", notes.parent).is_refusal
    (tmp_path / "bare").mkdir()
    assert run_here("analyze", tmp_path / "bare").is_refusal


def test_fail_on_decides_what_exits_1(capture: Path, tmp_path: Path) -> None:
    assert run_process("analyze", capture, "--fail-on", "warning").code == 1
    assert run_here("analyze", capture, "--fail-on", "inconclusive").code == 0
    even = fill(tmp_path / "even.sqlite", play(Scenario()))
    assert run_here("analyze", even, "--fail-on", "warning", "--fail-on", "inconclusive").code == 0


def test_a_path_that_does_not_exist_exits_2(capture: Path, tmp_path: Path) -> None:
    for paths in ([tmp_path / "gone.sqlite"], [capture, tmp_path / "gone.sqlite"]):
        answer = run_here("analyze", *paths)
        assert answer.code == 2
        assert (answer.stdout, answer.stderr.count("\n")) == ("", 1)
        assert "gone.sqlite" in answer.stderr


def test_the_same_recording_twice_is_refused_in_one_line(capture: Path, tmp_path: Path) -> None:
    shutil.copy(capture, tmp_path / "copy.sqlite")
    for twin in (capture, tmp_path / "copy.sqlite"):
        answer = run_here("analyze", capture, twin)
        assert answer.code in (2, 3)
        assert (answer.stdout, answer.stderr.count("\n")) == ("", 1)
        assert "twice" in answer.stderr


@pytest.mark.parametrize("arguments", [[], ["--nonsense"], ["analyze"], ["judge", "x"], ["analyze", "x", "--window=3"]])
def test_a_command_line_that_makes_no_sense_exits_2(arguments: list[str]) -> None:
    answer = run_here(*arguments)
    assert answer.code == 2
    assert answer.is_calm


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_same_question_gets_the_same_bytes(capture: Path, form: str) -> None:
    here = run_here("analyze", capture, "--format", form)
    assert here.stdout == run_here("analyze", capture, "--format", form).stdout
    assert here.stdout == run_process("analyze", capture, "--format", form).stdout


def test_ranks_renumbered_are_blamed_by_their_new_numbers(tmp_path: Path) -> None:
    events = play(Scenario(factor=attention_of(2, 2.0)))
    number = {0: 3, 1: 2, 2: 0, 3: 1}
    plain = diagnose([fill(tmp_path / "plain.sqlite", events)]).diagnosis
    renumbered = diagnose([fill(tmp_path / "renumbered.sqlite", events, number=number)]).diagnosis
    (before,), (after,) = plain.findings, renumbered.findings
    assert (before.cause, before.ranks, before.severity) == (after.cause, (2,), after.severity)
    assert after.ranks == (number[2],)
    assert after.lost_ns == pytest.approx(before.lost_ns, rel=0.01)


def test_process_ids_in_another_order_change_nothing(tmp_path: Path) -> None:
    events = play(Scenario(factor=attention_of(2, 2.0)))
    plain = diagnose([fill(tmp_path / "plain.sqlite", events)]).diagnosis
    turned = diagnose([fill(tmp_path / "turned.sqlite", events, pids={0: 909, 1: 404, 2: 707, 3: 303})]).diagnosis
    assert verdict(plain) == verdict(turned)
    assert turned.lost.total_ns == pytest.approx(plain.lost.total_ns, rel=0.01)


def test_files_named_in_another_order_give_the_same_verdict(tmp_path: Path) -> None:
    events = play(Scenario(factor=attention_of(2, 2.0)))
    paths = [
        fill(tmp_path / f"{name}.sqlite", [event for event in events if event.rank == rank])
        for rank, name in enumerate("dbca")
    ]
    verdicts = {verdict(diagnose(order).diagnosis) for order in (paths, paths[::-1], [tmp_path])}
    assert len(verdicts) == 1
    status, findings = verdicts.pop()
    assert status == "findings"
    assert {ranks for _, ranks, _ in findings} == {(2,)}
