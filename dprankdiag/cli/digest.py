"""`dprankdiag digest`: make of each recording a small bundle that can be joined with those of other nodes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dprankdiag.cli.analyze import check_exists
from dprankdiag.cli.base import ANSWERED, FILE
from dprankdiag.cli.outputs import check_folder, write_bytes
from dprankdiag.cli.terminal import ProgressLine, write_error, write_result
from dprankdiag.errors import DprankdiagError, InputError, UsageError

if TYPE_CHECKING:
    from dprankdiag.pipelines.digest import Digested


@click.command(name="digest", short_help="Make of each trace a small bundle that can be joined.")
@click.argument("paths", nargs=-1, required=True, type=FILE, metavar="PATH...")
@click.option("--into", type=FILE, default=Path("."), metavar="FOLDER", help="Where bundles are written [here].")
@click.option("--dask", metavar="ADDRESS", help="Let workers of this Dask scheduler (tcp://HOST:8786) do it.")
@click.option("--patterns", type=FILE, metavar="FILE", help="Your own kernel names (TOML), tried before the known.")
@click.option("--quiet", is_flag=True, help="No progress and no warnings on stderr.")
@click.option("--verbose", is_flag=True, help="Each stage with its seconds on stderr.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def command(**given: Any) -> int:
    """Digest recordings next to where they lie; dprankdiag analyze *.dprank then joins those of all nodes.

    PATH is a trace as for analyze, or a folder of them. Each becomes one bundle, which holds a verdict about its own
    ranks, every collective call of theirs, and what they did in between, summed.

    With --dask, PATH is as the workers of an existing cluster see it: each digests what lies on its own host, bundles
    are written here.
    """
    if given["quiet"] and given["verbose"]:
        raise UsageError("--quiet and --verbose exclude each other")
    check_folder(given["into"])
    if given["patterns"] is not None:
        check_exists(given["patterns"])
    written, failures = [], []
    for path, name, found in (_digest_there if given["dask"] else _digest_here)(given):
        if isinstance(found, DprankdiagError):
            failures.append(found)
            if not given["quiet"]:
                write_error(f"warning: {found}")
            continue
        target = given["into"] / name
        write_bytes(target, found.content)
        written.append(target)
        write_result(f"{describe(path, target, found)}\n")
    if not written:
        raise failures[0] if failures else InputError("no trace to digest", where=str(given["paths"][0]))
    if len(written) > 1:
        write_result(f"join them: dprankdiag analyze {shlex.quote(str(given['into']))}/*.dprank\n")
    return ANSWERED


def describe(path: str, target: Path, found: Digested) -> str:
    """Say in a line what became of a file."""
    ranks = "1 rank" if found.ranks == 1 else f"{found.ranks:,} ranks"
    size = f"{len(found.content) / 1e6:.1f} MB"
    whole = ", kernels kept one by one" if found.is_whole else ""
    return f"{path} -> {target}: {ranks}, {size}{whole}"


Found = tuple[str, str, "Digested | DprankdiagError"]
"""Path of a recording, name of its bundle, and the bundle or what is wrong with the recording."""


def _digest_here(given: dict[str, Any]) -> Iterator[Found]:
    """Digest one recording after the other."""
    from dprankdiag.pipelines.digest import digest, list_traces, name_bundles

    paths = list_traces(given["paths"])
    progress = ProgressLine(quiet=given["quiet"], verbose=given["verbose"])
    for path, name in zip(paths, name_bundles(paths), strict=True):
        try:
            found: Digested | DprankdiagError = digest(path, given["patterns"], progress)
        except (InputError, UsageError) as error:
            found = error
        finally:
            progress.close()
        yield str(path), name, found


def _digest_there(given: dict[str, Any]) -> Iterator[Found]:
    """Let the workers of a Dask cluster digest what they see."""
    from dprankdiag.pipelines.cluster import digest_on_cluster

    return digest_on_cluster(given["dask"], given["paths"], given["patterns"])
