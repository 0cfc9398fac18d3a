"""Find the nodes in a wait matrix: blocks of neighbouring ranks between which everyone waits alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprankdiag.analysis.median_polish import cell_noise, line_medians, middle
from dprankdiag.analysis.statistics import MEDIAN_ERROR, FloatArray
from dprankdiag.model.claims import BoolArray

IntArray = np.ndarray[Any, np.dtype[np.int64]]

LEAST_SHIFT = float(np.log(1.3))
SHIFT_SCORE = 5.0
SMALL_NODE = 4
"""In nodes of fewer ranks a block has too few cells for a level of its own: one distance serves all of them."""

CLEAR_ROWS = 0.75
CLEARLY_LESS = 0.95
"""Larger nodes must leave this much less than smaller ones did."""


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


def find_blocks(logs: FloatArray) -> Blocks:
    """Find the node size whose blocks leave least of the matrix unexplained.

    A block counts as far only if every column of it is (three late ranks of a node of four are no node). With three
    nodes and more each must be far from every other: a node that is awaited by all others while these are near each
    other is late, not distant. Two nodes may differ in one direction.

    Args:
        logs: `(n_ranks, n_ranks)` logarithms of the waits, NaN where absent or on the diagonal.
    """
    n_ranks = len(logs)
    best, least = no_blocks(logs), np.inf
    for size in range(2, n_ranks // 2 + 1):
        if n_ranks % size:
            continue
        node = np.arange(n_ranks) // size
        crossing = node[:, None] != node[None, :]
        levels = (_fit_distance if size < SMALL_NODE else _fit_levels)(logs, node)
        if levels is None:
            continue
        left = logs - levels
        spread = float(np.nanmean(np.abs(left - middle(left))))
        if spread < CLEARLY_LESS * least:
            best, least = Blocks(size, levels, float(np.exp(levels.max())), crossing), spread
    return best


def no_blocks(logs: FloatArray) -> Blocks:
    """Take all ranks as near."""
    return Blocks(None, np.zeros(logs.shape), None, np.zeros(logs.shape, bool))


def _least_shift(noise: float, cells: int) -> float:
    """Return the least difference of two levels that counts; infinite where the noise is not known."""
    beyond = SHIFT_SCORE * MEDIAN_ERROR * noise / math.sqrt(max(cells, 1))
    return math.inf if math.isnan(noise) else max(LEAST_SHIFT, beyond)


def _fit_distance(logs: FloatArray, node: IntArray) -> FloatArray | None:
    """Fit one distance between all nodes; None unless nearly every row shows it."""
    crossing = node[:, None] != node[None, :]
    far = line_medians(np.where(crossing, logs, np.nan), axis=1)
    near = line_medians(np.where(crossing, np.nan, logs), axis=1)
    shift = far - near
    distance = middle(shift)
    levels = np.where(crossing, distance, 0.0)
    cells = int(np.sum(~crossing & ~np.isnan(logs)))
    known = ~np.isnan(shift)
    if not distance > _least_shift(cell_noise(logs - levels), cells):
        return None
    return levels if np.mean(shift[known] > distance / 2) >= CLEAR_ROWS else None


def _fit_levels(logs: FloatArray, node: IntArray) -> FloatArray | None:
    """Fit a level for each pair of nodes; None unless the far ones are far as a whole."""
    levels = np.zeros(logs.shape)
    nodes = np.unique(node)
    noise = cell_noise(logs - _block_medians(logs, node))
    for home in nodes:
        parts = [logs[np.ix_(node == home, node == other)] for other in nodes]
        level = np.array([middle(part) for part in parts])
        if np.isnan(level).all():
            continue
        shifts = level - np.nanmin(level)
        for other, part, shift in zip(nodes, parts, shifts, strict=True):
            if np.isnan(shift):
                continue
            far = bool(shift > _least_shift(noise, int(np.sum(~np.isnan(part)))))
            if len(nodes) > 2 and far != (other != home):
                return None
            if far and not _is_far_throughout(part, shift):
                return None
            levels[np.ix_(node == home, node == other)] = shift if far else 0.0
    return levels if levels.any() else None


def _block_medians(logs: FloatArray, node: IntArray) -> FloatArray:
    medians = np.full(logs.shape, np.nan)
    for home in np.unique(node):
        for other in np.unique(node):
            block = np.ix_(node == home, node == other)
            medians[block] = middle(logs[block])
    return medians


def _is_far_throughout(part: FloatArray, shift: float) -> bool:
    """Tell whether every column of a block lies above half of its shift."""
    awaited = line_medians(part, axis=0) - (middle(part) - shift)
    return bool(np.all(awaited[~np.isnan(awaited)] > shift / 2))
