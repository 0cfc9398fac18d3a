"""`dprankdiag whatif`: what another policy would have made of the same requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dprankdiag.cli.base import ANSWERED, FAIL_ON_REACHED, Doors, open_doors
from dprankdiag.cli.outputs import REPORT_SUFFIXES, check_outputs, report_options, write_text
from dprankdiag.cli.stored import SERVER, read_question, span_options
from dprankdiag.cli.targets import access_options, read_access
from dprankdiag.cli.terminal import ProgressLine, find_width, wants_color, write_result
from dprankdiag.cli.whatif_steps import ask_steps, holds_steps, recording_options, refuse_expert_options
from dprankdiag.errors import UsageError

if TYPE_CHECKING:
    from dprankdiag.model.whatif import WhatIf
    from dprankdiag.simulate.policies import PolicyOption

_SAID = ("engine", "version", "policy", "workers", "ranks", "gpus", "chunk_tokens", "capacity_tokens")


@click.command(name="whatif", short_help="Say what another policy would have made of the same requests.")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@report_options
@click.option(
    "--fail-on",
    "fail_on",
    multiple=True,
    type=click.Choice(["never", "better", "inconclusive"]),
    help="Exit with 1 if an option gains, or if no gain can be given (inconclusive); may be repeated.",
)
@click.option("--engine", type=click.Choice(["sglang", "vllm"]), help="Which engine served, if the input does not say.")
@click.option("--engine-release", "version", metavar="RELEASE", help="Its release [the newest known].")
@click.option("--policy", metavar="NAME", help="The policy in use, as the engine's flag calls it.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="How many engines served.")
@click.option("--ranks", type=click.IntRange(min=1), metavar="N", help="DP ranks of an engine.")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="GPUs of all engines [one a rank].")
@click.option("--chunk-tokens", type=click.IntRange(min=1), metavar="N", help="Prompt tokens a step and rank at most.")
@click.option("--kv-tokens", "capacity_tokens", type=click.IntRange(min=1), metavar="N", help="KV tokens of a rank.")
@recording_options
@span_options
@access_options(timeout_s=30.0)
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--no-color", is_flag=True, help="No colour (as with NO_COLOR set).")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Serve the requests of INPUT again under every policy that could be set, and say what each would save.

    INPUT is a log of requests (a line of JSON for each, see docs/whatif.md), a recording that dprankdiag record made,
    or prometheus+http://HOST:PORT; a log and a recording of the same time tell most.

    Of a trace or a .dprank bundle, say what its steps would gain by an even load, without each of its faults, and with
    experts placed by counted tokens.
    """
    check_outputs(given["outputs"], [Path(one) for one in given["inputs"] if "://" not in one], tuple(REPORT_SUFFIXES))
    result = _ask(given, open_doors(context))
    from dprankdiag.views.whatif import render

    write_result(render(result, given["format_name"], width=find_width(), color=wants_color(given["no_color"])))
    for output in given["outputs"]:
        write_text(output, render(result, REPORT_SUFFIXES[output.suffix.lower()]))
    reached = {"better": result.verdict in ("better", "tied"), "inconclusive": result.verdict == "cannot_tell"}
    return FAIL_ON_REACHED if any(reached.get(name, False) for name in given["fail_on"]) else ANSWERED


def _ask(given: Mapping[str, Any], doors: Doors) -> WhatIf:
    from dprankdiag.pipelines.whatif_inputs import Said, ask_what_if

    if len(set(given["inputs"])) < len(given["inputs"]):
        raise UsageError("an input is named twice")
    servers = [one for one in given["inputs"] if one.startswith(SERVER)]
    question = read_question(given, servers)
    if holds_steps(given["inputs"]):
        return ask_steps(given)
    refuse_expert_options(given)
    progress = ProgressLine(quiet=given["quiet"], verbose=False)

    def note(policy: PolicyOption) -> None:
        progress(f"serving again: {policy.title}", None)

    said = Said(**{name: given[name] for name in _SAID})
    files = [one for one in given["inputs"] if one not in servers]
    try:
        stored = doors.read_servers(question, read_access(given), progress) if question else ()
        progress("fitting the costs of steps", None)
        return ask_what_if(files, said, stored, note)
    finally:
        progress.close()
