"""Names become families, channels and phases; rows become lanes."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.analysis.lanes import FAMILY_CODE, Lane, Naming, add_replays, name_kernels, name_ranges, range_lane
from dprankdiag.analysis.shelf import KernelShelf
from dprankdiag.catalog.kernels import load_kernels
from dprankdiag.catalog.ranges import load_ranges
from dprankdiag.model.schema import ABSENT_NS, Columns
from dprankdiag.model.sources import KernelName, Names, Trace
from tests.analysis.builders import EPOCH_NS, Row, lane, trace

GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)"
DECODE = "void flash::flash_fwd_splitkv_mla_kernel<bf16, (int)512>(Params)"
PREFILL = "void BatchPrefillWithRaggedKVCacheKernel<(int)2>(Params)"
GEMM = "nvjet_tst_64x64_64x16_1x1_v_bz_TNT"


def name(*texts: str) -> Naming:
    return name_kernels(Names(tuple(KernelName(text, text) for text in texts)), load_kernels())


def open_shelf(made: Trace, naming: Naming) -> KernelShelf:
    return KernelShelf(made.tables, made.names, len(made.ranks), naming)


def test_kernel_names_get_family_channel_and_phase() -> None:
    found = name(GATHER, DECODE, PREFILL, GEMM)
    assert found.family.tolist() == [FAMILY_CODE[key] for key in ("collective", "attention", "attention", "gemm")]
    assert found.channel.tolist() == [0, -1, -1, -1]
    assert found.phase.tolist() == [0, 2, 1, 0]
    assert found.channel_operation == ("all_gather",)


def test_one_collective_with_other_types_is_one_channel() -> None:
    first, second = (f"void two_shot_all_reduce_kernel<{kind}, 8>(Params)" for kind in ("half", "float"))
    found = name(first, second)
    assert found.channel[0] == found.channel[1]


def test_a_name_that_nobody_knows_is_other_work() -> None:
    assert name("zzz_fused_thing").family.tolist() == [FAMILY_CODE["other"]]


def test_range_names_mark_meetings_work_and_the_start_of_steps() -> None:
    names = Names(range_names=("decode_step", "gloo:all_gather", "attention", "zzz"))
    found, is_step = name_ranges(names, load_ranges())
    assert is_step.tolist() == [True, False, False, False]
    assert found.channel.tolist() == [-1, 0, -1, -1]
    assert found.family[2] == FAMILY_CODE["attention"]
    assert found.family[3] == -1


def test_ready_is_the_latest_end_before_on_the_same_stream() -> None:
    made = lane([Row("gemm", 0, 90), Row("gemm", 10, 20, stream=8), Row("norm", 30, 40), Row("norm", 95, 99)])
    assert made.same_stream_ready().tolist() == [ABSENT_NS, ABSENT_NS, 90, 90]


def test_each_rank_gets_its_own_rows_in_order() -> None:
    rows = [
        [Row("gemm", EPOCH_NS + 10, EPOCH_NS + 20, key=1), Row("gemm", EPOCH_NS, EPOCH_NS + 5, key=0)],
        [Row("gemm", EPOCH_NS + 3, EPOCH_NS + 4, key=1, launch_ns=EPOCH_NS)],
    ]
    names = [GEMM, GATHER]
    shelf = open_shelf(trace(2, rows, kernel_names=names), name(*names))
    first, second = shelf.lane(0), shelf.lane(1)
    assert first.start_ns.tolist() == [EPOCH_NS, EPOCH_NS + 10]
    assert first.channel.tolist() == [-1, 0]
    assert first.launch_ns is None
    assert second.launch_ns is not None
    assert second.launch_ns.tolist() == [EPOCH_NS]


@pytest.mark.parametrize("shape_id", [0, 1])
def test_a_key_tells_name_and_launch_shape(shape_id: int) -> None:
    shapes = ((1, 1, 1, 128, 1, 1), (2, 1, 1, 128, 1, 1))
    made = trace(1, [[Row("gemm", 0, 5, key=1)]], kernel_names=[GATHER, GEMM], shapes=shapes)
    made.tables["kernels"]["shape_id"][:] = shape_id
    found = open_shelf(made, name(GATHER, GEMM)).lane(0)
    assert found.key.tolist() == [2 + shape_id]


def test_copies_lie_between_the_kernels_as_work_without_a_key() -> None:
    made = trace(1, [[Row("gemm", 0, 5, key=0), Row("gemm", 30, 40, key=0)]], kernel_names=[GEMM])
    copies: Columns = {
        "rank": np.array([0], np.int16),
        "stream": np.array([7], np.int32),
        "start_ns": np.array([10], np.int64),
        "end_ns": np.array([20], np.int64),
        "kind": np.array([1], np.int8),
        "size_bytes": np.array([64], np.int64),
        "launch_ns": np.array([ABSENT_NS], np.int64),
    }
    made.tables["copies"] = copies
    found = open_shelf(made, name(GEMM)).lane(0)
    assert found.start_ns.tolist() == [0, 10, 30]
    assert found.family.tolist() == [FAMILY_CODE[key] for key in ("gemm", "memory", "gemm")]
    assert found.key.tolist() == [0, -1, 0]


def mark(*rows: tuple[str, int, int, int], open_rows: tuple[int, ...] = ()) -> Lane:
    """Make the lane of a process from its ranges: name, thread, start and end."""
    made = trace(1)
    names = list(dict.fromkeys(name for name, *_ in rows))
    count = len(rows)
    made.tables["ranges"] = {
        "rank": np.zeros(count, np.int16),
        "thread": np.array([row[1] for row in rows], np.int32),
        "start_ns": np.array([row[2] for row in rows], np.int64),
        "end_ns": np.array([row[3] for row in rows], np.int64),
        "name_id": np.array([names.index(row[0]) for row in rows], np.int32),
        "domain_id": np.zeros(count, np.int32),
        "value": np.full(count, ABSENT_NS, np.int64),
        "is_open": np.isin(np.arange(count), open_rows),
    }
    naming, _ = name_ranges(Names(range_names=tuple(names)), load_ranges())
    return range_lane(made, naming, 0)


def test_a_meeting_on_whatever_thread_of_a_pool_is_on_the_thread_of_the_caller_that_waits() -> None:
    calls = ("gloo:all_gather", 8, 5, 9), ("attention", 1, 9, 20), ("gloo:all_gather", 9, 20, 30)
    assert mark(("attention", 1, 0, 5), *calls).stream.tolist() == [1, 1, 1, 1]
    # One that runs beside other work is not waited for; the pool's threads are still one.
    assert mark(("attention", 1, 0, 8), *calls).stream.tolist() == [1, 8, 1, 8]


def test_threads_that_meet_at_the_same_time_stay_apart() -> None:
    found = mark(("gloo:all_gather", 8, 0, 9), ("gloo:all_gather", 9, 5, 12))
    assert found.stream.tolist() == [8, 9]


def test_a_meeting_that_a_program_and_a_library_both_mark_is_the_librarys() -> None:
    found = mark(("all_gather", 1, 0, 20), ("gloo:all_gather", 8, 4, 19), ("all_gather", 1, 30, 40))
    assert found.start_ns.tolist() == [4, 30]


def test_ranges_that_are_open_or_mean_nothing_are_no_rows() -> None:
    found = mark(("gloo:all_gather", 1, 0, 5), ("zzz", 1, 10, 15), ("gloo:all_gather", 1, 20, 99), open_rows=(2,))
    assert found.start_ns.tolist() == [0]
    assert found.launch_ns is not None
    assert found.launch_ns.tolist() == [0]


def test_a_replay_recorded_as_a_whole_is_a_meeting_of_a_channel_of_its_own() -> None:
    made = trace(1, [[Row("gemm", 0, 5, key=0)]], kernel_names=[GEMM])
    made.tables["graph_replays"] = {
        "rank": np.array([0], np.int16),
        "stream": np.array([7], np.int32),
        "start_ns": np.array([10], np.int64),
        "end_ns": np.array([90], np.int64),
        "graph_id": np.array([3], np.int64),
    }
    naming = add_replays(name(GEMM))
    found = open_shelf(made, naming).lane(0)
    assert found.start_ns.tolist() == [0, 10]
    assert found.channel.tolist() == [-1, len(naming.channels) - 1]
    assert found.key.tolist() == [0, -1]


def test_rows_that_were_spent_are_gone() -> None:
    shelf = open_shelf(trace(1, [[Row("gemm", 0, 5, key=0)]], kernel_names=[GEMM]), name(GEMM))
    assert len(shelf.spend(0).start_ns) == 1
    with pytest.raises(KeyError):
        shelf.lane(0)
