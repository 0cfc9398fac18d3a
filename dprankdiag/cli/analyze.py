"""`dprankdiag analyze`: diagnose traces, or print a saved diagnosis again."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dprankdiag.cli.base import ANSWERED, FAIL_ON_REACHED, FILE, RANKS, Doors, open_doors
from dprankdiag.cli.outputs import check_outputs, write_outputs, writes_bundle
from dprankdiag.cli.stored import FileOrServer, read_question, span_options
from dprankdiag.cli.targets import access_options, check_once, read_access
from dprankdiag.cli.terminal import ProgressLine, find_width, wants_color, write_error, write_result
from dprankdiag.errors import UsageError
from dprankdiag.readers.named_paths import split_named
from dprankdiag.views.base import FORMATS, SUFFIXES, load_view

if TYPE_CHECKING:
    from dprankdiag.model.diagnosis import Diagnosis
    from dprankdiag.model.schema import Columns
    from dprankdiag.model.sources import Source
    from dprankdiag.pipelines.diagnose import Outcome
    from dprankdiag.pipelines.stored_span import StoredQuestion


class Window(click.ParamType[tuple[float, float]]):
    """Two moments ``A:B`` in seconds, A before B."""

    name = "A:B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        """Read the two moments."""
        if isinstance(value, tuple):
            return value
        try:
            start_s, end_s = (float(part) for part in str(value).split(":"))
        except ValueError:
            self.fail(f"'{value}' is not of the form A:B, two numbers of seconds, such as 1.5:4", param, ctx)
        if not (0 <= start_s < end_s and math.isfinite(end_s)):
            self.fail(f"'{value}' does not run forward from 0 or later, expected A < B such as 1.5:4", param, ctx)
        return start_s, end_s


@click.command(name="analyze", short_help="Diagnose traces, or print a saved diagnosis.")
@click.argument("paths", nargs=-1, required=True, type=FileOrServer(path_type=Path, readable=False), metavar="PATH...")
@click.option("--format", "format_name", type=click.Choice(list(FORMATS)), default="text", help="Format on stdout.")
@click.option(
    "-o",
    "outputs",
    multiple=True,
    type=FILE,
    metavar="FILE",
    help=f"Also write FILE ({', '.join(SUFFIXES)}, or .dprank: a bundle to read again later); may be repeated.",
)
@click.option(
    "--fail-on",
    "fail_on",
    multiple=True,
    type=click.Choice(["never", "warning", "critical", "inconclusive"]),
    help="Exit with 1 on a finding of at least this severity, or without a verdict; may be repeated.",
)
@click.option("--rank-map", type=FILE, metavar="FILE", help="Say which process is which rank.")
@click.option("--expect-ranks", type=RANKS, metavar="N", help="How many ranks there should be.")
@click.option("--window", type=Window(), help="Judge only A to B, in seconds after the first analysed event.")
@click.option(
    "--baseline", type=FILE, metavar="BUNDLE", help="An earlier recording (.dprank) to hold this one against."
)
@click.option("--patterns", type=FILE, metavar="FILE", help="Your own kernel names (TOML), tried before the known.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Seconds between snapshots of metrics that do not tell their time.",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Files to read at a time [as many as pay].")
@span_options
@access_options(timeout_s=30.0)
@click.option("--quiet", is_flag=True, help="No progress and no warnings on stderr.")
@click.option("--verbose", is_flag=True, help="Each stage with its seconds on stderr.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--no-color", is_flag=True, help="No colour (as with NO_COLOR set).")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Diagnose recordings, print a .dprank bundle again, or join the bundles of many nodes.

    PATH is a file or folder: Nsight Systems exports (SQLite or parquetdir), torch profiler traces of all ranks (JSON,
    also gzip), metrics and load answers of SGLang or vLLM saved twice or more or their logs (- reads a log from
    standard input), a receive-wait matrix (CSV), or Flight Recorder dumps of all ranks (JSON); any mix. Bundles stand
    in for the traces that they were made of. Several engines are judged apart: snapshots of one folder are one
    engine's, NAME=PATH and NAME@SECONDS=PATH say it where that is wrong.

    prometheus+http://HOST:9090 is what a Prometheus stores of engines, in the last hour or from --since to --until.
    """
    servers = check_once([one for one in given["paths"] if isinstance(one, str)])
    question = read_question(given, servers)
    paths: Sequence[Path] = [one for one in given["paths"] if isinstance(one, Path)]
    files = [split_named(path).path for path in paths]
    _check_inputs(files, given)
    read = [given[name] for name in ("rank_map", "patterns", "baseline") if given[name] is not None]
    check_outputs(given["outputs"], [*files, *read])
    diagnosis, tables, digests = _obtain(paths, question, given, open_doors(context))
    view = load_view(given["format_name"])
    write_result(view.render(diagnosis, tables, width=find_width(), color=wants_color(given["no_color"])))
    write_outputs(given["outputs"], diagnosis, tables, digests)
    if not given["quiet"]:
        warn_of_inputs(diagnosis.inputs)
    return FAIL_ON_REACHED if any(meets_condition(diagnosis, name) for name in given["fail_on"]) else ANSWERED


def check_exists(path: Path) -> None:
    """Refuse a path at which there is nothing.

    Raises:
        UsageError: there is no such file or folder.
    """
    try:
        found = path.exists()
    except (OSError, ValueError) as error:
        raise UsageError(f"not a usable path ({getattr(error, 'strerror', error)})", where=str(path)) from error
    if not found:
        there = next(parent for parent in path.absolute().parents if parent.is_dir())
        raise UsageError("no such file or folder", where=str(path), mend=f"ls -a {shlex.quote(str(there))}")


def _check_inputs(files: Sequence[Path], given: Mapping[str, Any]) -> None:
    if given["quiet"] and given["verbose"]:
        raise UsageError("--quiet and --verbose exclude each other")
    for path in files:
        if str(path) != "-":
            check_exists(path)
    for option in ("rank_map", "patterns", "baseline"):
        if given[option] is not None:
            check_exists(given[option])


Obtained = tuple["Diagnosis", Mapping[str, "Columns"], Sequence[tuple[str, bytes]]]
"""A diagnosis, its tables, and the members of a bundle that keep digests."""


def _obtain(paths: Sequence[Path], question: StoredQuestion | None, given: Mapping[str, Any], doors: Doors) -> Obtained:
    from dprankdiag.store.bundle import is_bundle

    if question is None and len(paths) == 1 and is_bundle(paths[0]):
        return _reopen(paths[0], given)
    progress = ProgressLine(quiet=given["quiet"], verbose=given["verbose"])
    names = ("rank_map", "expect_ranks", "window", "patterns", "jobs", "baseline", "interval_s")
    options = {name: given[name] for name in names}
    options["keep_digests"] = writes_bundle(given["outputs"])
    try:
        if question is not None:
            options["stored"] = doors.read_servers(question, read_access(given), progress)
        outcome = doors.diagnose(paths, options, progress)
    finally:
        progress.close()
    if not given["quiet"]:
        for warning in outcome.warnings:
            write_error(f"warning: {warning}")
    return outcome.diagnosis, outcome.tables, _choose_digests(outcome, given)


def _choose_digests(outcome: Outcome, given: Mapping[str, Any]) -> Sequence[tuple[str, bytes]]:
    """Keep what digests have room in a bundle; one without is told, for it cannot be joined."""
    if outcome.digests is None:
        return ()
    if outcome.digests.fit(len(outcome.tables["rank_steps"]["rank"])):
        return outcome.digests.members
    if not given["quiet"]:
        size = f"{outcome.digests.size_bytes / 1e6:.1f} MB"
        mend = "dprankdiag digest TRACE makes one that can"
        write_error(f"warning: the bundle cannot be joined, for that takes its kernels one by one, {size}: {mend}")
    return ()


def _reopen(bundle: Path, given: Mapping[str, Any]) -> Obtained:
    from dprankdiag.store.bundle import load_bundle
    from dprankdiag.store.digests import copy_digests

    for name in ("rank_map", "expect_ranks", "window", "patterns", "baseline", "interval_s"):
        if given[name] is not None:
            option = f"--{name.removesuffix('_s').replace('_', '-')}"
            raise UsageError(f"{option} cannot change a saved diagnosis", where=str(bundle), mend="analyse the trace")
    diagnosis, tables = load_bundle(bundle)
    return diagnosis, tables, copy_digests(bundle) if writes_bundle(given["outputs"]) else ()


def warn_of_inputs(sources: Sequence[Source]) -> None:
    """Say on standard error which inputs could not be used, or only in part."""
    for source in sources:
        if source.status != "used":
            reason = source.warnings[0] if source.warnings else "see inputs in the diagnosis"
            # A file that could not be read names itself.
            reason = reason.removeprefix(f"{source.path}: ")
            write_error(f"warning: {source.path}: {source.status}: {reason}")


def meets_condition(diagnosis: Diagnosis, name: str) -> bool:
    """Tell whether a diagnosis meets a condition of `--fail-on`."""
    return _CONDITIONS[name](diagnosis)


def _has_severity(*severities: str) -> Callable[[Diagnosis], bool]:
    return lambda diagnosis: any(finding.severity in severities for finding in diagnosis.findings)


_CONDITIONS: dict[str, Callable[[Diagnosis], bool]] = {
    "never": lambda diagnosis: False,
    "warning": _has_severity("warning", "critical"),
    "critical": _has_severity("critical"),
    "inconclusive": lambda diagnosis: diagnosis.status == "inconclusive",
}
