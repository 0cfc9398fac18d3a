"""`dprankdiag dashboard`: a recording, a saved diagnosis or running engines in the browser."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dprankdiag.cli.amounts import Seconds
from dprankdiag.cli.analyze import check_exists
from dprankdiag.cli.base import ANSWERED, FILE, RANKS, Doors, open_doors
from dprankdiag.cli.signals import stop_on_signal
from dprankdiag.cli.stored import read_selection, select_option
from dprankdiag.cli.targets import access_options, check_once, check_variable_name, choose_window, read_access
from dprankdiag.cli.terminal import ProgressLine, write_error
from dprankdiag.errors import UsageError

if TYPE_CHECKING:
    from dash import Dash

    from dprankdiag.dashboard.provider import Provider
    from dprankdiag.dashboard.security import Entrance

_TARGET = re.compile(r"[a-z][a-z0-9+.-]*://|shm:", re.IGNORECASE)
"""How a target begins, as opposed to a file."""

_PLACE = re.compile(r"[\w.-]+:\d+", re.ASCII)
"""A host and its port, as a target is written that lacks its beginning."""

PORT = 8050
_CHECK_S = 3600.0


@click.command(name="dashboard", short_help="Look at recordings or running engines in the browser.")
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@access_options()
@select_option
@click.option("--port", type=click.IntRange(0, 65_535), default=PORT, help=f"Port; 0 takes a free one [{PORT}].")
@click.option("--open", "open_browser", is_flag=True, help="Open the browser on it.")
@click.option(
    "--interval", "interval_s", type=Seconds(), default=1.0, help="Time between two questions to targets [1s]."
)
@click.option("--window", "window_s", type=Seconds(), help="Time judged together [10s, or 3 intervals].")
@click.option("--expect-ranks", type=RANKS, metavar="N", help="How many ranks there should be.")
@click.option("-o", "output", type=FILE, metavar="FILE", help="Also keep what targets tell in a recording.")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Where to listen [127.0.0.1].")
@click.option("--allow-remote", is_flag=True, help="Let --host be reached by others who know the token to view.")
@click.option("--view-token-env", metavar="NAME", help="Environment variable that holds the token to view.")
@click.option("--view-token-file", type=FILE, metavar="FILE", help="File that holds the token to view.")
@click.option("--allow-host", "names", multiple=True, metavar="NAME", help="Another name the server is reached by.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Show who gates the service, why and what it costs, from the verdict down to the step.

    TARGET is a recording of kernels, a bundle (.dprank), a recording of metrics or saved snapshots as for analyze; or
    addresses of running engines as for watch, which are then judged tick by tick. Without any, the recording in the
    package is shown. The dashboard is served to this machine alone and ends with Ctrl-C.
    """
    from dprankdiag.dashboard.serve import listen, serve

    # Where it cannot listen it says so before a large recording is read.
    entrance = read_entrance(context)
    with (
        listen(given["host"], given["port"]) as place,
        open_dashboard(context, entrance) as app,
        serve(app, place) as address,
        stop_on_signal() as wait,
    ):
        write_error(f"dashboard at {address} (Ctrl-C ends it)", prefix="")
        if given["open_browser"]:
            import webbrowser

            webbrowser.open(address)
        while not wait(_CHECK_S):
            pass
    return ANSWERED


def read_entrance(context: click.Context) -> Entrance:
    """Decide who is let in, as a command line says.

    Raises:
        UsageError: others could reach it who shall not.
    """
    from dprankdiag.dashboard.security import open_entrance

    given = context.params
    token = _read_view_token(given)
    return open_entrance(given["host"], allow_remote=given["allow_remote"], token=token, names=given["names"])


@contextmanager
def open_dashboard(context: click.Context, entrance: Entrance) -> Iterator[Dash]:
    """Give the application that a command line asks for; engines are asked until the block ends.

    Raises:
        UsageError: what is to be shown is not there.
    """
    from dprankdiag.dashboard.app import create_app

    with _open_provider(context.params, open_doors(context)) as provider:
        yield create_app(provider, entrance)


def _read_view_token(given: dict[str, Any]) -> str | None:
    from dprankdiag.collectors.http import read_secret

    variable, file = check_variable_name("--view-token-env", given["view_token_env"]), given["view_token_file"]
    if variable is not None and file is not None:
        raise UsageError("expected the token to view from one place", mend="give --view-token-env or --view-token-file")
    secret = read_secret(env=variable, file=file, header="Cookie")
    return None if secret is None else secret.value


@contextmanager
def _open_provider(given: dict[str, Any], doors: Doors) -> Iterator[Provider]:
    names: Sequence[str] = given["targets"]
    are_targets = {_TARGET.match(name) is not None for name in names}
    if are_targets == {True, False}:
        raise UsageError("files and running engines cannot be shown together", mend="start a dashboard for each")
    if are_targets == {True}:
        with _open_live(given, doors) as provider:
            yield provider
        return
    if given["output"] is not None:
        mend = "dprankdiag analyze PATH -o FILE.dprank saves a diagnosis"
        raise UsageError("keeps what running engines tell, and none is given", where="-o", mend=mend)
    yield _load(names, given["expect_ranks"], doors)


@contextmanager
def _open_live(given: dict[str, Any], doors: Doors) -> Iterator[Provider]:
    from dprankdiag.collectors.http import hide_credentials
    from dprankdiag.dashboard.provider import LiveProvider
    from dprankdiag.pipelines.watch import Watcher

    targets = check_once(given["targets"])
    matchers = read_selection(given, targets)
    interval_s: float = given["interval_s"]
    watcher = Watcher(choose_window(given["window_s"], interval_s), given["expect_ranks"])
    with ExitStack() as stack:
        asker = stack.enter_context(closing(doors.open_poller(targets, read_access(given), matchers)))
        extras: dict[str, Any] = {}
        if given["output"] is not None:
            from dprankdiag.store.recorder import Recorder

            extras["keep"] = stack.enter_context(Recorder(given["output"])).write
        source = ", ".join(map(hide_credentials, targets))
        yield stack.enter_context(LiveProvider(source, asker, watcher, interval_s=interval_s, **extras))


def _load(names: Sequence[str], expect_ranks: int | None, doors: Doors) -> Provider:
    from dprankdiag.dashboard.provider import show_ledgers, show_runs, show_saved, show_what_if
    from dprankdiag.store.bundle import is_bundle, load_bundle
    from dprankdiag.store.ledger_record import is_ledger_record, load_ledgers
    from dprankdiag.store.whatif_file import is_whatif, load_whatif

    if names:
        paths = [Path(name) for name in names]
        _check_paths(paths)
        if len(paths) == 1 and is_ledger_record(paths[0]):
            return show_ledgers(paths[0].name, load_ledgers(paths[0]))
        if len(paths) == 1 and is_whatif(paths[0]):
            return show_what_if(paths[0].name, load_whatif(paths[0]))
        bundles = [path for path in paths if is_bundle(path)]
        if len(bundles) == len(paths):
            return show_runs(_name_apart(paths), [load_bundle(path) for path in paths])
        if bundles:
            other = next(path for path in paths if path not in bundles)
            mend = f"save the others as bundles: dprankdiag analyze {shlex.quote(str(other))} -o X.dprank"
            raise UsageError("bundles are shown with bundles only", where=shlex.quote(str(bundles[0])), mend=mend)
        return show_saved(", ".join(path.name for path in paths), *_read(paths, expect_ranks, doors))
    with resources.as_file(resources.files("dprankdiag") / "data" / "demo.sqlite") as recording:
        write_error("nothing was named, so the recording in the package is shown", prefix="")
        return show_saved("the recording in the package", *_read([recording], expect_ranks, doors))


def _name_apart(paths: Sequence[Path]) -> list[str]:
    """Name files by their own names, or by their whole paths where those are alike."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _read(paths: Sequence[Path], expect_ranks: int | None, doors: Doors) -> tuple[Any, Any, Any]:
    progress = ProgressLine(quiet=False, verbose=False)
    try:
        outcome = doors.diagnose(paths, {"expect_ranks": expect_ranks, "keep_steps": True}, progress)
    finally:
        progress.close()
    return outcome.diagnosis, outcome.tables, outcome.steps


def _check_paths(paths: Sequence[Path]) -> None:
    from dprankdiag.readers.named_paths import split_named

    for path in paths:
        if _PLACE.fullmatch(str(path)) and not path.exists():
            mend = f"of a running engine name the address: http://{path}"
            raise UsageError("no such file or folder", where=str(path), mend=mend)
        check_exists(split_named(path).path)
