"""Read a ledger over a span of moments: growth of counters, levels of gauges, steps and seconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.model.ledgers import BoolArray, FloatArray, Ledger
from dprankdiag.units import NS_PER_S

FEWEST_FOR_MEAN = 3
"""From so many moments on a gauge is averaged; of two the later one holds."""


FEWEST_TO_MEND = 8
"""From so many moments on a restart loses little of what a counter grew by."""


@dataclass(frozen=True, slots=True)
class LedgerWindow:
    """Moments `first` to `last` of a ledger, both included; one moment only has gauges."""

    ledger: Ledger
    first: int
    last: int

    @property
    def n_ranks(self) -> int:
        """Count the ranks."""
        return len(self.ledger.ranks)

    @property
    def has_growth(self) -> bool:
        """Tell whether there are two moments to take differences of."""
        return self.last > self.first

    @property
    def averages(self) -> bool:
        """Tell whether gauges are averaged."""
        return self.last - self.first + 1 >= FEWEST_FOR_MEAN

    def growth(self, *names: str) -> FloatArray | None:
        """Return what counters grew by, summed over the fields given; NaN for ranks that do not tell, None if none do.

        A counter that fell began anew: what it shows since counts, and of what came before all but the last piece. Of a
        few moments that piece may be most of it, so that such a rank does not tell.
        """
        parts = [part for name in names if (part := self._grow(name)) is not None]
        return None if len(parts) < len(names) else np.sum(parts, axis=0)

    def _grow(self, name: str) -> FloatArray | None:
        table = self.ledger.values.get(name)
        if table is None or not self.has_growth:
            return None
        part = table[self.first : self.last + 1]
        whole: FloatArray = part[-1] - part[0]
        steps = np.diff(part, axis=0)
        if (steps >= 0).all():
            return whole
        grown = np.full(self.n_ranks, np.nan)
        for rank in np.flatnonzero(~np.isnan(part).all(axis=0)):
            told = part[~np.isnan(part[:, rank]), rank]
            steps = np.diff(told)
            if len(told) > 1 and ((steps >= 0).all() or len(told) >= FEWEST_TO_MEND):
                grown[rank] = float(np.where(steps < 0, told[1:], steps).sum())
        return None if np.isnan(grown).all() else grown

    def level(self, *names: str) -> FloatArray | None:
        """Return the first of the gauges that is told: its mean over the window, of two moments the later.

        NaN for ranks that do not tell; None if none do.
        """
        for name in names:
            table = self.ledger.values.get(name)
            if table is None:
                continue
            part = table[self.first : self.last + 1]
            if np.isnan(part).all():
                continue
            return _mean(part) if self.averages else _latest(part)
        return None

    def now(self, *names: str) -> FloatArray | None:
        """Return the first of the gauges that is told, as it was last told; NaN for ranks that do not tell."""
        for name in names:
            table = self.ledger.values.get(name)
            if table is not None and not np.isnan(table[self.first : self.last + 1]).all():
                return _latest(table[self.first : self.last + 1])
        return None

    def held(self, name: str) -> BoolArray:
        """Tell of which ranks a gauge is told at both ends and has not moved."""
        table = self.ledger.values.get(name)
        if table is None or not self.has_growth:
            return np.zeros(self.n_ranks, bool)
        part = table[self.first : self.last + 1]
        return np.asarray((part == part[0]).all(axis=0))

    @property
    def restarted(self) -> BoolArray:
        """Tell which ranks restarted within the window."""
        return np.asarray(self.ledger.restarted[self.first + 1 : self.last + 1].any(axis=0))

    @property
    def elapsed_s(self) -> float | None:
        """Return the seconds of the window: by the clock, else by the schedulers' own account of their time."""
        if not self.has_growth:
            return None
        if self.ledger.seconds is not None:
            return float(self.ledger.seconds[self.last] - self.ledger.seconds[self.first])
        stages = self.growth("stages_s")
        known = None if stages is None else stages[stages > 0]
        return float(np.median(known)) if known is not None and len(known) else None

    @property
    def steps(self) -> float | None:
        """Return the steps that the ranks took together; None if nothing counts them."""
        for names in (("active_steps", "idle_steps"), ("sync_waits",), ("load_decode_steps",), ("iterations",)):
            grown = self.growth(*names)
            if grown is None or (names == ("iterations",) and self.ledger.facts.get("multiprocess")):
                continue
            told = grown[~np.isnan(grown)]
            if len(told) and told.max() > 0:
                return float(told.max())
        return None

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """Return first and last moment, UTC ns if known, else ns after the first moment of the ledger."""
        if self.ledger.seconds is None:
            return None
        origin = self.ledger.start_ns or 0
        first, last = (round(float(self.ledger.seconds[place]) * NS_PER_S) for place in (self.first, self.last))
        return origin + first, origin + last


def _mean(part: FloatArray) -> FloatArray:
    told = ~np.isnan(part)
    count = told.sum(axis=0)
    total = np.where(told, part, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _latest(part: FloatArray) -> FloatArray:
    latest: FloatArray = part[-1].copy()
    for row in part[-2::-1]:
        latest[np.isnan(latest)] = row[np.isnan(latest)]
    return latest
