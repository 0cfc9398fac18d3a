"""Choose the kernels that do equal work on every rank, and measure the rows of each rank's batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from dprankdiag.analysis.lanes import FAMILY_CODE, Naming
from dprankdiag.analysis.observations import ProbeTimes
from dprankdiag.analysis.segments import KeyTimes
from dprankdiag.analysis.statistics import FloatArray
from dprankdiag.catalog.kernels import FAMILIES
from dprankdiag.model.sources import Names

IntArray = np.ndarray[Any, np.dtype[np.int64]]

PROBE_FAMILIES = frozenset(FAMILY_CODE[name] for name in ("gemm", "norm", "router", "activation", "quant"))
"""Families whose time follows the launch shape alone. Attention, KV writes and sampling follow the rank's requests,
experts the routing; a name nobody knows may follow anything."""

ROW_FAMILIES = ("kv_write", "norm", "quant", "activation")
COUNT_TOLERANCE = 0.02
COUNT_SD = 3.0
"""Counts of equally frequent kernels may differ by so many standard deviations of rows lost at random."""

FEWEST_UNKNOWN = 5
FEWEST_BLOCKS = 10

PADDED_ALIKE = 0.01
"""Grids of graphs whose mean differs by no more among the ranks may all be padded to the busiest rank's rows."""
AGREEMENT = 0.05
"""Kernels of unknown name are believed if at least half of five or more agree on every rank's speed within this."""


@dataclass(frozen=True, slots=True)
class Probes:
    """Keys of equal work, sorted, and their times by rank."""

    keys: IntArray
    times: ProbeTimes


def choose_probes(keys: Sequence[KeyTimes], naming: Naming, names: Names) -> Probes:
    """Choose the kernel keys (name and launch shape) that every rank ran equally often.

    Args:
        keys: key times of the ranks compared.
    """
    if not len(naming.family) or not keys:
        return Probes(np.empty(0, np.int64), ProbeTimes(np.empty((0, len(keys))), np.empty(0), ()))
    common = keys[0].key
    for other in keys[1:]:
        common = np.intersect1d(common, other.key, assume_unique=True)
    index = [np.searchsorted(item.key, common) for item in keys]
    counts = np.stack([item.count[where] for item, where in zip(keys, index, strict=True)], axis=1)
    totals = np.stack([item.total_ns[where] for item, where in zip(keys, index, strict=True)], axis=1)
    family = keys[0].family[index[0]]
    spread = counts.max(axis=1) - counts.min(axis=1)
    most = counts.max(axis=1)
    even = (spread <= np.maximum(COUNT_TOLERANCE * most, COUNT_SD * np.sqrt(most))) & (counts.min(axis=1) >= 5)
    fair = even & np.isin(family, list(PROBE_FAMILIES))
    if not fair.any():
        fair = even & (family == FAMILY_CODE["other"])
        fair[fair] = _agree(totals[fair] / counts[fair])
    mean = totals[fair] / counts[fair]
    times = ProbeTimes(mean, totals[fair].mean(axis=1), tuple(FAMILIES[code] for code in family[fair]))
    return Probes(common[fair], times)


def _agree(mean_ns: FloatArray) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Choose among kernels of unknown name those that most of them agree with on how fast each rank is.

    Work that follows a rank's own requests is longer on that rank alone and falls out; a slow chip is slow in all.

    Args:
        mean_ns: `(n_keys, n_ranks)`.
    """
    if len(mean_ns) < FEWEST_UNKNOWN:
        return np.zeros(len(mean_ns), bool)
    ratio = mean_ns / np.maximum(np.median(mean_ns, axis=1, keepdims=True), 1.0)
    verdict = np.median(ratio, axis=0)
    agrees = np.abs(ratio - verdict).max(axis=1) <= AGREEMENT
    return np.asarray(agrees & (agrees.mean() >= 0.5))


def measure_row_ratio(keys: Sequence[KeyTimes], names: Names, *, eager: bool) -> FloatArray | None:
    """Compare the ranks' local rows by the launch grids of kernels that run once a row.

    Args:
        eager: no kernel was launched by a CUDA graph, so that no grid is padded to the graph's batch.

    Returns:
        `(n_ranks,)` mean grid size over the median rank's; None if the grids may be padded (graphs, and the ranks'
        are alike), or are too small to show a tenth.
    """
    if not names.shapes:
        return None
    blocks = np.array([shape[0] * shape[1] * shape[2] for shape in names.shapes], np.float64)
    for name in ROW_FAMILIES:
        rows = [mean for item in keys if (mean := _mean_grid(item, FAMILY_CODE[name], blocks)) is not None]
        if len(rows) < len(keys):
            continue
        sizes = np.array(rows, np.float64)
        apart = float(np.ptp(sizes)) > PADDED_ALIKE * float(sizes.max())
        if apart or (eager and min(rows) >= FEWEST_BLOCKS):
            return np.asarray(sizes / max(float(np.median(sizes)), 1.0))
    return None


def list_row_blocks(keys: Sequence[KeyTimes], names: Names) -> IntArray:
    """List the launch sizes, in blocks, that every rank used for kernels that run once a row; sorted, each once.

    Rows gathered from all ranks are the same on all of them.
    """
    if not names.shapes or not keys:
        return np.empty(0, np.int64)
    blocks = np.array([shape[0] * shape[1] * shape[2] for shape in names.shapes], np.int64)
    codes = [FAMILY_CODE[name] for name in (*ROW_FAMILIES, "router")]
    used = [np.unique(blocks[item.key[np.isin(item.family, codes)] % len(blocks)]) for item in keys]
    return np.asarray(reduce(np.intersect1d, used))


def _mean_grid(item: KeyTimes, family: int, blocks: FloatArray) -> float | None:
    mine = item.family == family
    if not mine.any():
        return None
    return float(np.average(blocks[item.key[mine] % len(blocks)], weights=item.count[mine]))
