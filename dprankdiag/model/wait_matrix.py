"""How long every rank waited for every other: the receive-wait matrix of an expert exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.model.ranks import Grade
from dprankdiag.model.sources import Source


@dataclass(frozen=True, slots=True)
class WaitMatrix:
    """One matrix of waits, summed or averaged over a window that the file does not tell.

    The counters add over warps that wait in parallel, so that only ratios between cells mean something: a wait has no
    unit and is never a time.

    Attributes:
        waiting: `(n_rows,)` the waiting rank of each row, ascending.
        awaited: `(n_columns,)` the awaited rank of each column, ascending.
        waits: `(n_rows, n_columns)` float64, positive; NaN where nothing is known: a pair that never talks (0), a cell
            that is empty or cannot be right.
        grade: "sure" where the file says which rank a row and a column is, "assumed" where their order does.
        source: the file.

    Source: github.com/deepseek-ai/DeepEP pull request 311 (per-rank wait counters of the receive kernels);
        github.com/deepseek-ai/DeepEP issue 473 (their magnitude is no latency).
    """

    waiting: tuple[int, ...]
    awaited: tuple[int, ...]
    waits: np.ndarray[Any, np.dtype[np.float64]]
    grade: Grade
    source: Source

    @property
    def ranks(self) -> tuple[int, ...]:
        """List every rank that has a row or a column."""
        return tuple(sorted({*self.waiting, *self.awaited}))
