"""Take levels over the steps of a recording, the kinds of step in the mix that two recordings share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dprankdiag.analysis.differences import Level, add_levels, measure_level, spread_of_ranks, widen_level
from dprankdiag.analysis.grid import FEWEST_STEPS
from dprankdiag.analysis.statistics import BoolArray, FloatArray
from dprankdiag.pipelines.pairs import GroupPair
from dprankdiag.pipelines.sides import GroupSide


def mix_level(
    pair: GroupPair, side: GroupSide, series: FloatArray, *, parts: Sequence[BoolArray] = (), widen: bool = False
) -> Level:
    """Take the level of a series, the kinds of step in the pair's mix.

    Args:
        parts: steps that are known to differ, which together are all: the step from one to the other is no scatter.
        widen: allow for what the ranks differ among themselves, which another placement of the same load moves.
    """
    levels, weights = [], []
    for key, share in pair.mix.items():
        kind = side.kinds[key]
        for mine in [kind & part for part in parts if (kind & part).any()] if _splits(kind, parts) else [kind]:
            levels.append(measure_level(series[mine]))
            weights.append(share * float(mine.sum() / kind.sum()))
    level = add_levels(levels, weights)
    if not widen:
        return level
    busy = np.sum([share * side.busy_ns[side.kinds[key]].mean(axis=0) for key, share in pair.mix.items()], axis=0)
    return widen_level(level, *spread_of_ranks(busy))


def _splits(kind: BoolArray, parts: Sequence[BoolArray]) -> bool:
    """Tell whether every part holds none of a kind's steps, or enough to see their scatter."""
    return bool(parts) and all(int((kind & part).sum()) not in range(1, FEWEST_STEPS) for part in parts)


def mix_mean(pair: GroupPair, side: GroupSide, series: FloatArray) -> float:
    """Take the mean of a series, the kinds of step in the pair's mix."""
    return float(sum(share * series[side.kinds[key]].mean() for key, share in pair.mix.items()))
