"""`dprankdiag harness`: make or run recordings whose truth is known, and score this program on them."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from dprankdiag.cli.base import Progress
from dprankdiag.cli.harness_ledger import ledger
from dprankdiag.cli.harness_run import run
from dprankdiag.cli.harness_serve import command as serve
from dprankdiag.cli.terminal import ProgressLine, write_error, write_result
from dprankdiag.errors import UsageError

if TYPE_CHECKING:
    from dprankdiag.harness.answers import Outcome
    from dprankdiag.harness.cases import Case
    from dprankdiag.harness.scenario import Scenario

NAMED = "named"
SAID = "said.jsonl"
_COMMAND = (sys.executable, "-m", "dprankdiag")
"""The installed program, run as a process of its own."""

_FOLDER = click.Path(path_type=Path, file_okay=False)
Format = Literal["nsys", "torch"]
Command = TypeVar("Command", bound=Callable[..., Any])

_debug = click.option("--debug", is_flag=True, help="Show the traceback of an error.")
_physics = click.option(
    "--physics",
    type=click.Choice(["fixed", "roofline", "queueing"]),
    default="fixed",
    help="Laws that durations follow.",
)


def _draw_options(command: Command) -> Command:
    """Add the options that say what is drawn."""
    for option in (
        click.option("--format", "format_name", type=click.Choice(["nsys", "torch"]), default="nsys",
                     help="Exports of Nsight Systems, or torch profiler traces."),
        click.option("--only", multiple=True, metavar="CASE", help="Only this case; may be given again."),
        click.option("--count", type=click.IntRange(1), help="Cases to draw of a suite."),
        click.option("--seed", type=click.IntRange(0), default=1, help="The same seed draws the same cases [1]."),
        click.option("--kernels", type=click.IntRange(1_000), default=150_000, help="Most kernels a case, about."),
        _physics,
    ):  # fmt: skip
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Draw:
    """What is to be drawn of a suite; `only` keeps the cases of these names, all if it is empty."""

    count: int | None = None
    seed: int = 1
    kernels: int = 150_000
    physics: str = "fixed"
    only: tuple[str, ...] = ()


@click.group(name="harness", short_help="Make recordings of known truth, and score this program on them.")
@_debug
def command(debug: bool) -> None:
    """Make recordings whose truth is known, and score this program on them (docs/harness.md)."""


command.add_command(ledger)
command.add_command(run)
command.add_command(serve)


@command.command(name="list", short_help="List the named worlds, the suites and the scenarios.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@_physics
@_debug
def list_worlds(as_json: bool, physics: str, debug: bool) -> None:
    """List the named worlds with what is true of them, the suites that can be drawn, and the scenarios."""
    from dprankdiag.harness.cases import learn_facts
    from dprankdiag.harness.scenario_facts import list_scenarios
    from dprankdiag.harness.score_tables import describe_facts, render_facts
    from dprankdiag.harness.trace_suites import SUITES

    with _show_progress() as progress, _answer_values():
        facts = []
        cases = _choose_cases(NAMED, Draw(physics=physics))
        for position, case in enumerate(cases):
            progress("playing the worlds", position / len(cases))
            facts.append(learn_facts(case, case.world))
    suites = {letter: (suite.count, suite.content) for letter, suite in SUITES.items()}
    if as_json:
        listed = [{"suite": letter, "cases": count, "content": text} for letter, (count, text) in suites.items()]
        worlds = [describe_facts(it) for it in facts]
        _write_json({"worlds": worlds, "suites": listed, "scenarios": list_scenarios()})
    else:
        write_result(render_facts(facts, suites, list_scenarios()))


@command.command(short_help="Write recordings with their truth.")
@click.argument("what", metavar="NAME|SUITE|SCENARIO")
@click.option("-o", "--output", type=_FOLDER, metavar="DIR", help="Folder to write to.")
@click.option("--json", "as_json", is_flag=True, help="Of a scenario, tell the numbers that follow from it.")
@_draw_options
@_debug
def make(what: str, output: Path | None, as_json: bool, format_name: Format, debug: bool, **drawn: Any) -> None:
    """Write the recording of a named world, of a scenario, or of each case of a suite, with a truth.json beside it.

    "named" stands for all named worlds, "scenarios" for all scenarios (docs/scenarios.md): a serving world is run, and
    some of its steps are recorded. Each case gets a folder of its own in DIR.
    """
    scenarios = _choose_scenarios(what)
    if as_json and len(scenarios) != 1:
        raise UsageError("--json tells of one scenario", mend="see `dprankdiag harness list`")
    if output is None and not as_json:
        raise UsageError("nowhere to write to", mend="give a folder: -o DIR")
    if output is not None:
        written = _make_scenarios(scenarios, output, format_name) or _make_cases(
            what, Draw(**drawn), output, format_name
        )
        write_error(f"{written} written; next: dprankdiag harness score {output}")
    if as_json:
        from dprankdiag.harness.scenario_facts import describe_scenario

        _write_json(describe_scenario(scenarios[0]))


def _make_cases(what: str, draw: Draw, output: Path, format_name: Format) -> int:
    from dprankdiag.harness.score import make_case

    with _show_progress() as progress, _answer_values():
        cases = _choose_cases(what, draw)
        for position, case in enumerate(cases):
            progress(f"writing {case.name}", position / len(cases))
            make_case(case, output / case.name, format=format_name)
    return len(cases)


def _make_scenarios(scenarios: Sequence[Scenario], output: Path, format_name: Format) -> int:
    from dprankdiag.harness.scenario_trace import trace_scenario
    from dprankdiag.harness.score import make_recording

    with _show_progress() as progress, _answer_values():
        for position, scenario in enumerate(scenarios):
            progress(f"serving {scenario.name}", position / len(scenarios))
            make_recording(*trace_scenario(scenario), output / scenario.name, format=format_name)
    return len(scenarios)


def _choose_scenarios(what: str) -> list[Scenario]:
    from dprankdiag.harness.scenarios import SCENARIOS

    return [scenario for scenario in SCENARIOS.values() if what in ("scenarios", scenario.name)]


@command.command(short_help="Score this program on recordings.")
@click.argument("what", metavar="DIR|NAME|SUITE")
@click.option("-o", "--output", type=_FOLDER, metavar="DIR", help="Keep what was said here, and go on from it.")
@click.option("--jobs", type=click.IntRange(1), default=1, help="Processes [1].")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@_draw_options
@_debug
def score(
    what: str, output: Path | None, jobs: int, as_json: bool, format_name: Format, debug: bool, **drawn: Any
) -> None:
    """Let the installed program judge recordings, and compare what it says with the truth.

    DIR is a folder that `harness make` has filled, or one in which -o has kept what was said. Of a suite each case is
    written, judged and removed.
    """
    from dprankdiag.harness.score_tables import describe_board, render_board
    from dprankdiag.harness.scoreboard import Scoreboard

    with _show_progress() as progress, _answer_values():
        if Path(what).is_dir():
            outcomes = _score_folder(Path(what), jobs, progress)
        else:
            draw = Draw(**drawn)
            kept = f"{what}-{draw.count or 'all'}-{draw.seed}-{draw.kernels}-{format_name}-{draw.physics}.jsonl"
            outcomes = _score_cases(_choose_cases(what, draw), output, kept, format_name, jobs, progress)
    board = Scoreboard(tuple(outcomes))
    if as_json:
        _write_json(describe_board(board))
    else:
        write_result(render_board(board))


def _choose_cases(what: str, draw: Draw) -> list[Case]:
    cases = _draw_cases(what, draw)
    unknown = set(draw.only) - {case.name for case in cases}
    if unknown:
        raise UsageError(f"no case {', '.join(sorted(unknown))} among the {len(cases)} drawn", where="--only")
    return [case for case in cases if not draw.only or case.name in draw.only]


def _draw_cases(what: str, draw: Draw) -> list[Case]:
    from dprankdiag.harness.trace_suites import SUITES, draw_suite, list_named

    if what in SUITES:
        return draw_suite(what, draw.count, draw.seed, kernels=draw.kernels, physics=draw.physics)
    named = list_named(draw.physics)
    chosen = [case for case in named if what in (NAMED, case.name)]
    if not chosen:
        mend = f"there are the suites {', '.join(SUITES)}, '{NAMED}', and the names of `dprankdiag harness list`"
        raise UsageError(f"no suite, world or folder '{what}'", mend=mend)
    return chosen


def _score_cases(
    cases: list[Case], folder: Path | None, kept: str, format_name: Format, jobs: int, progress: Progress
) -> list[Outcome]:
    from dprankdiag.harness.score import run_tasks, score_case

    tasks = {case.name: partial(score_case, case, _COMMAND, format_name) for case in cases}
    if folder is not None:
        return run_tasks(tasks, folder / kept, jobs=jobs, progress=progress)
    with tempfile.TemporaryDirectory() as passing:
        return run_tasks(tasks, Path(passing) / kept, jobs=jobs, progress=progress)


def _score_folder(folder: Path, jobs: int, progress: Progress) -> list[Outcome]:
    """Judge what was made in a folder, and read what was said of suites before."""
    from dprankdiag.harness.answers import read_outcomes
    from dprankdiag.harness.score import ask_about, find_made, run_tasks

    made = find_made(folder)
    tasks = {it.facts.name: partial(ask_about, place, it, _COMMAND) for place, it in made.items()}
    outcomes = run_tasks(tasks, folder / SAID, jobs=jobs, progress=progress) if tasks else []
    for path in sorted(folder.glob("*.jsonl")):
        if path.name != SAID:
            outcomes += read_outcomes(path)
    if not outcomes:
        raise UsageError("holds no recordings with their truth", where=str(folder), mend="make some: harness make")
    return outcomes


@contextmanager
def _show_progress() -> Iterator[Progress]:
    line = ProgressLine(quiet=False, verbose=False)
    try:
        yield line
    finally:
        line.close()


@contextmanager
def _answer_values() -> Iterator[None]:
    """Turn what cannot be made into an error of usage."""
    try:
        yield
    except (ValueError, OSError) as problem:
        raise UsageError(str(problem)) from problem


def _write_json(answer: Mapping[str, Any]) -> None:
    write_result(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
