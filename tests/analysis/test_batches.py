"""Batch annotations: what their names say, and when the GPU began what the host announced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dprankdiag.analysis.batches import parse_batches, read_batches
from dprankdiag.analysis.observations import BatchSeries
from dprankdiag.model.schema import ABSENT_NS
from dprankdiag.model.sources import Names
from tests.analysis.builders import Row, lane, trace

NAMES = ("step[DECODE bs=4 g_sk=9000]", "forward", "step[EXTEND bs=2 toks=600]")


def read(rows: Sequence[Row], announced: Sequence[tuple[int, int]]) -> BatchSeries | None:
    """Read annotations (name, start) of the only rank."""
    n = len(announced)
    made = trace(1, names=Names((), (), range_names=NAMES, domain_names=("",)))
    made.tables["ranges"] = {
        "rank": np.zeros(n, np.int16),
        "thread": np.zeros(n, np.int64),
        "start_ns": np.array([start for _, start in announced], np.int64),
        "end_ns": np.array([start + 10 for _, start in announced], np.int64),
        "name_id": np.array([name for name, _ in announced], np.int32),
        "domain_id": np.zeros(n, np.int32),
        "value": np.full(n, ABSENT_NS, np.int64),
        "is_open": np.zeros(n, bool),
    }
    return read_batches(made, parse_batches(NAMES), 0, lane(rows))


def test_names_say_requests_and_tokens_or_nothing() -> None:
    told = parse_batches(NAMES)
    assert told[0].tolist() == [4.0, 9000.0, 0.0]
    assert np.isnan(told[1]).all()
    assert (told[2, 0], told[2, 2], np.isnan(told[2, 1])) == (2.0, 600.0, True)
    assert parse_batches(()).shape == (0, 3)


def test_a_batch_begins_with_the_first_row_launched_after_its_announcement() -> None:
    rows = [
        Row("attention", 1_000, 1_900, launch_ns=120),
        Row("attention", 2_000, 2_900, launch_ns=220),
        Row("attention", 3_000, 3_900, launch_ns=320),
    ]
    found = read(rows, [(0, 100), (1, 150), (2, 200), (0, 300)])
    assert found is not None
    assert found.start_ns.tolist() == [1_000, 2_000, 3_000]
    assert found.requests.tolist() == [4.0, 2.0, 4.0]


def test_rows_that_start_in_another_order_than_they_were_launched_are_sorted() -> None:
    rows = [Row("attention", 1_000, 1_900, launch_ns=320), Row("attention", 2_000, 2_900, stream=8, launch_ns=120)]
    found = read(rows, [(0, 100), (0, 300)])
    assert found is not None
    assert found.start_ns.tolist() == [2_000, 1_000]


def test_a_replays_batch_begins_with_its_first_kernel() -> None:
    rows = [Row("attention", 1_000 + 100 * k, 1_090 + 100 * k, launch_ns=120, in_graph=True) for k in range(3)]
    found = read(rows, [(0, 100)])
    assert found is not None
    assert found.start_ns.tolist() == [1_000]


@pytest.mark.parametrize("launch_ns", [None, 90])
def test_what_nothing_was_launched_after_keeps_its_time(launch_ns: int | None) -> None:
    found = read([Row("attention", 1_000, 1_900, launch_ns=launch_ns)], [(0, 100)])
    assert found is not None
    assert found.start_ns.tolist() == [100]


def test_other_ranges_are_no_batches() -> None:
    assert read([Row("attention", 1_000, 1_900, launch_ns=120)], [(1, 100)]) is None
