"""`dprankdiag harness run`: let real ranks run with a planted fault, and record them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import click

from dprankdiag.cli.terminal import ProgressLine, write_error
from dprankdiag.errors import UsageError

_BARE = ("sockets", "model")
"""Executors that need no torch, so that none is looked for."""


@click.command(short_help="Let real ranks run with a planted fault, and record them.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Folder to write to.",
)
@click.option("--fault", "faults", multiple=True, metavar="NAME", help="Plant this fault [each in turn, and none].")
@click.option("--ranks", type=click.IntRange(4, 64), default=4, help="How many [4].")
@click.option(
    "--executor",
    type=click.Choice(["auto", "model", "nccl", "gloo", "sockets", "single-gpu"]),
    default="auto",
    help="What the ranks are [what this machine has: nccl, single-gpu, gloo, sockets].",
)
@click.option("--python", metavar="PATH", help="Interpreter that has torch [this one, else the system's].")
@click.option(
    "--format",
    "format_name",
    type=click.Choice(["nsys", "torch"]),
    help="Nsight Systems exports or torch profiler traces [by the executor].",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def run(
    output: Path,
    faults: tuple[str, ...],
    ranks: int,
    executor: str,
    python: str | None,
    format_name: Literal["nsys", "torch"] | None,
    debug: bool,
) -> None:
    """Let ranks run in lockstep, for real, and write what they recorded with a truth.json beside it.

    The ranks wait for each other in real collectives, one of them is slowed, and a twin without that is run to measure
    what it costs. Each fault gets a folder of its own in DIR. Under torchrun each process is a rank (docs/gpu.md).
    """
    from dprankdiag.harness.run_cases import choose_format, make_runs
    from dprankdiag.harness.run_choice import choose_executor, find_torch
    from dprankdiag.harness.run_faults import list_possible
    from dprankdiag.harness.run_joined import choose_joined, find_seat, join_runs

    line = ProgressLine(quiet=False, verbose=False)
    try:
        seat = find_seat()
        torch = find_torch(sys.executable if seat else python) if executor not in _BARE else None
        chosen = choose_joined(executor, seat, torch) if seat else choose_executor(executor, ranks, torch)
        format = choose_format(chosen.executor, format_name)
        names = faults or list_possible(chosen.executor, format)
        if seat:
            join_runs(names, output, seat=seat, choice=chosen, format=format)
        else:
            make_runs(names, output, ranks=ranks, choice=chosen, format=format, progress=line)
    except (ValueError, OSError) as problem:
        raise UsageError(str(problem)) from problem
    finally:
        line.close()
    if seat is None or not seat.rank:
        write_error(f"{len(names)} written, {chosen}; next: dprankdiag harness score {output}")
