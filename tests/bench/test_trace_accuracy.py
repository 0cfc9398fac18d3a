"""How right verdicts on recordings are: suites of the harness, scored by the installed command as a user would.

A quarter of an hour on two cores. `DPRANKDIAG_SCORED` names a folder in which answers are kept, so that a stopped run
goes on; without it they pass.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dprankdiag.harness.answers import read_outcomes
from dprankdiag.harness.score_tables import render_board
from dprankdiag.harness.scoreboard import Scoreboard
from dprankdiag.harness.trace_suites import SUITES
from tests.bench.accuracy import Section, show_held, write_section, write_table

pytestmark = pytest.mark.bench

SEED, JOBS = 11, 2
DRAWS = {
    "H": ("--count", "100", "--kernels", "30000"),
    "S": ("--count", "100", "--kernels", "80000"),
    "C": ("--count", "40", "--kernels", "50000"),
    "T1": ("--count", "20", "--kernels", "30000"),
    "T2": ("--count", "10", "--kernels", "30000"),
    "R": (),
}
INTRO = """Every host call, kernel and collective of every rank, recorded as Nsight Systems exports
([what the suites hold, and how to run them](harness.md)). Ours reads files with their clocks; the simple rules beside
it are given the true time of every event."""


def test_recordings_are_judged_right(tmp_path: Path) -> None:
    folder = Path(os.environ.get("DPRANKDIAG_SCORED", tmp_path))
    commands = [["harness", "score", letter, *draw, "--seed", str(SEED), "--jobs", str(JOBS)] for letter, draw in
                DRAWS.items()]  # fmt: skip
    for command in commands:
        line = [sys.executable, "-m", "dprankdiag", *command, "-o", str(folder)]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    outcomes = [outcome for path in sorted(folder.glob("*.jsonl")) for outcome in read_outcomes(path)]
    board = Scoreboard(tuple(outcomes))
    print("\n" + render_board(board))
    write_section(Section("Recordings", INTRO, (*list_tables(board), list_commands(commands))))
    assert board.false_alarms().hits == 0
    assert board.others_named().hits <= 0.02 * len(outcomes)


def list_tables(board: Scoreboard) -> tuple[str, ...]:
    """Write the tables of the page."""
    count = {letter: sum(it.facts.suite == letter for it in board.outcomes) for letter in DRAWS}
    sizes = [(f"{100 * size:g} %", named, right) for size, named, right in board.per_slowdown()]
    figures = [(it.what, it.value, it.bar, show_held(it.holds)) for it in board.figures()]
    return (
        write_table(("suite", "cases", "holds"), [(it, n, SUITES[it].content) for it, n in count.items()]),
        write_table(("what", "measured", "bar", "holds"), figures),
        write_table(("cause", "precision", "recall"), board.per_cause()),
        write_table(("steps longer by", "named right", "findings right"), sizes),
        write_table(("changed", "verdict kept, or no other rank named"), board.by_change()),
        write_table(("rule", "exactly the culprits, from 10 %", "false alarms"), board.simple_rules()),
    )


def list_commands(commands: list[list[str]]) -> str:
    """Show the commands that measured it."""
    lines = "\n".join(f"$ dprankdiag {' '.join(command)} -o DIR" for command in commands)
    return f"```console\n{lines}\n```"
