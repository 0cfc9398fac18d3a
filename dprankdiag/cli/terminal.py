"""The terminal: where results, errors and progress go, and how wide and colourful they may be."""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress
from typing import TextIO

from dprankdiag.errors import UsageError
from dprankdiag.views.base import DEFAULT_WIDTH
from dprankdiag.views.printable import make_printable

MAX_WIDTH = 120
_CLEAR_LINE = "\r\x1b[2K"


def write_result(text: str) -> bool:
    """Write the result to standard output; a reader that has gone away is no error.

    Returns:
        Whether anybody still reads.

    Raises:
        UsageError: standard output cannot be written, for example because the disk is full.
    """
    if sys.stdout is None:
        return False
    _keep_unencodable(sys.stdout)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _point_stdout_nowhere()
        return False
    except OSError as error:
        _point_stdout_nowhere()
        raise UsageError(f"cannot be written ({error.strerror or error})", where="standard output") from error
    return True


def _point_stdout_nowhere() -> None:
    """Send what is still buffered into nothing, so that leaving does not raise again."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def write_error(text: str, *, keep_lines: bool = False, prefix: str = "dprankdiag: ") -> None:
    """Write a line to standard error, safe to print."""
    if sys.stderr is None:
        return
    _keep_unencodable(sys.stderr)
    with suppress(OSError):
        sys.stderr.write(f"{prefix}{make_printable(text, keep_lines=keep_lines)}\n")
        sys.stderr.flush()


def _keep_unencodable(stream: TextIO) -> None:
    """Let characters that the terminal's encoding lacks appear as escapes instead of raising."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether a person is reading a stream."""
    return stream is not None and not stream.closed and stream.isatty()


def wants_color(no_color: bool) -> bool:
    """Decide on colour: for a terminal, unless the option, ``NO_COLOR`` or a dumb terminal forbids it.

    Source: https://no-color.org (any value that is not empty forbids colour).
    """
    forbidden = no_color or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return is_terminal(sys.stdout) and not forbidden


def find_width() -> int:
    """Take the terminal's width up to 120 columns; 80 where nobody looks, so that pipes get the same bytes."""
    if not is_terminal(sys.stdout):
        return DEFAULT_WIDTH
    return min(shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns, MAX_WIDTH)


class ProgressLine:
    """Show the stage at work on one line of a terminal, or with `verbose` each stage with its seconds."""

    def __init__(self, *, quiet: bool, verbose: bool) -> None:
        self._is_live = is_terminal(sys.stderr) and not quiet and not verbose
        self._verbose = verbose
        self._stage = ""
        self._began_s = time.perf_counter()

    def __call__(self, stage: str, share: float | None) -> None:
        """Take note of a stage and of how much of it is done."""
        if stage != self._stage:
            self.close()
            self._stage = stage
            self._began_s = time.perf_counter()
        if self._is_live:
            done = "" if share is None else f" {100 * share:.0f} %"
            sys.stderr.write(f"{_CLEAR_LINE}{make_printable(stage)}{done}")
            sys.stderr.flush()

    def close(self) -> None:
        """End the stage at work and leave the line empty."""
        if self._verbose and self._stage:
            write_error(f"{self._stage}: {time.perf_counter() - self._began_s:.2f} s")
        if self._is_live and self._stage:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
        self._stage = ""
