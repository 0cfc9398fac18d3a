"""`dprankdiag whatif`: what another policy would have made of the same requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dprankdiag.cli.amounts import Seconds
from dprankdiag.cli.base import ANSWERED, FAIL_ON_REACHED
from dprankdiag.cli.outputs import check_outputs, write_text
from dprankdiag.cli.targets import FILE, access_options, read_access
from dprankdiag.cli.terminal import ProgressLine, find_width, wants_color, write_result
from dprankdiag.cli.whatif_steps import ask_steps, holds_steps, recording_options, refuse_expert_options
from dprankdiag.errors import UsageError

if TYPE_CHECKING:
    from dprankdiag.model.whatif import WhatIf
    from dprankdiag.simulate.policies import PolicyOption

FORMATS = ["text", "json", "markdown"]
SUFFIXES = {".txt": "text", ".json": "json", ".md": "markdown"}
_SAID = ("engine", "version", "policy", "workers", "ranks", "gpus", "chunk_tokens", "capacity_tokens")


@click.command(name="whatif", short_help="Say what another policy would have made of the same requests.")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("--format", "format_name", type=click.Choice(FORMATS), default="text", help="Format on stdout.")
@click.option(
    "-o", "outputs", multiple=True, type=FILE, metavar="FILE", help="Also write FILE (.txt, .json or .md); repeatable."
)
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
@click.option("--since", "since_s", type=Seconds(), default=3600.0, help="How far back a server is asked [1h].")
@click.option("--step", "step_s", type=Seconds(), default=15.0, help="From one look of it to the next [15s].")
@recording_options
@access_options
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--no-color", is_flag=True, help="No colour (as with NO_COLOR set).")
def command(**given: Any) -> int:
    """Serve the requests of INPUT again under every policy that could be set, and say what each would save.

    INPUT is a log of requests (a line of JSON for each, see docs/whatif.md), a recording that dprankdiag record made,
    or prometheus+http://HOST:PORT; a log and a recording of the same time tell most.

    Of a trace or a .dprank bundle, say what its steps would gain by an even load, without each of its faults, and with
    experts placed by counted tokens.
    """
    check_outputs(given["outputs"], [Path(one) for one in given["inputs"] if "://" not in one], tuple(SUFFIXES))
    result = _ask(given)
    from dprankdiag.views.whatif import render

    write_result(render(result, given["format_name"], width=find_width(), color=wants_color(given["no_color"])))
    for output in given["outputs"]:
        write_text(output, render(result, SUFFIXES[output.suffix.lower()]))
    reached = {"better": result.verdict in ("better", "tied"), "inconclusive": result.verdict == "cannot_tell"}
    return FAIL_ON_REACHED if any(reached.get(name, False) for name in given["fail_on"]) else ANSWERED


def _ask(given: Mapping[str, Any]) -> WhatIf:
    from dprankdiag.pipelines.whatif_inputs import Reach, Said, ask_what_if

    if len(set(given["inputs"])) < len(given["inputs"]):
        raise UsageError("an input is named twice")
    if holds_steps(given["inputs"]):
        return ask_steps(given)
    refuse_expert_options(given)
    reach = Reach(read_access(given), given["since_s"], given["step_s"])
    progress = ProgressLine(quiet=given["quiet"], verbose=False)

    def note(policy: PolicyOption) -> None:
        progress(f"serving again: {policy.title}", None)

    progress("fitting the costs of steps", None)
    try:
        return ask_what_if(given["inputs"], Said(**{name: given[name] for name in _SAID}), reach, note)
    finally:
        progress.close()
