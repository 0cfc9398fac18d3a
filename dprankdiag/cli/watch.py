"""`dprankdiag watch`: judge running engines, once or tick by tick."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from dprankdiag.cli.amounts import Seconds
from dprankdiag.cli.analyze import meets_condition
from dprankdiag.cli.base import ANSWERED, FAIL_ON_REACHED, FILE, RANKS, open_doors
from dprankdiag.cli.exporter import Keep, open_page, open_recording, read_address
from dprankdiag.cli.signals import stop_on_signal
from dprankdiag.cli.stored import read_selection, select_option
from dprankdiag.cli.targets import check_once, choose_window, read_access, target_options
from dprankdiag.cli.terminal import find_width, is_terminal, wants_color, write_error, write_result
from dprankdiag.errors import InputError
from dprankdiag.views.base import load_view

if TYPE_CHECKING:
    from dprankdiag.model.ledgers import LedgerAnswer, NoData
    from dprankdiag.pipelines.record import Asker
    from dprankdiag.pipelines.watch import Report

_CLEAR, _HOME, _END_LINE, _REST = "\x1b[2J", "\x1b[H", "\x1b[K\n", "\x1b[J"
"""Clear the screen, go to the upper left, clear the rest of a line, of the screen (ECMA-48: ED, CUP, EL, ED)."""

Export = Callable[["Report"], None]
Show = Callable[["Report"], bool]
"""Show a tick; False where nobody looks any more."""


@click.command(name="watch", short_help="Judge running engines, once or tick by tick.")
@target_options
@select_option
@click.option("--once", is_flag=True, help="Ask twice, an interval apart; print the whole diagnosis and end.")
@click.option("--interval", "interval_s", type=Seconds(), default=5.0, help="Time between two ticks [5s].")
@click.option("--window", "window_s", type=Seconds(), help="Time judged together [10s, or 3 intervals].")
@click.option("--duration", "duration_s", type=Seconds(), help="End after this time; without it, with Ctrl-C.")
@click.option("--format", "format_name", type=click.Choice(["text", "json"]), default="text", help="Format on stdout.")
@click.option(
    "--fail-on",
    "fail_on",
    multiple=True,
    type=click.Choice(["never", "warning", "critical", "inconclusive"]),
    help="End with 1 on a finding of at least this severity, or without a verdict; may be repeated.",
)
@click.option("--expect-ranks", type=RANKS, metavar="N", help="How many DP ranks there should be.")
@click.option("-o", "output", type=FILE, metavar="FILE", help="Also keep what is told in a recording.")
@click.option("--listen", metavar="HOST:PORT", help="Serve the findings as Prometheus metrics.")
@click.option("--deployment", default="default", metavar="NAME", help="Label of these metrics [default].")
@click.option("--allow-remote", is_flag=True, help="Let --listen take an address that others can reach.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--no-color", is_flag=True, help="No colour (as with NO_COLOR set).")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Ask every TARGET again and again and say which rank holds the others back, and why.

    TARGET is the URL of an engine (http://HOST:PORT) or another source as for record; ports and nodes of one engine are
    judged together. On a terminal the screen is drawn anew at each tick; elsewhere each tick is a short block, or with
    --format json an object a line.
    """
    targets = check_once(given["targets"])
    listen = read_address(given["listen"], given["allow_remote"]) if given["listen"] is not None else None
    matchers = read_selection(given, targets)
    with (
        closing(open_doors(context).open_poller(targets, read_access(given), matchers)) as asker,
        stop_on_signal() as wait,
        _open_extras(given, listen) as (keep, export),
    ):
        if given["once"]:
            return _watch_once(asker, wait, given, keep, export)
        return _watch(asker, wait, given, keep, export)


@contextmanager
def _open_extras(given: dict[str, Any], listen: tuple[str, int] | None) -> Iterator[tuple[Keep, Export]]:
    """Open the recording and the port that were asked for; nothing is kept or shown where they were not."""
    with ExitStack() as stack:
        keep = stack.enter_context(open_recording(given["output"]))
        export: Export = lambda report: None  # noqa: E731
        if listen is not None:
            page, address = stack.enter_context(open_page(given, given["targets"], listen))
            write_error(f"metrics at {address}")
            export = page.show
        yield keep, export


def _watch_once(
    asker: Asker,
    wait: Callable[[float], bool],
    given: dict[str, Any],
    keep: Keep,
    export: Export,
) -> int:
    from dprankdiag.pipelines.watch import Watcher

    watcher = Watcher(given["interval_s"] + 2 * given["timeout_s"], given["expect_ranks"])
    _observe(asker, watcher.conclude_once, keep)
    if wait(given["interval_s"]):
        raise KeyboardInterrupt
    report = _observe(asker, watcher.conclude_once, keep)
    if not report.tables:
        reasons = "; ".join(dict.fromkeys(f"{item.where}: {item.reason}" for item in report.failed))
        raise InputError(f"no target told numbers of its ranks ({reasons or report.diagnosis.headline})")
    export(report)
    view = load_view(given["format_name"])
    width, color = find_width(), wants_color(given["no_color"])
    write_result(view.render(report.diagnosis, report.tables, width=width, color=color))
    for item in report.failed:
        write_error(f"warning: {item.where}: no data: {item.reason}")
    return _answer(report, given["fail_on"])


def _watch(
    asker: Asker,
    wait: Callable[[float], bool],
    given: dict[str, Any],
    keep: Keep,
    export: Export,
) -> int:
    from dprankdiag.pipelines.ticks import run_ticks
    from dprankdiag.pipelines.watch import Watcher

    interval_s: float = given["interval_s"]
    watcher = Watcher(choose_window(given["window_s"], interval_s), given["expect_ranks"])
    show = _choose_show(given)
    reached = False
    for _ in run_ticks(interval_s, wait, duration_s=given["duration_s"]):
        report = _observe(asker, watcher.observe, keep)
        reached = reached or bool(report.tables)
        export(report)
        if not show(report):
            break
        if reached and _answer(report, given["fail_on"]) == FAIL_ON_REACHED:
            return FAIL_ON_REACHED
    if not reached:
        raise InputError("no target told numbers of its ranks", where=", ".join(given["targets"]))
    return ANSWERED


def _observe(
    asker: Asker,
    judge: Callable[[Sequence[LedgerAnswer | NoData], int], Report],
    keep: Keep,
) -> Report:
    at_ns = time.time_ns()
    told = asker.poll()
    keep(told, at_ns)
    return judge(told, at_ns)


def _choose_show(given: dict[str, Any]) -> Show:
    """Choose how each tick is shown."""
    from dprankdiag.views import watch as view

    if given["format_name"] == "json":
        return lambda report: write_result(view.render_line(report.diagnosis))
    if not is_terminal(sys.stdout):
        return lambda report: write_result(view.render_block(report.diagnosis, report.failed, report.at_ns))

    write_result(_CLEAR)

    def redraw(report: Report) -> bool:
        height = shutil.get_terminal_size((80, view.DEFAULT_HEIGHT)).lines
        color = wants_color(given["no_color"])
        screen = view.render_screen(
            report.diagnosis,
            report.tables,
            report.failed,
            report.at_ns,
            width=find_width(),
            height=height,
            color=color,
        )
        lines = screen.splitlines()[: height - 1]
        return write_result(_HOME + _END_LINE.join(lines) + _END_LINE + _REST)

    return redraw


def _answer(report: Report, fail_on: Sequence[str]) -> int:
    return FAIL_ON_REACHED if any(meets_condition(report.diagnosis, name) for name in fail_on) else ANSWERED
