"""`dprankdiag record`: ask engines again and again and keep what they tell in a file."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dprankdiag.cli.amounts import Seconds, Size
from dprankdiag.cli.base import ANSWERED, FILE, open_doors
from dprankdiag.cli.signals import stop_on_signal
from dprankdiag.cli.stored import read_selection, select_option
from dprankdiag.cli.targets import check_once, read_access, target_options
from dprankdiag.cli.terminal import ProgressLine, write_error
from dprankdiag.errors import InputError
from dprankdiag.units import format_bytes

if TYPE_CHECKING:
    from dprankdiag.pipelines.record import Asker, Recorded


@click.command(name="record", short_help="Keep what engines tell of their load in a file.")
@target_options
@select_option
@click.option("-o", "output", type=FILE, required=True, metavar="FILE", help="The recording; added to if it is one.")
@click.option("--interval", "interval_s", type=Seconds(), default=1.0, help="Time between two ticks [1s].")
@click.option("--duration", "duration_s", type=Seconds(), help="End after this time; without it, with Ctrl-C.")
@click.option("--keep", "keep_s", type=Seconds(), help="Forget what is older than this, such as 24h.")
@click.option("--max-size", "max_bytes", type=Size(), help="Forget the oldest to stay within this, such as 2GB.")
@click.option("--quiet", is_flag=True, help="Nothing on stderr but errors.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Ask every TARGET again and again, and keep what it tells, as told, in a SQLite file.

    TARGET is the URL of an engine (http://HOST:PORT), prometheus+http://HOST:PORT, SGLang's publishers
    (zmq+tcp://HOST:PORT-PORT, zmq+ipc://PATH), or shm: for this host's load snapshots. Diagnose the file with
    dprankdiag analyze, also while it is being written.
    """
    targets = check_once(given["targets"])
    matchers = read_selection(given, targets)
    with closing(open_doors(context).open_poller(targets, read_access(given), matchers)) as asker:
        recorded = _record(asker, given)
    if not recorded.answers:
        mend = f"ask what it offers: dprankdiag doctor {shlex.quote(targets[0])}"
        raise InputError("no target answered", where=", ".join(targets), mend=mend)
    if not given["quiet"]:
        write_error(_sum_up(recorded, given["output"]))
    return ANSWERED


def _record(asker: Asker, given: dict[str, Any]) -> Recorded:
    from dprankdiag.pipelines.record import record
    from dprankdiag.store.recorder import Recorder

    quiet: bool = given["quiet"]
    line = ProgressLine(quiet=quiet, verbose=False)

    def say(text: str) -> None:
        line.close()
        if not quiet:
            write_error(text)

    with (
        Recorder(given["output"], keep_s=given["keep_s"], max_bytes=given["max_bytes"]) as recorder,
        stop_on_signal() as wait,
    ):
        try:
            return record(
                asker.poll,
                recorder.write,
                wait,
                interval_s=given["interval_s"],
                duration_s=given["duration_s"],
                say=say,
                show=lambda done: line(f"recording: tick {done.ticks}, {done.answers} answers, Ctrl-C ends it", None),
            )
        finally:
            line.close()


def _sum_up(recorded: Recorded, output: Path) -> str:
    parts = [
        f"{recorded.ticks} ticks",
        f"{recorded.answers} answers of {recorded.targets} interfaces",
        f"up to {recorded.ranks} ranks",
    ]
    parts += [f"{recorded.failures} polls without data"] if recorded.failures else []
    parts += [f"{recorded.missed} ticks skipped because the answers came late"] if recorded.missed else []
    return f"{output}: {', '.join(parts)}; {format_bytes(output.stat().st_size)}; dprankdiag analyze {output} judges it"
