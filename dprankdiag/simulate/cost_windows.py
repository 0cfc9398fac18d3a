"""Steps that an engine counted itself: between two looks it took so many, and so long for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from dprankdiag.simulate.base import FloatArray, IntArray
from dprankdiag.simulate.cost_walks import STEP_SCATTER
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
        begin, end: the first step inside, and the first behind.
        weight: `(steps,)` how much each step counts.
        count: `(n,)` steps that were counted.
        is_seen: `(n,)` there are such steps inside.
        target: `(n,)` ns of all counted steps.
        scatter_ns: `(n,)` what that is likely to be off by.
    """

    begin: IntArray
    end: IntArray
    weight: FloatArray
    count: FloatArray
    is_seen: BoolArray
    target: FloatArray
    scatter_ns: FloatArray

    def sum(self, amounts: FloatArray) -> FloatArray:
        """Give the mean amount of the steps inside, times how many were counted; 0 where none is served."""
        weight = self.weight if amounts.ndim == 1 else self.weight[:, None]
        whole = self._between(amounts * weight)
        weighed = np.maximum(self._between(self.weight), 1e-12)
        scale = np.where(self.is_seen, self.count / weighed, 0.0)
        summed: FloatArray = whole * (scale if amounts.ndim == 1 else scale[:, None])
        return summed

    def whiten(self, errors: FloatArray) -> FloatArray:
        """Turn errors, `(n, ...)` ns, into units of what is likely."""
        scatter = self.scatter_ns if errors.ndim == 1 else self.scatter_ns[:, None]
        told: FloatArray = errors / scatter
        return told

    def _between(self, amounts: FloatArray) -> FloatArray:
        sums = np.concatenate([np.zeros((1, *amounts.shape[1:])), np.cumsum(amounts, axis=0)])
        between: FloatArray = sums[self.end] - sums[self.begin]
        return between


def list_window_spans(
    tables: Mapping[tuple[int, int], StepTable], windows: Sequence[Window], error_ratio: float
) -> list[tuple[StepTable, WindowSpan]]:
    """Find the steps that lie in windows, by group, rank and kind.

    Args:
        error_ratio: what the time of a window is off by beyond the scatter of its steps.
    """
    found = []
    for key, group in groupby(windows, lambda one: (one.worker, one.first_rank, one.place, one.counted)):
        table = tables.get(key[:2])
        if table is not None:
            found.append((table, _find(table, list(group), error_ratio)))
    return found


def _find(table: StepTable, windows: Sequence[Window], error_ratio: float) -> WindowSpan:
    begin = np.searchsorted(table.start_ns, [window.begin_ns for window in windows], "left")
    end = np.searchsorted(table.start_ns + table.total_ns, [window.end_ns for window in windows], "right")
    end = np.maximum(end, begin)
    weight = _weigh(table, windows[0].place, windows[0].counted)
    sums = np.concatenate([[0.0], np.cumsum(weight)])
    count, target = (np.array([getattr(window, name) for window in windows]) for name in ("count", "total_ns"))
    scatter = np.hypot(target * STEP_SCATTER / np.sqrt(np.maximum(count, 1.0)), target * error_ratio)
    scatter = np.hypot(scatter, _tell_edges(table, begin, end, weight))
    return WindowSpan(begin, end, weight, count, sums[end] - sums[begin] > 0, target, scatter)


def _tell_edges(table: StepTable, begin: IntArray, end: IntArray, weight: FloatArray) -> FloatArray:
    """Tell what the windows are off by if a step at either edge is one of another kind, `(n,)` ns."""
    sums = np.concatenate(
        [np.zeros((1, 3)), np.cumsum(weight[:, None] * table.total_ns[:, None].astype(float) ** [0, 1, 2], axis=0)]
    )
    count, first, second = (sums[end] - sums[begin]).T
    count = np.maximum(count, 1e-12)
    scatter: FloatArray = np.sqrt(2 * np.maximum(second / count - (first / count) ** 2, 0.0))
    return scatter


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
