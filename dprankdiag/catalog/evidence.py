"""Define the numbers that findings rest on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from dprankdiag.catalog.rules import read_catalog
from dprankdiag.errors import TableError

UNITS: tuple[str, ...] = ("ns", "ratio", "count", "tokens", "bytes")


@dataclass(frozen=True, slots=True)
class EvidenceKind:
    """A kind of evidence: its unit and how its value is taken, in one sentence."""

    name: str
    unit: str
    definition: str


def load_evidence() -> dict[str, EvidenceKind]:
    """Load all kinds of evidence by name, in the order of the catalogue."""
    return dict(_load_shipped())


@lru_cache(maxsize=1)
def _load_shipped() -> dict[str, EvidenceKind]:
    try:
        kinds = {name: EvidenceKind(name, **row) for name, row in read_catalog("evidence.toml").items()}
    except TypeError as error:
        raise TableError(str(error), where="catalogue evidence.toml") from error
    for kind in kinds.values():
        if kind.unit not in UNITS:
            raise TableError(f"{kind.name} has unit {kind.unit!r}", where="catalogue evidence.toml")
    return kinds
