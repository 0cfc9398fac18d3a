"""Files that a command writes: refused before the work begins if they cannot be what was asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dprankdiag.cli.base import FILE
from dprankdiag.errors import UsageError
from dprankdiag.views.base import SUFFIXES, find_format, load_view

if TYPE_CHECKING:
    from dprankdiag.model.diagnosis import Diagnosis
    from dprankdiag.model.schema import Columns

BUNDLE_SUFFIX = ".dprank"

REPORT_FORMATS = ("text", "json", "markdown")
REPORT_SUFFIXES = {".txt": "text", ".json": "json", ".md": "markdown"}
"""What commands write whose result is no diagnosis."""

Command = TypeVar("Command", bound=Callable[..., Any])


def report_options(command: Command) -> Command:
    """Add the options that say in which format, and where to, such a result is written."""
    command = click.option(
        "-o",
        "outputs",
        multiple=True,
        type=FILE,
        metavar="FILE",
        help="Also write FILE (.txt, .json or .md); repeatable.",
    )(command)
    return click.option(
        "--format", "format_name", type=click.Choice(REPORT_FORMATS), default="text", help="Format on stdout."
    )(command)


def writes_bundle(outputs: Sequence[Path]) -> bool:
    """Tell whether a bundle is among the outputs."""
    return any(output.name.lower().endswith(BUNDLE_SUFFIX) for output in outputs)


def check_outputs(outputs: Sequence[Path], inputs: Iterable[Path], known: Sequence[str] | None = None) -> None:
    """Check that every output can be written and replaces no input.

    Args:
        known: suffixes that can be written; those of a diagnosis and its bundle if not given.

    Raises:
        UsageError: unknown suffix, no such folder, a folder itself, named twice, or an input.
    """
    inputs = list(inputs)
    seen: set[Path] = set()
    for output in outputs:
        _check_output(output, (*SUFFIXES, BUNDLE_SUFFIX) if known is None else known)
        resolved = output.resolve()
        if resolved in seen:
            raise UsageError("named twice as output", where=str(output))
        seen.add(resolved)
        for given in inputs:
            if _is_input(resolved, given.resolve()):
                raise UsageError("is an input and would be overwritten", where=str(output), mend="choose another name")


def check_folder(folder: Path) -> None:
    """Check that files can be written into a folder.

    Raises:
        UsageError: it is not there, no folder, or cannot be written.
    """
    if not folder.is_dir():
        raise UsageError("no such folder", where=str(folder), mend="make it first")
    if not os.access(folder, os.W_OK):
        raise UsageError("the folder cannot be written", where=str(folder))


def _check_output(output: Path, known: Sequence[str]) -> None:
    where = str(output)
    if not output.name.lower().endswith(tuple(known)):
        mend = f"there are {', '.join(known)}"
        raise UsageError(f"no output format for the suffix '{output.suffix}'", where=where, mend=mend)
    try:
        is_folder = output.is_dir()
        output.exists()
    except (OSError, ValueError) as error:
        raise UsageError(f"not a usable path ({getattr(error, 'strerror', error)})", where=where) from error
    if is_folder:
        raise UsageError("is a folder, expected a file name", where=where)
    if not output.parent.is_dir():
        raise UsageError(f"no folder '{output.parent}'", where=where, mend="make it first")
    if not os.access(output.parent, os.W_OK):
        raise UsageError(f"the folder '{output.parent}' cannot be written", where=where)


def _is_input(output: Path, given: Path) -> bool:
    if not output.exists():
        return False
    if given.is_dir():
        return output.is_relative_to(given)
    return given.exists() and output.samefile(given)


def write_outputs(
    outputs: Sequence[Path],
    diagnosis: Diagnosis,
    tables: Mapping[str, Columns],
    digests: Sequence[tuple[str, bytes]] = (),
) -> None:
    """Write each output in the format of its suffix; a file appears whole or not at all.

    Args:
        digests: members that a bundle keeps besides, see `store.digests`.

    Raises:
        UsageError: a file cannot be written.
    """
    for output in outputs:
        try:
            _write_output(output, diagnosis, tables, digests)
        except OSError as error:
            raise UsageError(f"cannot be written ({error.strerror or error})", where=str(output)) from error


def write_text(output: Path, text: str) -> None:
    """Write a text file whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    write_bytes(output, text.encode("utf-8", "backslashreplace"))


def write_bytes(output: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    from dprankdiag.store.whole_files import replace_file

    try:
        replace_file(output.resolve(), content)
    except OSError as error:
        raise UsageError(f"cannot be written ({error.strerror or error})", where=str(output)) from error


def _write_output(
    output: Path, diagnosis: Diagnosis, tables: Mapping[str, Columns], digests: Sequence[tuple[str, bytes]]
) -> None:
    from dprankdiag.store.bundle import save_bundle
    from dprankdiag.store.whole_files import replace_file

    target = output.resolve()
    format_name = find_format(output.name)
    if format_name is None:
        save_bundle(target, diagnosis, tables, digests)
    else:
        text = load_view(format_name).render(diagnosis, tables)
        replace_file(target, text.encode("utf-8", "backslashreplace"))
