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


def test_work_of_each_segment_is_told_apart_by_what_it_follows() -> None:
    found = cut(
        [
            Row("gemm", 0, 100),
            Row("attention", 110, 150),
            Row("kv_write", 150, 155),
            Row("collective", 155, 200),
            Row("moe_expert", 230, 300),
            Row("collective", 310, 350),
        ]
    )
    assert found.work_ns.tolist() == [145, 70]
    assert found.attention_ns.tolist() == [45, 0]
    assert found.expert_ns.tolist() == [0, 70]


def test_segments_that_hold_the_same_rows_have_the_same_content_whatever_their_order() -> None:
    found = cut(
        [
            Row("gemm", 0, 100),
            Row("norm", 100, 120),
            Row("collective", 120, 130),
            Row("norm", 130, 140),
            Row("gemm", 140, 150),
            Row("collective", 150, 160),
            Row("gemm", 160, 170),
            Row("collective", 170, 180),
        ]
    )
    first, second, third = found.content.tolist()
    assert first == second != third


def test_a_kernel_launched_ahead_of_its_predecessors_end_is_counted_from_there() -> None:
    found = cut([Row("gemm", 0, 100), Row("attention", 70, 120), Row("collective", 120, 130)])
    assert found.work_ns.tolist() == [120]
    assert found.attention_ns.tolist() == [20]


def test_work_of_two_streams_at_once_is_counted_once() -> None:
    found = cut([Row("gemm", 0, 100), Row("gemm", 50, 160, stream=8), Row("collective", 160, 170)])
    assert found.work_ns.tolist() == [160]


def test_work_within_longer_work_counts_for_nothing() -> None:
    found = cut([Row("gemm", 0, 100), Row("attention", 20, 60, stream=8), Row("collective", 100, 110)])
    assert (found.work_ns.tolist(), found.attention_ns.tolist()) == ([100], [0])


def test_work_behind_an_early_collective_counts_after_it() -> None:
    found = cut([Row("collective", 0, 100), Row("gemm", 100, 150), Row("collective", 150, 200)])
    assert found.work_ns.tolist() == [0, 50]


def test_work_of_another_stream_during_a_meeting_belongs_to_the_next_segment() -> None:
    found = cut([Row("collective", 0, 100), Row("gemm", 40, 160, stream=8), Row("collective", 160, 200)])
    assert found.work_ns.tolist() == [0, 120]


def test_work_after_the_last_meeting_is_left_out() -> None:
    found = cut([Row("collective", 0, 100), Row("gemm", 100, 150)])
    assert found.work_ns.tolist() == [0]


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
    assert found.host_ns.tolist() == [40]


def test_idle_time_before_a_late_collective_is_the_hosts_too() -> None:
    found = cut([Row("gemm", 0, 100, launch_ns=0), Row("collective", 150, 160, launch_ns=150)])
    assert found.host_ns.tolist() == [50]


def test_a_launch_that_returns_after_the_kernel_began_blames_the_gap_alone() -> None:
    found = cut([Row("gemm", 0, 100, launch_ns=0), Row("norm", 130, 150, launch_ns=900), Row("collective", 150, 160)])
    assert found.host_ns.tolist() == [30]


def test_a_row_without_a_launch_blames_no_host() -> None:
    found = cut([Row("gemm", 0, 100, launch_ns=0), Row("norm", 130, 150), Row("collective", 150, 160)])
    assert found.host_ns.tolist() == [0]


def test_without_launches_no_idle_time_is_the_hosts() -> None:
    found = cut([Row("gemm", 0, 100), Row("norm", 160, 180), Row("collective", 180, 190)])
    assert not found.has_launches
    assert found.host_ns.tolist() == [0]


def test_probe_time_is_part_of_the_work() -> None:
    found = cut([Row("gemm", 0, 100, key=4), Row("gemm", 100, 130, key=5), Row("collective", 130, 140)], [5, 9])
    assert found.probe_ns.tolist() == [30]
    assert found.work_ns.tolist() == [130]


def test_phases_graph_rows_and_samplers_are_counted() -> None:
    found = cut(
        [
            Row("attention", 0, 10, phase=1),
            Row("attention", 10, 20, phase=2, in_graph=True),
            Row("attention", 20, 30, phase=2, in_graph=True),
            Row("sampling", 30, 35),
            Row("collective", 35, 40),
        ]
    )
    assert (found.prefill.tolist(), found.decode.tolist(), found.in_graph.tolist()) == ([1], [2], [2])
    assert found.sampled.tolist() == [1]


def test_work_adds_up_to_the_union_of_all_rows_near_the_epoch() -> None:
    random = np.random.default_rng(0)
    rows, now, union = [], EPOCH_NS, []
    for _ in range(200):
        busy = 0
        for family in ("gemm", "attention", "norm"):
            start = now + int(random.integers(-30, 200))
            end = max(now, start) + int(random.integers(1, 999))
            rows.append(Row(family, start, end))
            busy += end - max(start, now)
            now = end
        union.append(busy)
        rows.append(Row("collective", now, now + 500))
        now += 500
    found = cut(rows)
    assert found.work_ns.tolist()[1:] == union[1:]


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
