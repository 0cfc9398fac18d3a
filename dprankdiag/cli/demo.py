"""`dprankdiag demo`: diagnose the recording that comes with the package."""

from __future__ import annotations

import shlex
from importlib import resources
from pathlib import Path

import click

from dprankdiag.cli.base import open_doors
from dprankdiag.cli.terminal import ProgressLine, find_width, wants_color, write_error, write_result
from dprankdiag.errors import InputError
from dprankdiag.views.base import FORMATS, load_view


@click.command(name="demo", short_help="Diagnose the recording in the package.")
@click.option("--format", "format_name", type=click.Choice(list(FORMATS)), default="text", help="Format on stdout.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--no-color", is_flag=True, help="No colour (as with NO_COLOR set).")
@click.pass_context
def command(context: click.Context, /, format_name: str, debug: bool, no_color: bool) -> None:
    """Diagnose a small recording that comes with the package."""
    with resources.as_file(resources.files("dprankdiag") / "data" / "demo.sqlite") as recording:
        _diagnose_recording(context, recording, format_name, wants_color(no_color))


def _diagnose_recording(context: click.Context, recording: Path, format_name: str, color: bool) -> None:
    if not recording.exists():
        raise InputError("the recording is missing from this installation", where=str(recording), mend="install again")
    progress = ProgressLine(quiet=False, verbose=False)
    try:
        outcome = open_doors(context).diagnose([recording], {}, progress)
    finally:
        progress.close()
    view = load_view(format_name)
    write_result(view.render(outcome.diagnosis, outcome.tables, width=find_width(), color=color))
    choice = "" if format_name == "text" else f" --format {format_name}"
    write_error(f"the same as: dprankdiag analyze {shlex.quote(str(recording))}{choice}")
