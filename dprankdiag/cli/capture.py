"""`dprankdiag capture`: the exact calls that record a trace of all ranks."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from dprankdiag.cli.base import ANSWERED, open_doors
from dprankdiag.cli.targets import check_once, read_access, target_options
from dprankdiag.cli.terminal import write_error, write_result
from dprankdiag.errors import InputError

if TYPE_CHECKING:
    from dprankdiag.model.capture import CapturePlan
    from dprankdiag.pipelines.capture import CaptureOptions


@click.command(name="capture", short_help="Print the calls that record all ranks.")
@target_options
@click.option("--steps", type=click.IntRange(1, 10_000), default=30, help="Forward passes to record [30].")
@click.option("--folder", default="/tmp/dprank-traces", metavar="DIR", help="Where the engine's hosts put traces.")
@click.option("--engine", type=click.Choice(["sglang", "vllm"]), help="Do not ask TARGET: it is this.")
@click.option("--format", "format_name", type=click.Choice(["text", "json"]), default="text", help="Format on stdout.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Print the calls that record a trace of all ranks of TARGET over the same steps, and how to judge it.

    TARGET is the URL of an engine (http://HOST:PORT); give all ports of one engine together. It is asked what it is;
    its profiler is not started. A token is printed by name only.
    """
    from dprankdiag.views import capture as view

    plans = _plan(context, check_once(given["targets"]), given)
    write_result(view.render_json(plans) if given["format_name"] == "json" else view.render_text(plans))
    return ANSWERED


def _plan(context: click.Context, targets: tuple[str, ...], given: dict[str, Any]) -> tuple[CapturePlan, ...]:
    from dprankdiag.pipelines.capture import plan_assumed, plan_captures

    options = _choose(given)
    if given["engine"] is not None:
        return (plan_assumed(given["engine"], targets, options),)
    checkups = open_doors(context).examine(targets, read_access(given), ())
    plans = plan_captures(checkups, options)
    if not plans:
        mend = "name it: --engine sglang or --engine vllm"
        raise InputError("no engine answered", where=", ".join(targets), mend=mend)
    for checkup in checkups:
        if checkup.engine is None:
            write_error(f"warning: {checkup.target}: no engine answered; its calls are left out")
    return plans


def _choose(given: dict[str, Any]) -> CaptureOptions:
    """Take the options, with the token in words of the shell."""
    from dprankdiag.pipelines.capture import CaptureOptions

    token = ""
    if given["token_env"] is not None:
        token = f"${given['token_env']}"
    elif given["token_file"] is not None:
        token = f"$(cat {shlex.quote(str(given['token_file']))})"
    header = given["token_header"] if token else None
    return CaptureOptions(given["steps"], given["folder"], header, token)
