"""Calls beside work: where work passes them, where it stands still for them, what they cost it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dprankdiag.analysis.calls import extract_calls
from dprankdiag.analysis.overlap import (
    NOWHERE,
    list_work,
    measure_beside,
    measure_contention,
    measure_overlap,
    measure_stops,
    vote_joins,
)
from tests.analysis.builders import EPOCH_NS, Array, Row, lane

WORK, TALK = 7, 21


def halves(n: int = 12, late_ns: int = 0, slower: float = 1.0) -> list[Row]:
    """Run two halves of a batch in turns: work of 60 µs a half, a call of each on the other stream.

    The work of a half waits for its own call of the turn before; `late_ns` makes every call last longer than the other
    half's work, `slower` is what calls beside work do to it.
    """
    rows: list[Row] = []
    now, free, ended = EPOCH_NS, EPOCH_NS, [EPOCH_NS, EPOCH_NS]
    for turn in range(n):
        half = turn % 2
        start = max(now + 1_000, ended[half])
        length = round(60_000 * (slower if free > start else 1.0))
        rows += [Row("gemm", start, start + length // 2, WORK, key=1)]
        rows += [Row("gemm", start + length // 2 + 800, start + length, WORK, key=2)]
        now = start + length
        begin = max(now + 500, free + 500)
        free = ended[half] = begin + 20_000 + late_ns
        rows.append(Row("collective", begin, free, TALK))
    return rows


def calls_of(rows: Sequence[Row]) -> tuple[Array, Array, Array]:
    """Return the indices, arrivals and stream-ready times of the calls of a lane."""
    made = lane(rows)
    index = np.flatnonzero(made.channel >= 0)
    ready = made.same_stream_ready()[index]
    return index, np.maximum(made.start_ns[index], ready), ready


def test_one_stream_overlaps_nothing() -> None:
    rows = [Row("gemm", 0, 10), Row("collective", 10, 20)]
    index, arrival, ready = calls_of(rows)
    assert measure_overlap(lane(rows), index, arrival, ready) is None
    (calls,) = extract_calls(lane(rows), 0).values()
    assert calls.overlap is None


def test_work_goes_on_beside_calls_though_its_own_stream_carries_others() -> None:
    """Attention's shards meet where the work runs, all ranks on another stream."""
    rows = halves()
    ends = sorted(row.end_ns for row in rows if row.family == "gemm" and row.key == 2)
    shards = [Row("collective", end - 3_000, end, WORK, channel=1) for end in ends]
    made = lane([*rows, *shards])
    index = np.flatnonzero(made.channel == 0)
    arrival, ready = made.start_ns[index], made.same_stream_ready()[index]
    overlap = measure_overlap(made, index, arrival, ready)
    assert overlap is not None
    assert (overlap.busy_ns[:-1] > 0.9 * (made.end_ns[index] - arrival)[:-1]).all()


def test_work_is_seen_to_go_on_beside_a_call_that_is_short() -> None:
    rows = halves()
    index, arrival, ready = calls_of(rows)
    overlap = measure_overlap(lane(rows), index, arrival, ready)
    assert overlap is not None
    took = lane(rows).end_ns[index] - arrival
    assert (overlap.busy_ns[:-1] > 0.9 * took[:-1]).all()
    assert (overlap.stop == NOWHERE).all()
    np.testing.assert_array_equal(overlap.reach_ns, arrival - 500)


def test_work_that_stands_still_stands_for_the_call_of_its_own_half() -> None:
    rows = halves(late_ns=70_000)
    made = lane(rows)
    index, arrival, ready = calls_of(rows)
    overlap = measure_overlap(made, index, arrival, ready)
    assert overlap is not None
    work = list_work(made)
    stopped = overlap.stop[4:-2]
    assert (stopped >= 0).all()
    np.testing.assert_array_equal(work.begin_ns[stopped], made.end_ns[index][4:-2])
    # The stream of the calls is busy, so that a call comes later than the work that it follows.
    assert (arrival[4:] - overlap.reach_ns[4:] > 10_000).all()


def test_where_work_needs_a_call_is_voted_by_all_steps_and_ranks() -> None:
    """Events are three calls a step; the second row after the second call needs the first."""
    rows = np.arange(0, 90, 2)
    stops = np.full(45, NOWHERE)
    stops[0::3] = rows[1::3] + 1
    quiet = np.full(45, NOWHERE)
    begin = np.repeat(np.arange(0, 45, 3)[:, None], 2, axis=1)
    stop = begin + 3
    joins = vote_joins([rows, rows], [stops, quiet], begin, stop)
    for found in joins:
        np.testing.assert_array_equal(found.after[0::3], np.arange(1, 45, 3))
        np.testing.assert_array_equal(found.row[0::3], rows[1::3] + 1)
        assert (found.row[1::3] == NOWHERE).all()


def test_two_chance_stops_place_no_join() -> None:
    rows = np.arange(0, 90, 2)
    stops = np.full(45, NOWHERE)
    stops[[0, 3]] = rows[[1, 4]] + 1
    begin = np.arange(0, 45, 3)[:, None]
    (found,) = vote_joins([rows], [stops], begin, begin + 3)
    assert (found.row == NOWHERE).all()


def test_stops_without_a_join_are_summed_up() -> None:
    made = lane(halves(late_ns=70_000))
    work = list_work(made)
    stops = np.array([2, 4, NOWHERE])
    (found,) = vote_joins([np.array([0, 2, 4])], [np.full(3, NOWHERE)], np.array([[0]]), np.array([[3]]))
    placed, whole = measure_stops(work, stops, found)
    assert placed == 0
    assert whole == int((work.begin_ns - work.ready_ns)[[2, 4]].sum())


@pytest.mark.parametrize("slower", [1.0, 1.2])
def test_contention_is_what_work_takes_longer_beside_calls(slower: float) -> None:
    """Calls of 40 µs beside rows of 30 µs: some rows lie wholly beside one, some alone."""
    rows = []
    for k in range(40):
        start = EPOCH_NS + 200_000 * k
        beside = k % 2 == 0
        length = round(30_000 * (slower if beside else 1.0))
        rows.append(Row("gemm", start, start + length, WORK, key=1))
        if beside:
            rows.append(Row("collective", start - 2_000, start + 42_000, TALK))
    assert measure_contention(lane(rows)) == pytest.approx(slower - 1.0, abs=1e-9)


def test_contention_is_unknown_where_no_work_is_seen_alone() -> None:
    rows = [Row("gemm", EPOCH_NS + 1_000 * k, EPOCH_NS + 1_000 * k + 900, WORK, key=1) for k in range(40)]
    rows.append(Row("collective", EPOCH_NS - 10, EPOCH_NS + 50_000, TALK))
    assert measure_contention(lane(rows)) is None


def test_time_beside_calls_counts_every_instant_once() -> None:
    rows = [
        Row("gemm", 0, 100, WORK),
        Row("collective", 10, 40, TALK),
        Row("collective", 30, 60, 22),
        Row("collective", 90, 200, TALK),
    ]
    made = lane(rows)
    assert measure_beside(made, np.array([0]), np.array([0])).tolist() == [60]
