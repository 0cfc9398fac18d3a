"""Packed kernels come back as they were recorded, on the common axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dprankdiag.analysis.clocks import ClockFit
from dprankdiag.analysis.kernel_record import BLOCK, KernelRecord, pack_rows
from dprankdiag.model.schema import ABSENT_NS, Columns
from tests.analysis.builders import EPOCH_NS, ranks

FIT = ClockFit(3_000_000, 12_000, EPOCH_NS, 0, None, 100)
(RANK,) = ranks(1)
NAMES = np.array(["gemm", "attention", "CUDA graph replay", "memory copy or set"], object)
FAMILIES = np.array(["gemm", "attention", "graph replay", "memory"], object)


def draw_rows(n: int, seed: int = 0) -> Columns:
    """Draw rows on three streams that overlap, a tenth of them of unknown launch."""
    random = np.random.default_rng(seed)
    start = EPOCH_NS + np.cumsum(random.integers(0, 5_000, n))
    launch = start - random.integers(-200, 90_000, n)
    return {
        "start_ns": start,
        "end_ns": start + random.integers(0, 9_000, n),
        "stream": random.choice(np.array([7, 13, 5_000], np.int32), n),
        "name_id": random.choice(np.array([0, 1, -1, -2], np.int32), n),
        "launch_ns": np.where(random.random(n) < 0.1, ABSENT_NS, launch),
    }


def record(rows: Columns, fit: ClockFit | None = None, *, has_launches: bool = True) -> KernelRecord:
    packed = pack_rows(rows, has_launches=has_launches)
    return KernelRecord({(RANK.engine, RANK.rank): (packed, fit)}, NAMES, FAMILIES)


@pytest.mark.parametrize("fit", [None, FIT], ids=["one clock", "another clock"])
@pytest.mark.parametrize("low, high", [(0, 50), (1_000, 1_100), (BLOCK - 1, 3 * BLOCK + 5), (2 * BLOCK, 2 * BLOCK)])
def test_a_span_holds_the_rows_that_begin_in_it(low: int, high: int, fit: ClockFit | None) -> None:
    rows = draw_rows(4 * BLOCK)
    start, end = (rows[name] if fit is None else fit.apply(rows[name]) for name in ("start_ns", "end_ns"))
    taken = record(rows, fit).take(RANK, int(start[low]), int(start[high]))
    chosen = (start >= start[low]) & (start < start[high])
    np.testing.assert_array_equal(taken["start_ns"], start[chosen])
    np.testing.assert_array_equal(taken["end_ns"], end[chosen])
    np.testing.assert_array_equal(taken["stream"], rows["stream"][chosen])
    assert taken["name"].tolist() == NAMES[rows["name_id"][chosen]].tolist()
    assert taken["family"].tolist() == FAMILIES[rows["name_id"][chosen]].tolist()


def test_idle_time_and_the_host_s_part_of_it_are_those_of_the_whole_recording() -> None:
    rows = draw_rows(3 * BLOCK)
    start, end, launch = rows["start_ns"], rows["end_ns"], rows["launch_ns"]
    taken = record(rows).take(RANK, int(start[2_000]), int(start[2_500]))
    for row in range(2_000, 2_500):
        ready = int(end[:row].max())
        idle = max(int(start[row]) - ready, 0)
        assert taken["idle_ns"][row - 2_000] == idle
        host = max(min(int(launch[row]), int(start[row])) - ready, 0) if launch[row] != ABSENT_NS else -1
        assert taken["host_ns"][row - 2_000] == host
        before = end[:row][rows["stream"][:row] == rows["stream"][row]].max()
        assert taken["own_ns"][row - 2_000] == max(int(end[row]) - max(int(start[row]), int(before)), 0)


def test_without_launches_the_host_s_part_is_unknown() -> None:
    rows = draw_rows(100)
    taken = record(rows, has_launches=False).take(RANK, EPOCH_NS, EPOCH_NS + 10**9)
    assert set(taken["host_ns"].tolist()) == {-1}
    assert len(taken["name"]) == 100


@pytest.mark.parametrize("n", [0, 1, BLOCK, BLOCK + 1])
def test_the_whole_recording_is_all_its_rows(n: int) -> None:
    taken = record(draw_rows(n)).take(RANK, 0, EPOCH_NS + 10**12)
    assert {name: len(values) for name, values in taken.items()} == dict.fromkeys(taken, n)


def test_a_row_takes_few_bytes() -> None:
    packed = pack_rows(draw_rows(100_000), has_launches=True)
    arrays: list[Any] = [getattr(packed, name) for name in packed.__slots__]
    assert sum(getattr(array, "nbytes", 0) for array in arrays) <= 16 * 100_000
