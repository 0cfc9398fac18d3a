"""`dprankdiag export`: serve the verdicts about running engines as metrics, until it is stopped."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from dprankdiag.cli.amounts import Seconds
from dprankdiag.cli.base import ANSWERED, FILE, RANKS, open_doors
from dprankdiag.cli.exporter import Page, open_page, open_recording, read_address
from dprankdiag.cli.signals import stop_on_signal
from dprankdiag.cli.stored import read_selection, select_option
from dprankdiag.cli.targets import check_once, choose_window, read_access, target_options
from dprankdiag.cli.terminal import write_error
from dprankdiag.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dprankdiag.cli.exporter import Keep
    from dprankdiag.pipelines.record import Asker

ADDRESS = "127.0.0.1:9479"


@click.command(name="export", short_help="Serve verdicts about running engines as metrics.")
@target_options
@select_option
@click.option("--listen", default=ADDRESS, metavar="HOST:PORT", help=f"Where; port 0 takes a free one [{ADDRESS}].")
@click.option("--deployment", default="default", metavar="NAME", help="Label of all metrics [default].")
@click.option("--allow-remote", is_flag=True, help="Let --listen take an address that others can reach.")
@click.option("--interval", "interval_s", type=Seconds(), default=5.0, help="Time between two ticks [5s].")
@click.option("--window", "window_s", type=Seconds(), help="Time judged together [10s, or 3 intervals].")
@click.option("--duration", "duration_s", type=Seconds(), help="End after this time; without it, with Ctrl-C.")
@click.option("--expect-ranks", type=RANKS, metavar="N", help="How many DP ranks there should be.")
@click.option("-o", "output", type=FILE, metavar="FILE", help="Also keep what is told in a recording.")
@click.option("--quiet", is_flag=True, help="Nothing on stderr but errors.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Ask every TARGET again and again and serve what is found at /metrics, for Prometheus to scrape.

    TARGET is as for watch. Targets may come and go: it runs until it is stopped, and findings of an engine that tells
    nothing any more are taken from the page after a while. /healthz says whether it runs, /readyz whether it judges.
    """
    targets = check_once(given["targets"])
    matchers = read_selection(given, targets)
    place = read_address(given["listen"], given["allow_remote"])
    say: Callable[[str], None] = (lambda line: None) if given["quiet"] else write_error
    with (
        closing(open_doors(context).open_poller(targets, read_access(given), matchers)) as asker,
        stop_on_signal() as wait,
        open_recording(given["output"]) as keep,
        open_page(given, targets, place) as (page, address),
    ):
        say(f"metrics at {address} (Ctrl-C ends it)")
        _export(asker, wait, given, keep, page, say)
    return ANSWERED


def _export(
    asker: Asker,
    wait: Callable[[float], bool],
    given: dict[str, Any],
    keep: Keep,
    page: Page,
    say: Callable[[str], None],
) -> None:
    from dprankdiag.pipelines.failures import Failures
    from dprankdiag.pipelines.ticks import run_ticks
    from dprankdiag.pipelines.watch import Watcher

    interval_s: float = given["interval_s"]
    watcher = Watcher(choose_window(given["window_s"], interval_s), given["expect_ranks"])
    failures = Failures()
    trouble = ""
    for _ in run_ticks(interval_s, wait, duration_s=given["duration_s"]):
        at_ns = time.time_ns()
        told = asker.poll()
        keep(told, at_ns)
        for line in failures.note(told):
            say(line)
        try:
            page.show(watcher.observe(told, at_ns))
        except (InputError, UsageError) as error:
            # What targets tell together may make no sense for a while, as when one is replaced: no end of the service.
            page.note_trouble()
            if str(error) != trouble:
                say(str(error))
            trouble = str(error)
        else:
            trouble = ""
