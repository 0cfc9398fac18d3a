"""What recordings verdicts are measured on, and how what came out is laid out on the page."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from dprankdiag.harness.answers import read_outcomes
from dprankdiag.harness.score import Rate, run_tasks, score_case
from dprankdiag.harness.scoreboard import Figure, Scoreboard
from dprankdiag.harness.trace_suites import SUITES, draw_suite
from dprankdiag.harness.world import Physics
from tests.bench.accuracy import show_held
from tests.bench.table import write_table

SEED, JOBS = 11, 2
FITTED_ON = ("fixed", "roofline")
"""The physics that confidence was fitted on (`catalog/confidence.toml`); another one tests it."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How much is drawn of a suite; None for all of a fixed list."""

    suite: str
    count: int | None = None
    kernels: int | None = None

    def list_options(self, physics: str) -> list[str]:
        """Write it as options of the command."""
        given = {"count": self.count, "kernels": self.kernels, "seed": SEED, "jobs": JOBS}
        shown = given if physics == "fixed" else given | {"physics": physics}
        return [text for name, value in shown.items() if value is not None for text in (f"--{name}", str(value))]


DRAWS = (
    Draw("H", 100, 30_000),
    Draw("S", 100, 80_000),
    Draw("C", 40, 50_000),
    Draw("T1", 20, 30_000),
    Draw("T2", 10, 30_000),
    Draw("R"),
)
ELSEWHERE = (Draw("H", 30, 30_000), Draw("S", 54, 50_000))
"""What is drawn of each other physics."""

ABLATED = (Draw("H", 12, 30_000), Draw("S", 36, 30_000))
"""What is judged again with a stage left out."""

INTRO = """Every host call, kernel and collective of every rank, recorded as Nsight Systems exports
([what the suites hold, and how to run them](harness.md)). Ours reads files with their clocks; the simple rules beside
it are given the true time of every event. The two tables that name physics compare these; the others are of `fixed`.
Confidence was fitted on other draws of two physics (`catalog/confidence.toml`)."""


def list_runs() -> dict[str, tuple[Draw, ...]]:
    """List what is drawn by physics: all suites of the first, of every other one enough for the figures."""
    return {physics: DRAWS if physics == "fixed" else ELSEWHERE for physics in get_args(Physics)}


def read_board(folder: Path) -> Scoreboard:
    """Read what was said of all suites in a folder."""
    return Scoreboard(tuple(outcome for path in sorted(folder.glob("*.jsonl")) for outcome in read_outcomes(path)))


def score_without(stage: str | None, folder: Path) -> Scoreboard:
    """Let the program judge the cases for comparison, whole or without a stage."""
    module = ("dprankdiag",) if stage is None else ("tests.bench.without", stage)
    for draw in ABLATED:
        cases = draw_suite(draw.suite, draw.count, SEED, kernels=draw.kernels or 0)
        tasks = {case.name: partial(score_case, case, (sys.executable, "-m", *module)) for case in cases}
        run_tasks(tasks, folder / f"{draw.suite}.jsonl", jobs=JOBS)
    return read_board(folder)


def list_tables(boards: dict[str, Scoreboard]) -> tuple[str, ...]:
    """Write the tables of the page; those of many suites tell of the first physics."""
    board = boards["fixed"]
    sizes = [(f"{100 * size:g} %", named, right) for size, named, right in board.per_slowdown()]
    return (
        write_table(("suite", "holds", *(f"cases, {it}" for it in boards)), count_cases(boards)),
        write_table(("what", "bar", *map(name_physics, boards)), join_figures(boards)),
        write_table(("cause", "precision", "recall"), board.per_cause()),
        write_table(("steps longer by", "named right", "findings right"), sizes),
        write_table(("changed", "verdict kept, or no other rank named"), board.by_change()),
        write_table(("rule", "exactly the culprits, from 10 %", "false alarms"), board.simple_rules()),
    )


def name_physics(physics: str) -> str:
    """Name a physics; say of one that nothing was fitted on that it is a test."""
    return physics if physics in FITTED_ON else f"{physics}: nothing fitted on it"


def count_cases(boards: dict[str, Scoreboard]) -> list[tuple[object, ...]]:
    """Count the cases by suite and physics."""
    counts = {
        letter: [sum(it.facts.suite == letter for it in board.outcomes) for board in boards.values()]
        for letter in SUITES
    }
    return [(letter, SUITES[letter].content, *count) for letter, count in counts.items() if any(count)]


def join_figures(boards: dict[str, Scoreboard]) -> list[tuple[str, ...]]:
    """Set the figures of all physics side by side, each with whether its bar holds."""
    told = {physics: {it.what: it for it in board.figures()} for physics, board in boards.items()}
    rows = []
    for what, first in told["fixed"].items():
        cells = [_show(figures.get(what)) for figures in told.values()]
        rows.append((what, first.bar, *cells))
    return rows


def _show(figure: Figure | None) -> str:
    """Write a figure and whether its bar holds."""
    if figure is None:
        return "–"
    return figure.value if figure.holds is None else f"{figure.value}, {show_held(figure.holds)}"


def compare_ablated(whole: Scoreboard, ablated: dict[str, Scoreboard]) -> str:
    """Write how often cause and culprits are named with everything, and with a stage left out."""
    header = ("program", "cause, from 10 %", "exactly the culprits, from 10 %", "other ranks named", "false alarms")
    named = {"dprankdiag": whole} | {f"without {stage.replace('-', ' ')}": it for stage, it in ablated.items()}
    return write_table(header, [(name, *summarise(board)) for name, board in named.items()])


def summarise(board: Scoreboard) -> tuple[Rate, ...]:
    """Count, of faults of 10 %, causes and culprits named right; and alarms that are wrong."""
    faulty = [it for it in board.chosen(("S",), 0.1) if not it.facts.is_calm]
    told = [it for it in faulty if it.right_ranks is not None]
    causes = Rate(sum(it.right_cause for it in faulty), len(faulty))
    culprits = Rate(sum(bool(it.right_ranks) for it in told), len(told))
    return causes, culprits, board.others_named(), board.false_alarms()


def list_commands(commands: list[list[str]]) -> str:
    """Show the commands that measured it."""
    lines = "\n".join(f"$ dprankdiag {' '.join(command)} -o DIR" for command in commands)
    return f"```console\n{lines}\n```"
