"""`dprankdiag kernels`: what a trace holds, by family, and the names no pattern knows."""

from __future__ import annotations

from pathlib import Path

import click

from dprankdiag.cli.analyze import check_exists
from dprankdiag.cli.base import FILE, open_doors
from dprankdiag.cli.terminal import find_width, wants_color, write_result


@click.command(name="kernels", short_help="List what a trace holds by family.")
@click.argument("trace", type=FILE)
@click.option("--format", "format_name", type=click.Choice(["text", "json"]), default="text", help="Format on stdout.")
@click.option("--patterns", type=FILE, metavar="FILE", help="Your own kernel names (TOML), tried before the known.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--no-color", is_flag=True, help="No colour (as with NO_COLOR set).")
@click.pass_context
def command(
    context: click.Context, /, trace: Path, format_name: str, patterns: Path | None, debug: bool, no_color: bool
) -> None:
    """List what TRACE holds by kernel family, with the names that no pattern knows and their share."""
    check_exists(trace)
    if patterns is not None:
        check_exists(patterns)
    from dprankdiag.views import kernels

    rows = open_doors(context).list_kernels(trace, patterns)
    if format_name == "json":
        write_result(kernels.render_json(str(trace), rows))
    else:
        write_result(kernels.render_text(str(trace), rows, width=find_width(), color=wants_color(no_color)))
