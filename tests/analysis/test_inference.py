"""A kernel of unknown name is a collective if its calls start apart and end together, and only then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dprankdiag.analysis.inference import infer_channels
from dprankdiag.analysis.lanes import FAMILY_CODE, Naming
from dprankdiag.model.sources import Trace
from tests.analysis.builders import Array, Row, arrive, meet, naming, trace

N_RANKS = 4


def record(arrival: Array, end: Array, counts: list[int] | None = None, **changes: Any) -> Trace:
    """Record calls of a kernel that nobody knows, each behind some work."""
    lanes = []
    for rank in range(arrival.shape[1]):
        rows = []
        for k in range(counts[rank] if counts else len(arrival)):
            start = int(arrival[k, rank])
            rows += [Row("other", start - 900, start, key=1), Row("other", start, int(end[k, rank]), key=0)]
        lanes.append(rows)
    return trace(arrival.shape[1], lanes, kernel_names=["zzz_sync", "zzz_work"], **changes)


def infer(made: Trace) -> Naming:
    return infer_channels(made, naming(["other", "other"], ()))


def test_calls_that_end_together_are_a_collective() -> None:
    arrival = arrive(60, N_RANKS)
    found = infer(record(arrival, meet(arrival)))
    assert found.channels == ("zzz_sync",)
    assert found.family.tolist() == [FAMILY_CODE["collective"], FAMILY_CODE["other"]]
    assert found.channel.tolist() == [0, -1]


def test_calls_that_take_their_own_time_are_work() -> None:
    arrival = arrive(60, N_RANKS)
    own = arrival + 30_000 + np.random.default_rng(1).integers(0, 3_000, arrival.shape)
    assert infer(record(arrival, own)).channels == ()


def test_calls_that_start_together_and_end_together_are_work() -> None:
    arrival = arrive(60, N_RANKS, spread_ns=300)
    assert infer(record(arrival, arrival + 30_000)).channels == ()


def test_fifteen_calls_are_too_few() -> None:
    arrival = arrive(15, N_RANKS)
    assert infer(record(arrival, meet(arrival))).channels == ()


def test_ranks_that_call_unlike_often_do_not_meet() -> None:
    arrival = arrive(60, N_RANKS)
    assert infer(record(arrival, meet(arrival), [60, 60, 60, 50])).channels == ()


@pytest.mark.parametrize("precision", ["utc", "unknown"])
def test_ends_on_clocks_that_differ_are_not_compared(precision: str) -> None:
    arrival = arrive(60, N_RANKS)
    made = record(arrival, meet(arrival), domains=[0, 0, 1, 1], precision=("exact", precision))
    assert infer(made).channels == ()


def test_one_rank_has_nobody_to_meet() -> None:
    arrival = arrive(60, 1)
    assert infer(record(arrival, meet(arrival))).channels == ()
