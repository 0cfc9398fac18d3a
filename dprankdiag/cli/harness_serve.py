"""`dprankdiag harness serve`: show a scenario as the engines that it runs on would."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dprankdiag.cli.base import ANSWERED
from dprankdiag.cli.signals import stop_on_signal
from dprankdiag.cli.terminal import write_error
from dprankdiag.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dprankdiag.harness.mock_engine import MockEngine

_CHECK_S = 0.2
"""How often it is looked whether the user wants to stop; a signal is seen at once."""


@click.command(name="serve", short_help="Show a scenario as its engines would.")
@click.argument("scenario", metavar="SCENARIO")
@click.option("--port", type=click.IntRange(0, 65_000), default=0, help="Of the first engine [a free one].")
@click.option("--speed", type=click.FloatRange(0.01, 100), default=1.0, help="Seconds of the scenario in a second [1].")
@click.option("--loop", is_flag=True, help="Begin anew whenever it ends.")
@click.option("--cured", is_flag=True, help="With the cure.")
@click.option("--engine-release", "release", metavar="RELEASE", help="Whose pages are shown [the newest known].")
@click.option(
    "--profile-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Give vLLM engines a profiler that writes here.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def command(scenario: str, debug: bool, **given: Any) -> int:
    """Serve metrics, loads, configuration and profiler of each engine of SCENARIO on this machine, until Ctrl-C.

    The scenario begins at once and ends idle: counters then stand still, unless it is to loop. A speed of 10 shows
    engines that are ten times as fast.
    """
    from dprankdiag.harness.mock_scenario import serve_scenario
    from dprankdiag.harness.scenarios import find_scenario

    try:
        chosen = find_scenario(scenario)
        with serve_scenario(chosen, **given) as mocks, stop_on_signal() as wait:
            _say_what_next(mocks, given["speed"])
            while not wait(_CHECK_S):
                pass
    except (ValueError, OSError) as problem:
        raise UsageError(str(problem)) from problem
    return ANSWERED


def _say_what_next(mocks: Sequence[MockEngine], speed: float) -> None:
    urls = " ".join(mock.url for mock in mocks)
    for mock in mocks:
        engine = mock.engine
        role = "" if engine.role == "unified" else f", {engine.role}"
        seconds = mock.ledger.last_ns / 1e9 / speed
        write_error(
            f"{engine.name} {engine.version}{role}, {engine.ranks} ranks at {mock.url}, busy for {seconds:.0f} s",
            prefix="",
        )
    write_error(f"next: dprankdiag watch {urls} (Ctrl-C here ends it)", prefix="")
