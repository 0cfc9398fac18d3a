"""Rare kinds of decode steps that differ by their batch alone are joined."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.analysis.collectives import MeetingSet
from dprankdiag.analysis.kinds import Signature, join_rare


def meeting(channel: str, operation: str = "all_gather") -> MeetingSet:
    nothing = np.zeros((0, 2), np.int64)
    return MeetingSet(channel, "collective", operation, (0, 1), nothing, nothing, np.ones(2, bool), 0)


SETS = [meeting("gather"), meeting("scatter", "reduce_scatter"), meeting("scatter", "reduce_scatter")]


def signature(*order: int, phase: str = "decode") -> Signature:
    return (*(np.array(order, np.int32).tobytes() for _ in range(2)), b"", 0, phase)


def test_kinds_that_meet_on_the_same_channels_are_joined() -> None:
    kinds = {signature(0, 1): [7, 2], signature(0, 2): [4, 5]}
    assert list(join_rare(kinds, SETS, 3).values()) == [[2, 4, 5, 7]]


@pytest.mark.parametrize(
    "other", [signature(1, 0), signature(0, 1, phase="mixed"), signature(0, 1, 1), signature(0, 3)]
)
def test_other_orders_phases_and_joins_are_not(other: Signature) -> None:
    kinds = {signature(0, 2): [4, 5], other: [7, 8]}
    assert sorted(join_rare(kinds, SETS, 3).values()) == [[4, 5], [7, 8]]


def test_kinds_that_are_not_rare_stay_apart() -> None:
    kinds = {signature(0, 1): [1, 2, 3], signature(0, 2): [4, 5, 6]}
    assert join_rare(kinds, SETS, 3) == kinds


def test_graphs_of_rare_sizes_are_joined_with_each_other_and_with_nothing_else() -> None:
    graphs = {signature(0, 1, phase="decode graph"): [7, 9], signature(0, 2, phase="decode graph"): [3]}
    joined = join_rare({signature(0, 2): [4, 5], **graphs}, SETS, 3)
    assert sorted(joined.values()) == [[3, 7, 9], [4, 5]]
