"""Take apart what the user may write for a file: ``PATH``, ``NAME=PATH`` or ``NAME@SECONDS=PATH``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from dprankdiag.errors import UsageError

_NAMED = re.compile(r"(?P<name>[^=@/\\]+)(?:@(?P<at>[^=/\\]*))?=(?P<path>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class NamedPath:
    """A file or folder, with the target it belongs to and the moment it was taken, if said."""

    path: Path
    name: str | None = None
    at_s: float | None = None


def split_named(given: Path) -> NamedPath:
    """Take a path apart; a file that is called just so wins.

    Raises:
        UsageError: the seconds are no number.
    """
    match = _NAMED.fullmatch(str(given))
    if match is None or _exists(given):
        return NamedPath(given)
    if match["at"] is None:
        return NamedPath(Path(match["path"]), match["name"])
    try:
        at_s = float(match["at"])
    except ValueError:
        at_s = math.nan
    if not math.isfinite(at_s):
        raise UsageError(
            f"'{match['at']}' is no number of seconds",
            where=str(given),
            mend="write NAME@SECONDS=PATH, as in a@15=t1.prom",
        )
    return NamedPath(Path(match["path"]), match["name"], at_s)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
