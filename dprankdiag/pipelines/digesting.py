"""Digest what was read, so that a bundle can be joined with those of other nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dprankdiag.analysis.digesting import digest_tables
from dprankdiag.catalog.kernels import load_kernels, mark_patterns
from dprankdiag.catalog.ranges import load_ranges
from dprankdiag.model.digests import is_digested
from dprankdiag.model.sources import Reading
from dprankdiag.store.digests import pack_digests

ROOM_BYTES = 3000
"""What a bundle may take of a rank's step, so that one of a large deployment can be sent about."""


@dataclass(frozen=True, slots=True)
class Digests:
    """The members of a bundle that keep digests.

    Attributes:
        members: name and content, see `store.digests`.
        is_whole: kernels of a recording are kept one by one, for a sum between calls would lose what the diagnosis
            needs.
    """

    members: tuple[tuple[str, bytes], ...]
    is_whole: bool

    @property
    def size_bytes(self) -> int:
        """Count the bytes that they take."""
        return sum(len(content) for _, content in self.members)

    def fit(self, rank_steps: int) -> bool:
        """Tell whether they are small enough to go into every bundle: sums are, kernels one by one need not be."""
        return not self.is_whole or self.size_bytes <= ROOM_BYTES * rank_steps


def digest_readings(readings: Sequence[Reading], patterns: Path | None = None) -> Digests:
    """Digest readings, whose tables are left as they are; what is a digest already is kept.

    Args:
        patterns: TOML file of the user's own kernel names.
    """
    catalog, ranges = load_kernels(patterns), load_ranges()
    kept: list[Reading] = []
    is_whole = False
    for reading in readings:
        tables = reading.tables
        if not is_digested(tables):
            digested = digest_tables(tables, reading.names, len(reading.actors), catalog, ranges)
            is_whole = is_whole or digested is None
            tables = digested or tables
        kept.append(replace(reading, tables=tables))
    return Digests(tuple(pack_digests(kept, mark_patterns(patterns))), is_whole)
