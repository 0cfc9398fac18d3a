"""`dprankdiag harness ledger`: what gateway, controller and scheduler believed at each dispatch of a scenario."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dprankdiag.cli.outputs import check_outputs
from dprankdiag.cli.terminal import write_error, write_result
from dprankdiag.errors import UsageError

if TYPE_CHECKING:
    from dprankdiag.model.dispatches import Dispatch, LedgerRecord, LedgerRun


@click.command(short_help="Show what each ledger of a scenario believed, how old and how wrong it was.")
@click.argument("scenario", metavar="SCENARIO")
@click.option("--request", "number", type=click.IntRange(min=0), metavar="N", help="Only the dispatches of request N.")
@click.option("--all", "shows_all", is_flag=True, help="Every dispatch, not only the first, the worst and the last.")
@click.option("--cured", is_flag=True, help="The dispatches of the cured deployment.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every dispatch of both deployments.")
@click.option(
    "-o",
    "output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.json",
    help="Also write that object to a file, for dprankdiag dashboard FILE.json.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def ledger(
    scenario: str, number: int | None, shows_all: bool, cured: bool, as_json: bool, output: Path | None, debug: bool
) -> None:
    """Serve the requests of SCENARIO and hold what its ledgers believed against the truth, request by request.

    A gateway believes something of whole engines, the controller inside one of its ranks, the scheduler of its own
    queue. Beside what each was worth in sum stands the same of the cured deployment.
    """
    from dprankdiag.harness.scenario_ledger import record_ledgers
    from dprankdiag.harness.scenarios import find_scenario
    from dprankdiag.store.ledger_record import SUFFIX, pack_ledgers
    from dprankdiag.views.dispatches import render_text

    if output is not None:
        check_outputs([output], [], (SUFFIX,))
    try:
        record = record_ledgers(find_scenario(scenario))
        run = record.runs[cured]
        shown = _choose(run, number, shows_all)
    except ValueError as problem:
        raise UsageError(str(problem)) from problem
    if output is not None:
        _save(output, record)
    if as_json:
        chosen = record if number is None else _narrow(record, number)
        write_result(pack_ledgers(chosen).decode())
    else:
        write_result(render_text(record, run, shown))


def _choose(run: LedgerRun, number: int | None, shows_all: bool) -> list[Dispatch]:
    from dprankdiag.views.dispatches import choose_dispatches, find_request

    if number is not None:
        return find_request(run, number)
    return list(run.dispatches) if shows_all else choose_dispatches(run)


def _narrow(record: LedgerRecord, number: int) -> LedgerRecord:
    """Keep the dispatches of one request."""
    runs = (
        replace(run, dispatches=tuple(each for each in run.dispatches if each.request == number)) for run in record.runs
    )
    return replace(record, runs=tuple(runs))


def _save(output: Path, record: LedgerRecord) -> None:
    from dprankdiag.store.ledger_record import save_ledgers

    try:
        save_ledgers(output.resolve(), record)
    except OSError as error:
        raise UsageError(f"cannot be written ({error.strerror or error})", where=str(output)) from error
    write_error(f"{output} written; next: dprankdiag dashboard {output}")
