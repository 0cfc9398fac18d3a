"""Steps that an engine counted itself: between two looks it took so many, and so long for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from dprankdiag.simulate.base import FloatArray, IntArray
from dprankdiag.simulate.costs import OWN, BoolArray, StepTable

WINDOW_ERROR = 0.003
"""What counted time is off by, as a share: moments of looks, and counts that are published some steps late."""

Counted = Literal["all", "decode", "tokens"]
"""all: every step of the group; decode: steps in which the rank decoded and computed no prompt; tokens: steps weighed
by the rows that the rank decoded in them (gaps between tokens)."""


@dataclass(frozen=True, slots=True)
class Window:
    """What a rank counted between two looks.

    Attributes:
        worker, first_rank: its group.
        place: the rank's place in the group.
        begin_ns, end_ns: of the looks, on the axis of the arrivals.
        counted: which steps.
        count: how many steps (or tokens).
        total_ns: time of all of them.
    """

    worker: int
    first_rank: int
    place: int
    begin_ns: int
    end_ns: int
    counted: Counted
    count: float
    total_ns: float


@dataclass(frozen=True, slots=True, eq=False)
class WindowSpan:
    """The steps of a group that lie in windows, as they are served now.

    Attributes:
        rows: places of the windows among all times.
        begin, end: the first step inside, and the first behind.
        weight: `(steps,)` how much each step counts.
        count: `(n,)` steps that were counted.
        is_seen: `(n,)` there are such steps inside.
    """

    rows: IntArray
    begin: IntArray
    end: IntArray
    weight: FloatArray
    count: FloatArray
    is_seen: BoolArray

    def sum(self, amounts: FloatArray) -> FloatArray:
        """Give the mean amount of the steps inside, times how many were counted."""
        weight = self.weight if amounts.ndim == 1 else self.weight[:, None]
        whole = self._between(amounts * weight)
        weighed = np.maximum(self._between(self.weight), 1e-12)
        scale = np.where(self.is_seen, self.count / weighed, 0.0)
        summed: FloatArray = whole * (scale if amounts.ndim == 1 else scale[:, None])
        return summed

    def find_sums(self, amounts: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Sum amounts of steps from the first one to where each window begins, and to where it ends."""
        sums = np.concatenate([np.zeros((1, *amounts.shape[1:])), np.cumsum(amounts, axis=0)])
        return sums[self.begin], sums[self.end]

    def _between(self, amounts: FloatArray) -> FloatArray:
        begin, end = self.find_sums(amounts)
        between: FloatArray = end - begin
        return between


def list_window_spans(
    tables: Mapping[tuple[int, int], StepTable], windows: Sequence[Window], first_row: int
) -> tuple[list[tuple[StepTable, WindowSpan]], FloatArray]:
    """Find the steps that lie in windows; returns them by group, rank and kind, and the time of each window."""
    found: list[tuple[StepTable, WindowSpan]] = []
    targets: list[float] = []
    for key, group in groupby(windows, lambda one: (one.worker, one.first_rank, one.place, one.counted)):
        mine = list(group)
        table = tables.get(key[:2])
        if table is None:
            continue
        rows = first_row + len(targets) + np.arange(len(mine))
        found.append((table, _find(table, mine, rows)))
        targets += [window.total_ns for window in mine]
    return found, np.array(targets, float)


def _find(table: StepTable, windows: Sequence[Window], rows: IntArray) -> WindowSpan:
    begin = np.searchsorted(table.start_ns, [window.begin_ns for window in windows], "left")
    end = np.searchsorted(table.start_ns + table.total_ns, [window.end_ns for window in windows], "right")
    end = np.maximum(end, begin)
    weight = _weigh(table, windows[0].place, windows[0].counted)
    sums = np.concatenate([[0.0], np.cumsum(weight)])
    count = np.array([window.count for window in windows])
    return WindowSpan(rows, begin, end, weight, count, sums[end] - sums[begin] > 0)


def _weigh(table: StepTable, place: int, counted: Counted) -> FloatArray:
    decoding = table.own[:, place, OWN.index("row_ns")]
    if counted == "tokens":
        rows: FloatArray = decoding
        return rows
    if counted == "decode":
        prompts = table.own[:, place, OWN.index("prompt_token_ns")]
        plain: FloatArray = ((decoding > 0) & (prompts == 0)).astype(float)
        return plain
    return np.ones(len(table.total_ns))
