"""Batch annotations: what their names say, and when the GPU began what the host announced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.analysis.alignment import Alignment
from dprankdiag.analysis.batches import align_batches, parse_batches, read_batches, tabulate_requests, tabulate_rows
from dprankdiag.analysis.observations import BatchSeries
from dprankdiag.model.schema import ABSENT_NS
from dprankdiag.model.sources import Names
from tests.analysis.builders import Row, annotate, lane, observe_steps, trace

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


def test_a_rank_that_announces_nothing_has_no_batches_while_the_others_keep_theirs() -> None:
    own = read([Row("gemm", 100, 110, launch_ns=90)], [(0, 80)])
    alignment = Alignment((None,) * 2, "session", None, ())
    assert [len(item.start_ns) for item in align_batches([own, None], (0, 1), alignment)] == [1, 0]
    assert align_batches([None, None], (0, 1), alignment) == ()


def test_what_nobody_announces_is_unknown_and_a_batch_before_the_first_step_belongs_to_none() -> None:
    seen = annotate(observe_steps(6, 2), requests=[3.0, 5.0], prefill_tokens=[0.0, 7.0])
    early = seen.batches[1].start_ns.copy()
    early[0] = seen.start_ns[0] - 1_000
    seen = replace(seen, batches=(seen.batches[0], replace(seen.batches[1], start_ns=early)))
    assert tabulate_requests(seen)[0].tolist() == [3.0, pytest.approx(np.nan, nan_ok=True)]
    assert tabulate_rows(seen)[1].tolist() == [3.0, 12.0]
