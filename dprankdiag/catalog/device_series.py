"""Tell which series of other exporters say something of a rank's GPU or host, and what they speak for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from dprankdiag.catalog.causes import load_causes
from dprankdiag.catalog.rules import read_catalog
from dprankdiag.errors import TableError

Reads = Literal["level", "rate", "growth", "bits", "event"]
_WHERE = "catalogue device_series.toml"


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One reading of a GPU or a host; see the head of the catalogue.

    Attributes:
        reading: what it is, as a page says it.
        of: what one series is about.
        bits: of which one must be set, where it reads bits.
        least: share of the peers' median from which a difference is one.
    """

    reading: str
    of: Literal["gpu", "host"]
    series: tuple[str, ...]
    reads: Reads
    worse: Literal["low", "high"]
    least: float
    unit: str
    causes: tuple[str, ...]
    source: str
    labels: Mapping[str, str] = field(default_factory=dict)
    fold: tuple[str, ...] = ()
    bits: int = 0
    per_cpu: bool = False


@lru_cache(maxsize=1)
def load_device_series() -> tuple[DeviceRow, ...]:
    """Load all readings, in the order of the catalogue."""
    return tuple(_make_row(row) for row in read_catalog("device_series.toml")["series"])


def _make_row(row: Mapping[str, Any]) -> DeviceRow:
    many = {name: tuple(row.get(name, ())) for name in ("series", "causes", "fold")}
    try:
        made = DeviceRow(**{**row, **many})
    except TypeError as error:
        raise TableError(str(error), where=_WHERE) from error
    unknown = [cause for cause in made.causes if cause not in load_causes()]
    if unknown or not made.series or (made.reads == "bits") != bool(made.bits):
        raise TableError(f"'{made.reading}' has causes {unknown}, series {made.series}, bits {made.bits}", where=_WHERE)
    return made
