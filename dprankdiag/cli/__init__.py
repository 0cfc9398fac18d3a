"""Verbs: one file a command; turns errors into exit codes."""

from __future__ import annotations

import click

from dprankdiag import __version__
from dprankdiag.cli.base import Verbs


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="dprankdiag")
def main() -> None:
    """Name the rank that holds a lockstep MoE deployment back, why it does, and what that costs."""
