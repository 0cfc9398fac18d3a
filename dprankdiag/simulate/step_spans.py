"""Moments among the steps of a group: how much of any amount lies between two of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.simulate.base import FloatArray, IntArray
from dprankdiag.simulate.costs import StepTable
from dprankdiag.simulate.replay import Site

GROUPS = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Moments among the steps of a group, for some of the times: a step that a moment cuts counts in part.

    Attributes:
        rows: the times, by their place.
        begin, end: the steps that hold the moments; -1 before the first.
        begin_share, end_share: the part of that step before the moment.
    """

    rows: IntArray
    begin: IntArray
    begin_share: FloatArray
    end: IntArray
    end_share: FloatArray

    def sum(self, amounts: FloatArray) -> FloatArray:
        """Sum amounts of steps, `(steps, ...)`, over each time."""
        sums = np.concatenate([np.zeros((1, *amounts.shape[1:])), np.cumsum(amounts, axis=0)])

        def until(place: IntArray, share: FloatArray) -> FloatArray:
            inside = np.maximum(place, 0)
            part = share if amounts.ndim == 1 else share[:, None]
            summed: FloatArray = sums[inside] + part * amounts[inside]
            return summed

        summed: FloatArray = until(self.end, self.end_share) - until(self.begin, self.begin_share)
        return summed


def find_span(table: StepTable, rows: IntArray, begin_ns: IntArray, end_ns: IntArray) -> Span:
    """Find moments among the steps of a group."""
    return Span(rows, *_find(table, begin_ns), *_find(table, end_ns))


def _find(table: StepTable, moment_ns: IntArray) -> tuple[IntArray, FloatArray]:
    place = np.searchsorted(table.start_ns, moment_ns, "right") - 1
    inside = np.maximum(place, 0)
    share = np.clip((moment_ns - table.start_ns[inside]) / np.maximum(table.total_ns[inside], 1), 0.0, 1.0)
    return place, np.where(place < 0, 0.0, share)


def list_groups(site: Site, workers: IntArray, ranks: IntArray) -> IntArray:
    """Number the group of each request: its worker times `GROUPS` and the group's first rank."""
    numbered: IntArray = workers * GROUPS + (0 if site.lockstep else ranks)
    return numbered
