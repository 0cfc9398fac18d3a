"""Sort samples of a page by engine and rank, and read the fields of the ledger out of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from dprankdiag.catalog.engine_series import SeriesRow, by_name
from dprankdiag.collectors.exposition import WHOLE, Page
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
        told: labels that say something of the engine's configuration.
    """

    name: str
    group: Group
    rank: int | None
    copy: Copy
    rows: tuple[int, ...]
    told: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class RankSamples:
    """Samples of one process of one rank.

    Attributes:
        values: row → sum (or last) of its samples.
        names: series seen, wanted label or not.
    """

    values: dict[int, float] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class PageEnd:
    """The series that a page ends with. A page that was cut between two lines looks whole, and may lack some of them.

    Attributes:
        name: of the series; "" where it is known to be whole or nobody reads it.
        counts: rank → its lines.
        last_rank: of the last line; the pages of engines mostly go on rank by rank.
        by_rank: they did here.
    """

    name: str = ""
    counts: Mapping[int, int] = field(default_factory=dict)
    last_rank: int | None = None
    by_rank: bool = True

    def doubts(self, row: SeriesRow, rank: int, n_ranks: int) -> bool:
        """Tell whether a rank may lack lines that a row needs to add up, or to take as 0 if missing."""
        if not self.name or not (row.sums or row.unseen_is_zero) or self.name not in row.names:
            return False
        if row.lines:
            return self.counts.get(rank, 0) < row.lines
        if row.sums and len(self.counts) == n_ranks > 1 and len(set(self.counts.values())) == 1:
            return False
        return rank == self.last_rank or not self.by_rank


def find_end(page: Page[Place]) -> PageEnd:
    """Find the series that a page ends with; of one group of it the lines of that group."""
    last = page.last
    if last is None:
        return PageEnd()
    ranks = [place.rank for place, _ in page if place.name == last.name and place.rank is not None]
    runs = [rank for rank, before in zip(ranks, [None, *ranks], strict=False) if rank != before]
    return PageEnd(last.name, Counter(ranks), last.rank, len(runs) == len(set(runs)))


class SeriesTable:
    """The rows of one engine, ready to read samples with."""

    def __init__(self, rows: Iterable[SeriesRow]) -> None:
        self.rows = {row.index: row for row in rows}
        self.named = by_name(self.rows.values())
        self.fields = tuple(dict.fromkeys(row.field for row in self.rows.values()))

    def find_rows(self, name: str, labels: Mapping[str, str]) -> tuple[int, ...]:
        """Find the rows that read a series."""
        return tuple(row.index for row in self.named.get(name, ()) if row.takes(labels))

    def gather(self, page: Page[Place], n_ranks: int) -> dict[int, dict[Copy, RankSamples]]:
        """Gather the samples of one group by rank and process.

        Args:
            n_ranks: of the whole engine. Parts of a series are the ranks that computed a prefill in a step: steps in
                which all of them did are left out, and so are those in which none did.
        """
        counts = (page.parts == WHOLE) | ((page.parts > 0) & (page.parts < n_ranks))
        at, values = page.at[counts], page.values[counts]
        sums = np.bincount(at, values, minlength=len(page.places)).tolist()
        position = np.full(len(page.places), -1)
        position[at] = np.arange(len(at))
        gathered: dict[int, dict[Copy, RankSamples]] = {}
        for number in np.argsort(position, kind="stable").tolist():
            place = page.places[number]
            if place.rank is None:
                continue
            mine = gathered.setdefault(place.rank, {}).setdefault(place.copy, RankSamples())
            mine.names.add(place.name)
            if position[number] < 0:
                continue
            for row in place.rows:
                is_sum = self.rows[row].sums
                mine.values[row] = (
                    mine.values.get(row, 0.0) + sums[number] if is_sum else float(values[position[number]])
                )
        return gathered

    def read(self, ranks: Mapping[int, RankSamples], end: PageEnd) -> dict[str, FloatArray]:
        """Read all fields that some rank tells.

        Args:
            end: of the page; where it leaves a series in doubt, nothing of it is added up or taken for 0.
        """
        values: dict[str, FloatArray] = {}
        for row in self.rows.values():
            told = np.array(
                [
                    np.nan if end.doubts(row, rank, len(ranks)) else _read_row(row, samples)
                    for rank, samples in ranks.items()
                ]
            )
            if not np.isnan(told).all():
                earlier = values.get(row.field)
                values[row.field] = told if earlier is None else np.where(np.isnan(earlier), told, earlier)
        return values


def _read_row(row: SeriesRow, samples: RankSamples) -> float:
    if any(samples.names.isdisjoint(part) for part in row.parts):
        return np.nan
    value = samples.values.get(row.index)
    if value is None:
        return 0.0 if row.unseen_is_zero else np.nan
    return np.nan if row.zero_is_absent and value == 0 else value * row.scale


def read_rank(text: str | None) -> int | None:
    """Read a rank label; None where it is missing or no number."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
