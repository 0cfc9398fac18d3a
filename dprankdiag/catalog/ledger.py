"""Name what engines tell of their load, whatever their release calls it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from dprankdiag.catalog.rules import read_catalog
from dprankdiag.errors import TableError

UNITS = ("requests", "tokens", "pairs", "steps", "s", "ratio", "tokens_per_s", "count")


@dataclass(frozen=True, slots=True)
class Field:
    """A number that engines tell of each rank.

    Attributes:
        kind: "counter" only grows until a restart; "gauge" holds for the moment.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    meaning: str


def load_fields() -> dict[str, Field]:
    """Load all fields by name, in the order of the catalogue."""
    return dict(_load_shipped())


@lru_cache(maxsize=1)
def _load_shipped() -> dict[str, Field]:
    try:
        fields = {name: Field(name, **row) for name, row in read_catalog("ledger.toml").items()}
    except TypeError as error:
        raise TableError(str(error), where="catalogue ledger.toml") from error
    for field in fields.values():
        if field.kind not in ("counter", "gauge") or field.unit not in UNITS:
            raise TableError(
                f"{field.name} has kind {field.kind!r}, unit {field.unit!r}", where="catalogue ledger.toml"
            )
    return fields
