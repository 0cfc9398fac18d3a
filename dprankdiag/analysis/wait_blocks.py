"""Find the nodes in a wait matrix: blocks of neighbouring ranks between which everyone waits alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.median_polish import MEDIAN_ERROR, line_medians, middle
from dprankdiag.analysis.statistics import FloatArray
from dprankdiag.model.claims import BoolArray

IntArray = np.ndarray[Any, np.dtype[np.int64]]

LEAST_SHIFT = float(np.log(1.3))
SHIFT_SCORE = 5.0
SMALL_NODE = 4
"""In nodes of fewer ranks a block has too few cells for a level of its own: one distance serves all of them."""

CLEAR_ROWS = 0.75


@dataclass(frozen=True, slots=True)
class Blocks:
    """What distance between nodes does to the cells.

    Attributes:
        node_size: ranks a node; None where no nodes show.
        levels: `(n_rows, n_columns)` to be taken off the logarithms; 0 where no nodes show.
        ratio: waits for the farthest node over those for the nearest; None where no nodes show.
        crossing: `(n_rows, n_columns)` the cells between two nodes.
    """

    node_size: int | None
    levels: FloatArray
    ratio: float | None
    crossing: BoolArray


def find_blocks(logs: FloatArray, noise: float) -> Blocks:
    """Find the node size whose blocks leave least of the matrix unexplained.

    A block counts as far only if every column of it is (three late ranks of a node of four are no node). With three
    nodes and more each must be far from every other: a node that is awaited by all others while these are near each
    other is late, not distant. Two nodes may differ in one direction.

    Args:
        logs: `(n_ranks, n_ranks)` logarithms of the waits, NaN where absent or on the diagonal.
        noise: standard deviation of a cell.
    """
    n_ranks = len(logs)
    best, least = no_blocks(logs), np.inf
    for size in range(2, n_ranks // 2 + 1):
        if n_ranks % size:
            continue
        node = np.arange(n_ranks) // size
        crossing = node[:, None] != node[None, :]
        levels = (_fit_distance if size < SMALL_NODE else _fit_levels)(logs, node, noise)
        if levels is None:
            continue
        left = np.abs(logs - levels - middle(logs - levels))
        spread = float(np.nanmean(np.minimum(left, 3 * max(middle(left), noise))))
        if spread < 0.95 * least:
            best, least = Blocks(size, levels, float(np.exp(levels.max())), crossing), spread
    return best


def no_blocks(logs: FloatArray) -> Blocks:
    """Take all ranks as near."""
    return Blocks(None, np.zeros(logs.shape), None, np.zeros(logs.shape, bool))


def _least_shift(noise: float, cells: float) -> float:
    return max(LEAST_SHIFT, SHIFT_SCORE * MEDIAN_ERROR * noise / math.sqrt(max(cells, 1.0)))


def _fit_distance(logs: FloatArray, node: IntArray, noise: float) -> FloatArray | None:
    """Fit one distance between all nodes; None unless nearly every row shows it."""
    crossing = node[:, None] != node[None, :]
    far = line_medians(np.where(crossing, logs, np.nan), axis=1)
    near = line_medians(np.where(crossing, np.nan, logs), axis=1)
    shift = far - near
    distance = middle(shift)
    cells = float(np.mean(np.sum(~crossing & ~np.isnan(logs), axis=1))) * len(shift)
    known = ~np.isnan(shift)
    if not distance > _least_shift(noise, cells) or np.mean(shift[known] > distance / 2) < CLEAR_ROWS:
        return None
    return np.where(crossing, distance, 0.0)


def _fit_levels(logs: FloatArray, node: IntArray, noise: float) -> FloatArray | None:
    """Fit a level for each pair of nodes; None unless the far ones are far as a whole."""
    levels = np.zeros(logs.shape)
    nodes = np.unique(node)
    for home in nodes:
        parts = [logs[np.ix_(node == home, node == other)] for other in nodes]
        level = np.array([middle(part) for part in parts])
        if np.isnan(level).all():
            continue
        shifts = level - np.nanmin(level)
        for other, part, shift in zip(nodes, parts, shifts, strict=True):
            if np.isnan(shift):
                continue
            far = shift > _least_shift(noise, float(np.sum(~np.isnan(part))))
            if len(nodes) > 2 and far != (other != home):
                return None
            if far and not _is_far_throughout(part, shift):
                return None
            levels[np.ix_(node == home, node == other)] = shift if far else 0.0
    return levels if levels.any() else None


def _is_far_throughout(part: FloatArray, shift: float) -> bool:
    """Tell whether every column of a block lies above half of its shift."""
    awaited = line_medians(part, axis=0) - (middle(part) - shift)
    return bool(np.all(awaited[~np.isnan(awaited)] > shift / 2))
