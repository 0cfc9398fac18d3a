"""Cases are made, asked about and kept; the command is judged by what it prints, and by nothing else."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from dprankdiag.harness.answers import Outcome, read_outcomes
from dprankdiag.harness.cases import Case
from dprankdiag.harness.faults import load_context, slow_gpu
from dprankdiag.harness.score import Rate, ask_about, find_made, make_case, run_tasks, score_case
from dprankdiag.harness.worlds import World

TINY = Case("tiny", World(seed=1, ranks=2, steps=4, layers=1, lean=True))
SLOW = Case("slow", World(seed=1, ranks=4, steps=6, layers=2, faults=(slow_gpu(1, 1.5),)))


def write_command(folder: Path, answer: str, code: int = 0) -> tuple[str, str]:
    """Make a program that prints one answer, whatever it is asked, and counts how often that was."""
    script = folder / "answer.py"
    script.write_text(
        f"import pathlib, sys\nassert sys.argv[1] == 'analyze' and sys.argv[-2:] == ['--format', 'json']\n"
        f"with pathlib.Path({str(folder / 'asked')!r}).open('a') as asked:\n    print(*sys.argv[2:-2], file=asked)\n"
        f"print({answer!r})\nprint('because', file=sys.stderr)\nsys.exit({code})\n"
    )
    return (sys.executable, str(script))


def list_asked(folder: Path) -> list[str]:
    """List the file names that the program was asked about, a line a call."""
    return [" ".join(Path(word).name for word in line.split()) for line in (folder / "asked").read_text().splitlines()]


HEALTHY = '{"status": "healthy", "findings": []}'


@pytest.mark.parametrize(
    "hits,count,low,high", [(8, 10, 0.490, 0.943), (0, 20, 0.0, 0.161), (20, 20, 0.839, 1.0), (0, 0, 0.0, 1.0)]
)
def test_bounds_of_a_rate_are_wilsons(hits: int, count: int, low: float, high: float) -> None:
    assert Rate(hits, count).bounds == pytest.approx((low, high), abs=1e-3)


def test_what_is_made_can_be_found_and_asked_about(tmp_path: Path) -> None:
    made = make_case(SLOW, tmp_path / "made" / "slow")
    assert find_made(tmp_path / "made") == {tmp_path / "made" / "slow": made}
    outcome = ask_about(tmp_path / "made" / "slow", made, write_command(tmp_path, HEALTHY))
    assert list_asked(tmp_path) == ["slow.sqlite"]
    assert (outcome.facts.truths[0].cause, outcome.facts.truths[0].ranks) == ("single_point.gpu", (1,))
    assert not outcome.right_cause


def test_a_changed_copy_is_asked_about_apart(tmp_path: Path) -> None:
    case = Case("slow", SLOW.world, changes=("work lost", "meetings lost"))
    outcome = score_case(case, write_command(tmp_path, HEALTHY))
    assert len(list_asked(tmp_path)) == 3
    assert set(outcome.changed) == {"work lost", "meetings lost"}


def test_a_run_may_write_torch_traces_a_rank(tmp_path: Path) -> None:
    score_case(TINY, write_command(tmp_path, HEALTHY), "torch")
    assert len(list_asked(tmp_path)[0].split()) == TINY.world.ranks


def test_torch_traces_are_not_changed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only exports"):
        make_case(Case("slow", SLOW.world, changes=("work lost",)), tmp_path / "slow", format="torch")


def test_a_truth_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "truth.json").write_text("{}")
    with pytest.raises(ValueError, match=r"truth\.json"):
        find_made(tmp_path)


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    command, kept = write_command(tmp_path, HEALTHY), tmp_path / "run" / "said.jsonl"
    tasks = {case.name: partial(score_case, case, command) for case in (TINY, SLOW)}
    run_tasks({"tiny": tasks["tiny"]}, kept)
    with kept.open("ab") as file:
        file.write(b'{"facts": {"name": "slow", "cut')
    told: list[tuple[str, float | None]] = []
    outcomes = run_tasks(tasks, kept, progress=lambda stage, share: told.append((stage, share)))
    assert [outcome.facts.name for outcome in outcomes] == ["tiny", "slow"]
    assert list_asked(tmp_path) == ["tiny.sqlite", "slow.sqlite"]
    assert told == [("scoring 2 of 2", 1.0)]
    assert read_outcomes(kept) == outcomes


def test_several_processes_say_the_same(tmp_path: Path) -> None:
    command = write_command(tmp_path, HEALTHY)
    tasks = {case.name: partial(score_case, case, command) for case in (TINY, SLOW)}
    both = run_tasks(tasks, tmp_path / "two.jsonl", jobs=2)
    assert [outcome.facts for outcome in both] == [task().facts for task in tasks.values()]


def test_faults_are_sized_one_by_one() -> None:
    world = World(seed=3, ranks=4, steps=10, layers=3, faults=(slow_gpu(1, 1.2), load_context(3, 2.0)))
    sized = Case("both", world, slowdowns=(0.1, 0.4)).sized_world()
    assert [fault.ranks for fault in sized.faults] == [(1,), (3,)]
    assert sized.faults[1].size > world.faults[1].size


@pytest.mark.parametrize(
    "answer,code,said", [("{}", 3, "exit code 3: because"), ("hello", 0, "not JSON"), ("[1]", 0, "object")]
)
def test_a_command_that_fails_is_a_wrong_answer_with_its_reason(
    tmp_path: Path, answer: str, code: int, said: str
) -> None:
    outcome: Outcome = score_case(TINY, write_command(tmp_path, answer, code))
    assert outcome.said == "failed"
    assert not outcome.right
    assert said in outcome.answer.error


def test_a_command_that_is_not_there_is_reported(tmp_path: Path) -> None:
    outcome = score_case(TINY, (str(tmp_path / "nothing"),))
    assert "nothing" in outcome.answer.error
