"""Times and sizes as people write them on a command line."""

from __future__ import annotations

import math
import re
from typing import Any

import click

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


class Seconds(click.ParamType[float]):
    """A time such as 5, 500ms, 10min, 24h, 7d; seconds where no unit is given."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it as seconds."""
        if isinstance(value, float):
            return value
        found = _AMOUNT.fullmatch(str(value))
        unit = _SECONDS.get(found[2].lower() or "s") if found else None
        if found is None or unit is None or not 0 < (seconds := float(found[1]) * unit) < math.inf:
            self.fail(f"'{value}' is no time above zero, expected such as 5, 500ms, 10min, 24h, 7d", param, ctx)
        return seconds


class Size(click.ParamType[int]):
    """A size such as 500MB or 2GiB; bytes where no unit is given."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it as bytes."""
        if isinstance(value, int):
            return value
        found = _AMOUNT.fullmatch(str(value))
        unit = _BYTES.get(found[2].lower()) if found else None
        if found is None or unit is None or float(found[1]) * unit < 1:
            self.fail(f"'{value}' is no size, expected such as 500MB or 2GB", param, ctx)
        return int(float(found[1]) * unit)
