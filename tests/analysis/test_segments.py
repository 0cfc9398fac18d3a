"""Every nanosecond between two meetings is counted once, for one thing."""

from __future__ import annotations

import numpy as np

from dprankdiag.analysis.lanes import FAMILY_CODE
from dprankdiag.analysis.segments import Segments, cut_segments, measure_keys
from tests.analysis.builders import EPOCH_NS, Row, lane

NO_KEYS = np.empty(0, np.int64)


def cut(rows: list[Row], probe_keys: list[int] | None = None) -> Segments:
    """Cut a lane at its own collectives."""
    made = lane(rows)
    met = made.channel >= 0
    keys = NO_KEYS if probe_keys is None else np.array(probe_keys, np.int64)
    return cut_segments(made, made.start_ns[met], made.end_ns[met], keys)


def busy(found: Segments, family: str) -> list[int]:
    return [int(time) for time in found.busy_ns[:, FAMILY_CODE[family]]]


def test_work_idle_and_families_of_each_segment_are_told_apart() -> None:
    found = cut(
        [
            Row("gemm", 0, 100),
            Row("attention", 110, 150),
            Row("collective", 150, 200),
            Row("moe_expert", 230, 300),
            Row("collective", 310, 350),
        ]
    )
    assert busy(found, "gemm") == [100, 0]
    assert busy(found, "attention") == [40, 0]
    assert busy(found, "moe_expert") == [0, 70]
    assert found.idle_ns.tolist() == [10, 30 + 10]
    assert found.counts.sum(axis=1).tolist() == [2, 1]


def test_a_kernel_launched_ahead_of_its_predecessors_end_is_counted_from_there() -> None:
    found = cut([Row("gemm", 0, 100), Row("norm", 70, 120), Row("collective", 120, 130)])
    assert busy(found, "gemm") == [100]
    assert busy(found, "norm") == [20]
    assert found.idle_ns.tolist() == [0]


def test_work_of_two_streams_at_once_is_counted_once() -> None:
    found = cut([Row("gemm", 0, 100), Row("gemm", 50, 160, stream=8), Row("collective", 160, 170)])
    assert busy(found, "gemm") == [160]


def test_work_behind_an_early_collective_counts_after_it() -> None:
    found = cut([Row("collective", 0, 100), Row("gemm", 100, 150), Row("collective", 150, 200)])
    assert busy(found, "gemm") == [0, 50]


def test_work_of_another_stream_during_a_meeting_belongs_to_the_next_segment() -> None:
    found = cut([Row("collective", 0, 100), Row("gemm", 40, 160, stream=8), Row("collective", 160, 200)])
    assert busy(found, "gemm") == [0, 120]


def test_work_after_the_last_meeting_is_left_out() -> None:
    found = cut([Row("collective", 0, 100), Row("gemm", 100, 150)])
    assert found.busy_ns.sum() == 0


def test_idle_time_before_the_launch_returned_is_the_hosts() -> None:
    found = cut(
        [
            Row("gemm", 0, 100, launch_ns=0),
            Row("norm", 160, 180, launch_ns=140),
            Row("norm", 200, 220, launch_ns=150),
            Row("collective", 220, 230, launch_ns=160),
        ]
    )
    assert found.has_launches
    assert found.idle_ns.tolist() == [60 + 20]
    assert found.host_ns.tolist() == [40]


def test_a_launch_that_returns_after_the_kernel_began_blames_the_gap_alone() -> None:
    found = cut([Row("gemm", 0, 100, launch_ns=0), Row("norm", 130, 150, launch_ns=900), Row("collective", 150, 160)])
    assert found.host_ns.tolist() == [30]


def test_without_launches_no_idle_time_is_the_hosts() -> None:
    found = cut([Row("gemm", 0, 100), Row("norm", 160, 180), Row("collective", 180, 190)])
    assert not found.has_launches
    assert found.host_ns.tolist() == [0]


def test_probe_time_is_part_of_the_work() -> None:
    found = cut([Row("gemm", 0, 100, key=4), Row("gemm", 100, 130, key=5), Row("collective", 130, 140)], [5, 9])
    assert found.probe_ns.tolist() == [30]
    assert busy(found, "gemm") == [130]


def test_phases_and_graph_rows_are_counted() -> None:
    found = cut(
        [
            Row("attention", 0, 10, phase=1),
            Row("attention", 10, 20, phase=2, in_graph=True),
            Row("attention", 20, 30, phase=2, in_graph=True),
            Row("collective", 30, 40),
        ]
    )
    assert (found.prefill.tolist(), found.decode.tolist(), found.in_graph.tolist()) == ([1], [2], [2])


def test_work_and_idle_add_up_to_the_time_between_meetings_near_the_epoch() -> None:
    random = np.random.default_rng(0)
    rows, now = [], EPOCH_NS
    for _ in range(200):
        for family in ("gemm", "attention", "norm"):
            start = now + int(random.integers(-30, 200))
            end = max(now, start) + int(random.integers(1, 999))
            rows.append(Row(family, start, end))
            now = end
        rows.append(Row("collective", now, now + 500))
        now += 500
    found = cut(rows)
    between = found.arrival_ns[1:] - found.end_ns[:-1]
    np.testing.assert_array_equal(found.busy_ns.sum(axis=1)[1:] + found.idle_ns[1:], between)


def test_keys_are_counted_and_timed_without_overlap_and_communication() -> None:
    times = measure_keys(
        lane(
            [
                Row("gemm", 0, 100, key=4),
                Row("norm", 70, 120, key=2),
                Row("gemm", 120, 150, key=4),
                Row("collective", 150, 200),
            ]
        )
    )
    assert times.key.tolist() == [2, 4]
    assert times.count.tolist() == [1, 2]
    assert times.total_ns.tolist() == [20, 130]
    assert times.family.tolist() == [FAMILY_CODE["norm"], FAMILY_CODE["gemm"]]


def test_memory_copies_have_no_key() -> None:
    assert len(measure_keys(lane([Row("memory", 0, 100, key=-1)])).key) == 0
