"""Sort samples of a page by engine and rank, and read the fields of the ledger out of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from dprankdiag.catalog.engine_series import SeriesRow, by_name
from dprankdiag.model.ledgers import FloatArray

Group: TypeAlias = tuple[str | None, str | None]
"""What tells the engines of one page apart: the model, and a role or replica."""

Copy: TypeAlias = tuple[int, int]
"""Which process of a rank wrote a series: pipeline rank, tensor rank."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a series belongs.

    Attributes:
        name: of the series, without prefix.
        rank: None where it carries no rank label.
        rows: of the catalogue that read it; empty where another row of the same name does, for another label.
        prefilling: number of ranks that computed a prefill, of series that are split by it.
        told: labels that say something of the engine's configuration.
    """

    name: str
    group: Group
    rank: int | None
    copy: Copy
    rows: tuple[int, ...]
    prefilling: int | None = None
    told: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class RankSamples:
    """Samples of one process of one rank.

    Attributes:
        values: row → sum (or last) of its samples.
        counts: row → number of its samples.
        names: series seen, wanted label or not.
    """

    values: dict[int, float] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


class SeriesTable:
    """The rows of one engine, ready to read samples with."""

    def __init__(self, rows: Iterable[SeriesRow]) -> None:
        self.rows = {row.index: row for row in rows}
        self.named = by_name(self.rows.values())
        self.fields = tuple(dict.fromkeys(row.field for row in self.rows.values()))

    def find_rows(self, name: str, labels: Mapping[str, str]) -> tuple[int, ...]:
        """Find the rows that read a series."""
        return tuple(row.index for row in self.named.get(name, ()) if row.takes(labels))

    def gather(self, samples: Iterable[tuple[Place, float]], n_ranks: int) -> dict[int, dict[Copy, RankSamples]]:
        """Gather the samples of one group by rank and process.

        Args:
            n_ranks: of the whole engine; steps in which all of them computed a prefill are left out of series that are
                split by it, and so are those in which none did.
        """
        gathered: dict[int, dict[Copy, RankSamples]] = {}
        for place, value in samples:
            if place.rank is None:
                continue
            mine = gathered.setdefault(place.rank, {}).setdefault(place.copy, RankSamples())
            mine.names.add(place.name)
            if place.prefilling is not None and not 0 < place.prefilling < n_ranks:
                continue
            for row in place.rows:
                mine.values[row] = mine.values.get(row, 0.0) + value if self.rows[row].sums else value
                mine.counts[row] = mine.counts.get(row, 0) + 1
        return gathered

    def read(self, ranks: Mapping[int, RankSamples], last_name: str) -> dict[str, FloatArray]:
        """Read all fields that some rank tells.

        Args:
            last_name: last series of the page, which may lack lines: of it nothing is added up or taken for 0 unless
                the ranks show as many lines each.
        """
        unsure = self._find_unsure(ranks, last_name)
        values: dict[str, FloatArray] = {}
        for row in self.rows.values():
            told = np.array([_read_row(row, samples, row.index in unsure) for samples in ranks.values()])
            if not np.isnan(told).all():
                earlier = values.get(row.field)
                values[row.field] = told if earlier is None else np.where(np.isnan(earlier), told, earlier)
        return values

    def _find_unsure(self, ranks: Mapping[int, RankSamples], last_name: str) -> set[int]:
        unsure = set()
        for row in self.named.get(last_name, ()):
            counts = {samples.counts.get(row.index, 0) for samples in ranks.values() if last_name in samples.names}
            if (row.sums or row.unseen_is_zero) and (len(counts) > 1 or len(ranks) == 1):
                unsure.add(row.index)
        return unsure


def _read_row(row: SeriesRow, samples: RankSamples, is_unsure: bool) -> float:
    if is_unsure:
        return np.nan
    value = samples.values.get(row.index)
    if value is None:
        is_zero = row.unseen_is_zero and not samples.names.isdisjoint(row.names)
        return 0.0 if is_zero else np.nan
    return np.nan if row.zero_is_absent and value == 0 else value * row.scale


def read_rank(text: str | None) -> int | None:
    """Read a rank label; None where it is missing or no number."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
