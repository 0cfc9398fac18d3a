"""`dprankdiag grafana`: a dashboard over what the rules record."""

from __future__ import annotations

from pathlib import Path

import click

from dprankdiag.cli.outputs import check_outputs, write_text
from dprankdiag.cli.terminal import write_result


@click.command(name="grafana", short_help="Print a dashboard for Grafana.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE (.json).")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def command(output: Path | None, debug: bool) -> None:
    """Print a Grafana dashboard as JSON, to be imported; it reads what `dprankdiag rules` records."""
    from dprankdiag.catalog.grafana import load_board
    from dprankdiag.views.grafana import render

    if output is not None:
        check_outputs([output], [], (".json",))
    text = render(load_board())
    if output is None:
        write_result(text)
    else:
        write_text(output, text)
