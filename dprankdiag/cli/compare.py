"""`dprankdiag compare`: what changed between two recordings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dprankdiag.cli.analyze import check_exists, warn_of_inputs
from dprankdiag.cli.base import ANSWERED, FAIL_ON_REACHED, FILE, RANKS, Doors, open_doors
from dprankdiag.cli.outputs import REPORT_SUFFIXES, check_outputs, report_options, write_text
from dprankdiag.cli.terminal import ProgressLine, find_width, wants_color, write_result
from dprankdiag.errors import UsageError

if TYPE_CHECKING:
    from dprankdiag.model.comparison import Comparison
    from dprankdiag.pipelines.compare import Input


@click.command(name="compare", short_help="Say what changed between two recordings.")
@click.argument("before", type=FILE)
@click.argument("after", type=FILE)
@report_options
@click.option(
    "--fail-on",
    "fail_on",
    multiple=True,
    type=click.Choice(["never", "warning", "critical", "inconclusive"]),
    help="Exit with 1 if a finding of at least this severity is new or significantly worse, or if the two cannot be "
    "compared (inconclusive); may be repeated.",
)
@click.option(
    "--tried",
    "tried",
    multiple=True,
    metavar="REMEDY",
    help="Key of a remedy of BEFORE that was tried in between: its predicted gain is held against what was gained; "
    "repeatable. If none is named, the best remedy of each finding is.",
)
@click.option("--rank-map", type=FILE, metavar="FILE", help="Say which process is which rank, on both sides.")
@click.option("--expect-ranks", type=RANKS, metavar="N", help="How many ranks there should be.")
@click.option("--patterns", type=FILE, metavar="FILE", help="Your own kernel names (TOML), tried before the known.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Files to read at a time [as many as pay].")
@click.option("--quiet", is_flag=True, help="No progress and no warnings on stderr.")
@click.option("--verbose", is_flag=True, help="Each stage with its seconds on stderr.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--no-color", is_flag=True, help="No colour (as with NO_COLOR set).")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Compare the recording AFTER with the recording BEFORE: better, worse, or no significant change, and why.

    Each is a trace, a folder (its files are one recording), or a .dprank bundle.
    """
    _check_inputs(given)
    _check_bundles(given)
    doors = open_doors(context)
    before, after = sides = [_obtain(given[name], given, doors) for name in ("before", "after")]
    if not given["quiet"]:
        warn_of_inputs([source for side in sides for source in side.diagnosis.inputs])
    comparison = doors.compare(before, after, given["tried"])
    from dprankdiag.views.comparison import render

    write_result(render(comparison, given["format_name"], width=find_width(), color=wants_color(given["no_color"])))
    for output in given["outputs"]:
        write_text(output, render(comparison, REPORT_SUFFIXES[output.suffix.lower()]))
    return FAIL_ON_REACHED if any(_CONDITIONS[name](comparison) for name in given["fail_on"]) else ANSWERED


def _check_inputs(given: Mapping[str, Any]) -> None:
    if given["quiet"] and given["verbose"]:
        raise UsageError("--quiet and --verbose exclude each other")
    read = [given[name] for name in ("before", "after", "rank_map", "patterns") if given[name] is not None]
    for path in read:
        check_exists(path)
    check_outputs(given["outputs"], read, tuple(REPORT_SUFFIXES))


def _check_bundles(given: Mapping[str, Any]) -> None:
    """Refuse options that read traces where there is none."""
    from dprankdiag.store.bundle import is_bundle

    if not all(is_bundle(given[name]) for name in ("before", "after")):
        return
    for name in ("rank_map", "expect_ranks", "patterns"):
        if given[name] is not None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} cannot change a saved diagnosis", mend="compare the traces")


def _obtain(path: Path, given: Mapping[str, Any], doors: Doors) -> Input:
    from dprankdiag.pipelines.compare import Input
    from dprankdiag.store.bundle import is_bundle, load_bundle

    if is_bundle(path):
        diagnosis, tables = load_bundle(path)
        return Input(diagnosis, tables, str(path))
    progress = ProgressLine(quiet=given["quiet"], verbose=given["verbose"])
    names = ("rank_map", "expect_ranks", "patterns", "jobs")
    try:
        outcome = doors.diagnose([path], {name: given[name] for name in names}, progress)
    finally:
        progress.close()
    return Input(outcome.diagnosis, outcome.tables, str(path))


def _got_worse(*severities: str) -> Callable[[Comparison], bool]:
    return lambda comparison: any(
        change.after_severity in severities and (change.presence == "new" or change.direction == "worse")
        for change in comparison.causes
    )


_CONDITIONS: dict[str, Callable[[Comparison], bool]] = {
    "never": lambda comparison: False,
    "warning": _got_worse("warning", "critical"),
    "critical": _got_worse("critical"),
    "inconclusive": lambda comparison: comparison.verdict == "not_comparable",
}
