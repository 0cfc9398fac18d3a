"""Tell which series of an engine's page or load answer holds which field of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from dprankdiag.catalog.ledger import load_fields
from dprankdiag.catalog.rules import read_catalog
from dprankdiag.errors import TableError

Kind = Literal["sglang", "vllm", "sglang_loads"]
_WHERE = "catalogue engine_series.toml"


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """What one row of the catalogue says.

    Attributes:
        index: position in the catalogue; among rows of one field the lowest that is told is taken.
        parts: series that hold it, all of them needed, each by the names it may have without the engine's prefix: a
            counter's with and without `_total`.
        labels: label → values it may have.
        sums: several series of a rank add up to the field.
        lines: that a rank shows from its start, where the engine makes them all at once; 0 if it does not.
        unseen_is_zero: a missing label value is 0 where the rank shows another of the same series.
        zero_is_absent: 0 means that nothing is told.
        scale: factor from the engine's unit to the field's.
    """

    index: int
    field: str
    parts: tuple[tuple[str, ...], ...]
    labels: Mapping[str, tuple[str, ...]]
    sums: bool = False
    lines: int = 0
    unseen_is_zero: bool = False
    zero_is_absent: bool = False
    scale: float = 1.0
    since: str = ""
    until: str = ""
    source: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """List all names of all parts."""
        return tuple(name for part in self.parts for name in part)

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a series with these labels meets the conditions."""
        return all(labels.get(name) in allowed for name, allowed in self.labels.items())


@lru_cache(maxsize=3)
def load_series(kind: Kind) -> tuple[SeriesRow, ...]:
    """Load the rows of one engine's page (or load answer), in the order of the catalogue."""
    return tuple(_make_row(index, row) for index, row in enumerate(read_catalog("engine_series.toml")[kind]))


def by_name(rows: Iterable[SeriesRow]) -> dict[str, tuple[SeriesRow, ...]]:
    """Group rows by each name of a series that they read."""
    grouped: dict[str, tuple[SeriesRow, ...]] = {}
    for row in rows:
        for name in row.names:
            grouped[name] = (*grouped.get(name, ()), row)
    return grouped


def _make_row(index: int, row: Mapping[str, Any]) -> SeriesRow:
    known = load_fields()
    if row.get("field") not in known or not row.get("series") or not row.get("source"):
        raise TableError(f"row {index} has field {row.get('field')!r}, series {row.get('series')!r}", where=_WHERE)
    series = row["series"]
    names = [series] if isinstance(series, str) else series
    is_counter = known[row["field"]].kind == "counter"
    return SeriesRow(
        index=index,
        field=row["field"],
        parts=tuple(_spell(name, is_counter) for name in names),
        labels={
            key: (value,) if isinstance(value, str) else tuple(value) for key, value in row.get("labels", {}).items()
        },
        sums=row.get("sums", False),
        lines=row.get("lines", 0),
        unseen_is_zero=row.get("unseen") == "zero",
        zero_is_absent=row.get("zero") == "absent",
        scale=row.get("scale", 1.0),
        since=row.get("since", ""),
        until=row.get("until", ""),
        source=row["source"],
    )


def _spell(name: str, is_counter: bool) -> tuple[str, ...]:
    """Spell a counter with and without the ending that newer client libraries add."""
    if not is_counter or name.endswith(("_sum", "_count")):
        return (name,)
    bare = name.removesuffix("_total")
    return (f"{bare}_total", bare)
