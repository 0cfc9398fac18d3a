"""Bring the lockstep groups of two recordings together, and the kinds of step they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dprankdiag.pipelines.likeness import list_obstacles, list_work_differences
from dprankdiag.pipelines.matching import CausePair, numbers_of
from dprankdiag.pipelines.sides import GroupSide, KindKey

MOST_NAMED = 3
"""More groups without a partner are counted, not named."""


@dataclass(frozen=True, slots=True)
class GroupPair:
    """A lockstep group on both sides.

    Attributes:
        obstacles: why they cannot be compared.
        unlike: why equal kinds of step are not equal work; their times are shown but not judged.
        mix: share of each common kind, the mean of both sides; they add up to 1. Empty where there are obstacles.
    """

    before: GroupSide
    after: GroupSide
    obstacles: tuple[str, ...]
    unlike: tuple[str, ...]
    mix: dict[KindKey, float]


def pair_groups(before: Sequence[GroupSide], after: Sequence[GroupSide]) -> tuple[list[GroupPair], list[str]]:
    """Pair groups of one engine, by their ranks if they can be; the only group of each side is a pair in any case.

    Returns:
        The pairs, and which groups have none.
    """
    if not before or not after:
        return [], []
    if len(before) == len(after) == 1:
        return [_pair(before[0], after[0])], []
    old = list(before)
    pairs, alone = [], []
    for new in after:
        partner = find_partner(old, new.engine, new.ranks)
        if partner is None:
            alone.append(f"{_name(new)} is only in the recording after")
        else:
            old.remove(partner)
            pairs.append(_pair(partner, new))
    alone += [f"{_name(side)} is only in the recording before" for side in old]
    if len(alone) > MOST_NAMED:
        count = f"{len(before)} lockstep groups before, {len(after)} after"
        alone = [f"{count}, of which {len(pairs)} have the same engine and ranks on both sides"]
    return pairs, alone


def find_partner(sides: Sequence[GroupSide], engine: str, ranks: Sequence[int]) -> GroupSide | None:
    """Find the group of an engine that has these ranks, else the only one that has as many."""
    mine = [side for side in sides if side.engine == engine]
    same = [side for side in mine if side.ranks == tuple(ranks)]
    alike = same or [side for side in mine if len(side.ranks) == len(ranks)]
    return alike[0] if len(alike) == 1 else None


def _name(side: GroupSide) -> str:
    return f"the group of ranks {side.ranks[0]} to {side.ranks[-1]} of engine {side.engine}"


def _pair(before: GroupSide, after: GroupSide) -> GroupPair:
    obstacles = tuple(list_obstacles(before, after))
    if obstacles:
        return GroupPair(before, after, obstacles, (), {})
    common = [key for key in before.kinds if key in after.kinds]
    counts = np.array([[side.kinds[key].sum() for key in common] for side in (before, after)], float)
    shares = (counts / counts.sum(axis=1, keepdims=True)).mean(axis=0)
    unlike = tuple(list_work_differences(before, after))
    return GroupPair(before, after, (), unlike, dict(zip(common, shares.tolist(), strict=True)))


def find_pair(pairs: Sequence[GroupPair], found: CausePair) -> GroupPair | None:
    """Find the group that findings are about: by what they cost its steps, else by engine and ranks."""
    old, new = numbers_of(found.before), numbers_of(found.after)
    for pair in pairs:
        if any(number in pair.after.losses for number in new) or any(number in pair.before.losses for number in old):
            return pair
    told = (found.after or found.before)[0]
    mine = [pair for pair in pairs if pair.after.engine == told.engine]
    side = [pair.after if found.after else pair.before for pair in mine]
    fitting = [pair for pair, group in zip(mine, side, strict=True) if set(told.ranks) <= set(group.ranks)]
    return next(iter(fitting or mine), None)
