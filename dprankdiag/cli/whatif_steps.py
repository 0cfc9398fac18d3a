"""`dprankdiag whatif` of recorded steps: its options, and which inputs are meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dprankdiag.cli.base import FILE
from dprankdiag.cli.terminal import ProgressLine
from dprankdiag.errors import UsageError

if TYPE_CHECKING:
    from dprankdiag.model.whatif import WhatIf

GB = 1_000_000_000
EXPERT_OPTIONS = ("experts", "expert_bytes", "link_gb_s", "steps_between", "nodes", "groups")

_OPTIONS = (
    click.option(
        "--experts",
        "experts",
        multiple=True,
        type=FILE,
        metavar="FILE",
        help="Tokens counted by expert while a trace was recorded (a .pt dump, JSON or CSV); one a rank, repeatable.",
    ),
    click.option("--expert-bytes", type=click.IntRange(min=1), metavar="N", help="Weights of one expert of a layer."),
    click.option("--link-gb-s", type=click.FloatRange(min=0, min_open=True), metavar="X", help="GB/s into one GPU."),
    click.option(
        "--rearrange-every",
        "steps_between",
        type=click.IntRange(min=1),
        metavar="STEPS",
        help="Steps from one rearrangement of experts to the next [the engine's own].",
    ),
    click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Nodes that the GPUs are spread over [1]."),
    click.option("--groups", type=click.IntRange(min=1), metavar="N", help="Groups that the model routes in [1]."),
)


def recording_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that recorded steps have beside those of requests."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def holds_steps(inputs: Sequence[str]) -> bool:
    """Tell whether the inputs are traces or bundles of them, not requests.

    Raises:
        UsageError: some are and some are not.
    """
    from dprankdiag.pipelines.whatif_recording import is_steps

    told = ["://" not in one and is_steps(Path(one)) for one in inputs]
    if any(told) and not all(told):
        other = inputs[told.index(False)]
        raise UsageError("requests and recorded steps are asked apart", where=other, mend="give one of them")
    return all(told)


def refuse_expert_options(given: Mapping[str, Any]) -> None:
    """Refuse options that only recorded steps have.

    Raises:
        UsageError: one of them was given.
    """
    for name in EXPERT_OPTIONS:
        if given[name]:
            option = {"steps_between": "--rearrange-every"}.get(name, f"--{name.replace('_', '-')}")
            raise UsageError("experts are placed by a trace or a .dprank bundle", where=option, mend="give one")


def ask_steps(given: Mapping[str, Any]) -> WhatIf:
    """Read the recording and the counts, and price what could be otherwise."""
    from dprankdiag.model.serving import Serving
    from dprankdiag.pipelines.whatif_experts import ExpertPlan
    from dprankdiag.pipelines.whatif_recording import ask_recording

    link = None if given["link_gb_s"] is None else round(given["link_gb_s"] * GB)
    plan = ExpertPlan(
        given["expert_bytes"], link, given["steps_between"], nodes=given["nodes"] or 1, groups=given["groups"] or 1
    )
    progress = ProgressLine(quiet=given["quiet"], verbose=False)
    try:
        paths = [Path(one) for one in given["inputs"]]
        return ask_recording(paths, given["experts"], plan, Serving(given["engine"], given["version"]), progress)
    finally:
        progress.close()
