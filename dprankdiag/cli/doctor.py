"""`dprankdiag doctor`: what a target offers, what is missing, and how it is set up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dprankdiag.cli.base import ANSWERED, open_doors
from dprankdiag.cli.stored import read_selection, select_option
from dprankdiag.cli.targets import check_once, read_access, target_options
from dprankdiag.cli.terminal import find_width, wants_color, write_error, write_result
from dprankdiag.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dprankdiag.model.checkup import Checkup

LIBRARIES = ("click", "httpx", "msgspec", "numpy", "pandas", "prometheus-client", "pyarrow", "pyzmq", "rich")


@click.command(name="doctor", short_help="Say what an engine offers and what is missing.")
@target_options
@select_option
@click.option("--format", "format_name", type=click.Choice(["text", "json"]), default="text", help="Format on stdout.")
@click.option("--versions", "with_versions", is_flag=True, help="Also print the versions of Python and libraries.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--no-color", is_flag=True, help="No colour (as with NO_COLOR set).")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Ask TARGET for everything a diagnosis can rest on, and say what is missing and how to get it.

    TARGET is the URL of an engine (http://HOST:PORT), or prometheus+http://HOST:PORT for what a Prometheus stores of
    the engines. Give all nodes and ports of one engine together.
    """
    from dprankdiag.views import checkup as view

    targets = check_once(given["targets"])
    checkups = open_doors(context).examine(targets, read_access(given), read_selection(given, targets))
    versions = list_versions()
    if given["format_name"] == "json":
        write_result(view.render_json(checkups, versions))
    else:
        width, color = find_width(), wants_color(given["no_color"])
        write_result(view.render_text(checkups, versions if given["with_versions"] else None, width=width, color=color))
    return _check_reached(checkups)


def _check_reached(checkups: Sequence[Checkup]) -> int:
    """Return the exit code: nothing that answers is no answer; one target among several is said on stderr."""
    silent = [checkup for checkup in checkups if not checkup.is_reached]
    if len(silent) == len(checkups):
        reasons = "; ".join(dict.fromkeys(one.reason or one.status for one in silent[0].interfaces))
        raise InputError(f"nothing answered ({reasons})", where=", ".join(one.target for one in silent))
    for checkup in silent:
        write_error(f"warning: {checkup.target}: nothing answered")
    return ANSWERED


def list_versions() -> dict[str, str]:
    """List the versions of what runs here; what is not installed is said to be absent."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from dprankdiag import __version__

    versions = {"dprankdiag": __version__, "Python": platform.python_version(), "system": platform.system()}
    for library in LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            versions[library] = "not installed"
    return versions
