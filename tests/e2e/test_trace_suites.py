"""A small part of every suite, on the installed command: about sixty recordings whose truth is known.

The bars are those that hold; docs/accuracy.md has the larger draws and the bars that should.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from dprankdiag.harness.answers import Outcome, class_of
from dprankdiag.harness.score import run_tasks, score_case
from dprankdiag.harness.score_tables import list_failures
from dprankdiag.harness.scoreboard import Scoreboard
from dprankdiag.harness.trace_suites import draw_suite

COMMAND = (sys.executable, "-m", "dprankdiag")
SEED = 7
CLEAR = 0.095
"""A slowdown of a tenth, as near as a drawn fault gets to it."""


def run(letter: str, count: int, kernels: int, folder: Path) -> Scoreboard:
    """Score some cases of a suite."""
    cases = draw_suite(letter, count, SEED, kernels=kernels)
    outcomes = run_tasks({case.name: partial(score_case, case, COMMAND) for case in cases}, folder / "said.jsonl")
    assert [it.facts.name for it in outcomes if it.answer.status is None] == []
    return Scoreboard(tuple(outcomes))


def has_wrong_alarm(outcome: Outcome) -> bool:
    """Tell whether an alarm has another class than the fault; `unclassified.late` claims none."""
    allowed = {class_of(outcome.facts.expected), "unclassified"}
    return any(class_of(said.cause) not in allowed for said in outcome.answer.alarms)


def test_single_faults_are_named_with_their_ranks_and_nobody_else(tmp_path: Path) -> None:
    board = run("S", 27, 40_000, tmp_path)
    clear = [it for it in board.outcomes if it.facts.slowdown_ratio >= CLEAR]
    assert len(clear) >= 12
    assert board.others_named().hits == 0
    assert [it.facts.name for it in clear if has_wrong_alarm(it)] == []
    assert [it.facts.name for it in clear if it.answer.status == "healthy"] == []
    assert sum(it.right for it in clear) >= 0.8 * len(clear), list_failures(board)


def test_nothing_is_alarmed_about_where_nothing_is_wrong(tmp_path: Path) -> None:
    board = run("H", 14, 20_000, tmp_path)
    assert board.false_alarms().hits == 0, list_failures(board)


def test_several_faults_are_told_apart(tmp_path: Path) -> None:
    board = run("C", 6, 20_000, tmp_path)
    told, right, _ = board.compound()
    assert board.others_named().hits == 0
    assert told.hits >= 0.7 * told.count, list_failures(board)
    assert right.hits >= 0.7 * right.count, list_failures(board)


def test_what_must_not_matter_changes_no_verdict(tmp_path: Path) -> None:
    board = run("T1", 1, 20_000, tmp_path)
    assert all(rate.hits == rate.count for _, rate in board.by_change()), list_failures(board)


def test_damage_never_moves_the_blame(tmp_path: Path) -> None:
    board = run("T2", 1, 20_000, tmp_path)
    assert all(rate.hits == rate.count for _, rate in board.by_change()), list_failures(board)
