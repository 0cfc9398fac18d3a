"""Which clocks are trusted, and how the others are brought to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dprankdiag.analysis.alignment import Alignment, align_clocks, shift_calls, shift_lane
from dprankdiag.analysis.matching import CallTable
from dprankdiag.model.schema import ABSENT_NS
from dprankdiag.model.sources import Trace
from tests.analysis.builders import EPOCH_NS, Array, Row, arrive, calls, lane, meet, naming, trace

SECOND_NS = 1_000_000_000
NAMING = naming(["collective"])


def tables(n_ranks: int, offsets_ns: Sequence[int], arrival: Array | None = None) -> list[CallTable]:
    """Let ranks meet and stamp each one's calls with its own clock."""
    arrival = arrive(300, n_ranks) if arrival is None else arrival
    end = meet(arrival)
    return [{(0, 7): calls(rank, arrival[:, rank] + off, end[:, rank] + off)} for rank, off in enumerate(offsets_ns)]


def align(made: Trace, calls_of: Sequence[CallTable]) -> Alignment:
    return align_clocks(made, calls_of, NAMING)[0]


def test_one_recording_has_one_clock() -> None:
    found = align(trace(4), tables(4, [0] * 4))
    assert (found.clock, found.residual_ns, found.unaligned) == ("session", None, ())
    assert found.fits == (None,) * 4


def test_recordings_of_one_host_share_its_boot_clock() -> None:
    found = align(trace(4, domains=[0, 0, 1, 1], precision=("exact", "exact")), tables(4, [0] * 4))
    assert found.clock == "boot"


def test_wall_clocks_of_hosts_are_fitted_on_the_collectives() -> None:
    offsets = [0, 0, 2_345_678, 2_345_678]
    calls_of = tables(4, offsets)
    found = align(trace(4, domains=[0, 0, 1, 1], precision=("utc", "utc")), calls_of)
    assert found.clock == "collectives"
    assert found.fits[0] is None
    moved = [shift_calls(mine, fit)[0, 7] for mine, fit in zip(calls_of, found.fits, strict=True)]
    np.testing.assert_array_equal(moved[0].end_ns, moved[3].end_ns)


def test_a_clock_said_to_be_common_is_checked_and_each_rank_fitted_if_calls_do_not_overlap() -> None:
    offsets = [0, SECOND_NS, -SECOND_NS]
    calls_of = tables(3, offsets)
    found = align(trace(3), calls_of)
    assert found.clock == "collectives"
    moved = [shift_calls(mine, fit)[0, 7] for mine, fit in zip(calls_of, found.fits, strict=True)]
    np.testing.assert_array_equal(moved[0].end_ns, moved[1].end_ns)
    np.testing.assert_array_equal(moved[0].end_ns, moved[2].end_ns)


def test_the_recording_with_most_ranks_is_the_reference() -> None:
    calls_of = tables(3, [4_000_000, 0, 0])
    found = align(trace(3, domains=[0, 1, 1], precision=("utc", "utc")), calls_of)
    assert found.fits[0] is not None
    assert found.fits[1:] == (None, None)


def test_a_recording_that_never_meets_the_others_stays_unaligned() -> None:
    calls_of = tables(3, [0, 0, 0])
    calls_of[2] = tables(1, [9_999_999], arrive(300, 1, seed=8))[0]
    found = align(trace(3, domains=[0, 0, 1], precision=("utc", "utc")), calls_of)
    assert found.unaligned == (2,)


def test_meetings_that_look_alike_throughout_align_nothing() -> None:
    arrival = EPOCH_NS + 200_000 * np.arange(300)[:, None] + np.array([0, 3_000])
    calls_of = tables(2, [0, 5_000_000], arrival)
    found = align(trace(2, domains=[0, 1], precision=("utc", "utc")), calls_of)
    assert (found.clock, found.unaligned) == ("unaligned", (1,))


def with_stamps(offset_ns: int) -> tuple[Trace, list[CallTable]]:
    """Let eight ranks meet on one clock; the stamps of rank 5 lie off it."""
    arrival = arrive(300, 8)
    return trace(8), tables(8, [offset_ns if rank == 5 else 0 for rank in range(8)], arrival)


def test_stamps_of_a_gpu_that_lie_off_its_hosts_clock_are_set_back() -> None:
    made, calls_of = with_stamps(8_000)
    found, matching = align_clocks(made, calls_of, NAMING)
    assert found.clock == "session"
    fit = found.fits[5]
    assert fit is not None
    assert abs(fit.offset_ns - 8_000) < 200
    (meeting,) = matching.sets
    assert abs(int(np.median(meeting.end_ns[:, 5] - meeting.end_ns[:, 0]))) < 200


def test_a_rank_that_really_leaves_late_and_therefore_comes_late_is_not_set_back() -> None:
    random = np.random.default_rng(0)
    exits = np.where(np.arange(8) == 5, 30_000, 0)
    ready = np.full(8, EPOCH_NS, np.int64)
    arrivals, ends = [], []
    for _ in range(300):
        arrivals.append(ready + random.integers(200_000, 240_000, 8))
        ends.append(arrivals[-1].max() + 16_000 + exits)
        ready = ends[-1]
    arrival, end = np.array(arrivals), np.array(ends)
    calls_of = [{(0, 7): calls(rank, arrival[:, rank], end[:, rank])} for rank in range(8)]
    assert align(trace(8), calls_of).fits == (None,) * 8


def test_calls_are_matched_on_the_common_axis() -> None:
    calls_of = tables(4, [0, 0, 2_345_678, 2_345_678])
    _, matching = align_clocks(trace(4, domains=[0, 0, 1, 1], precision=("utc", "utc")), calls_of, NAMING)
    assert matching.matched_calls == matching.calls == 1_200


def test_a_shift_moves_starts_arrivals_and_ends_alike() -> None:
    calls_of = tables(2, [0, 2_000_000])
    fit = align(trace(2, domains=[0, 1], precision=("utc", "utc")), calls_of).fits[1]
    before, after = calls_of[1][0, 7], shift_calls(calls_of[1], fit)[0, 7]
    for name in ("start_ns", "arrival_ns", "end_ns"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name) - 2_000_000)


@pytest.mark.parametrize("launch_ns", [None, EPOCH_NS])
def test_a_shift_of_a_lane_leaves_absent_launches_absent(launch_ns: int | None) -> None:
    calls_of = tables(2, [0, 2_000_000])
    fit = align(trace(2, domains=[0, 1], precision=("utc", "utc")), calls_of).fits[1]
    rows = [Row("gemm", EPOCH_NS, EPOCH_NS + 10, launch_ns=launch_ns), Row("gemm", EPOCH_NS + 20, EPOCH_NS + 30)]
    moved = shift_lane(lane(rows), fit)
    np.testing.assert_array_equal(moved.start_ns, lane(rows).start_ns - 2_000_000)
    if launch_ns is None:
        assert moved.launch_ns is None
    else:
        assert moved.launch_ns is not None
        assert moved.launch_ns.tolist() == [EPOCH_NS - 2_000_000, ABSENT_NS]
