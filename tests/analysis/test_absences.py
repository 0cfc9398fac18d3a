from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dprankdiag.analysis.absences import FlightView, find_absences
from dprankdiag.readers.flight_recorder import parse_dump
from tests.flights import ALL, build_dumps, dump, entry, run_to, standing_at


def look(dumps: Mapping[int, Mapping[str, Any]], expected: int | None = None) -> FlightView:
    read = {rank: parse_dump(json.dumps(content).encode(), f"rank{rank}.json") for rank, content in dumps.items()}
    return find_absences(read, expected)


def test_whoever_is_ahead_is_not_behind() -> None:
    seen = look(standing_at([(641, "started") if rank in (12, 13) else (640, "completed") for rank in range(32)], 639))
    (stall,) = seen.stalls
    assert stall.waiting == (12, 13)
    assert seen.absent == tuple(rank for rank in range(32) if rank not in (12, 13))
    assert (stall.sequence, stall.calls_behind, stall.name) == (641, 1, "nccl:all_gather")


def test_a_rank_stuck_in_an_earlier_call_than_the_others_is_behind() -> None:
    seen = look(standing_at([(9, "started"), (9, "started"), (8, "started"), (9, "started")]))
    assert seen.absent == (2,)


def test_a_rank_far_behind_counts_its_calls() -> None:
    seen = look(standing_at([(20, "started"), (20, "started"), (11, "completed")]))
    assert (seen.absent, seen.stalls[0].calls_behind) == ((2,), 9)


def test_processes_may_run_ahead_of_their_gpus() -> None:
    ahead = [*run_to(20, "started"), *(entry(20 + more, ALL, 21 + more, "scheduled") for more in range(5))]
    members = {ALL: range(3)}
    seen = look(
        {0: dump(ahead, members), 1: dump(run_to(20, "started"), members), 2: dump(run_to(19, "completed"), members)}
    )
    assert (seen.stalls[0].sequence, seen.stalls[0].waiting, seen.absent) == (20, (0, 1), (2,))


def test_without_timing_nobody_is_behind_for_not_having_started() -> None:
    assert look(standing_at([(9, "scheduled")] * 4)).absent == ()


def test_a_call_that_was_given_up_is_counted() -> None:
    given_up = dump(run_to(9, "started", retired=True), {ALL: range(3)})
    seen = look({0: given_up, 1: given_up, 2: dump(run_to(8, "completed"), {ALL: range(3)})})
    assert seen.stalls[0].timed_out == 2


def test_the_status_tells_how_far_a_rank_got_whose_entries_have_left_the_ring() -> None:
    dumps = standing_at([(9, "started"), (9, "started"), (8, "completed")])
    other = [entry(5000, "1", 70, "completed")]
    dumps[2] = dump(other, {ALL: range(3), "1": [2]})
    dumps[2]["pg_status"]["0"] = {"last_enqueued_collective": "8", "last_completed_collective": "8"}
    assert look(dumps).absent == ()  # nothing says which id the group has
    dumps[2]["entries"].insert(0, entry(4999, ALL, 8, "completed"))
    assert look(dumps).absent == (2,)


def test_a_rank_whose_ring_does_not_reach_back_is_unseen_and_not_absent() -> None:
    dumps = standing_at([(9, "started"), (9, "started"), (8, "completed")])
    dumps[2] = dump([entry(5000, "1", 70, "completed")], {ALL: range(3), "1": [2]})
    seen = look(dumps)
    assert (seen.absent, seen.stalls[0].unseen) == ((), (2,))


def test_a_rank_that_never_entered_its_first_collective_is_absent() -> None:
    dumps = standing_at([(1, "started")] * 4)
    dumps[3] = dump([], {ALL: range(4)})
    assert look(dumps).absent == (3,)


def test_one_name_for_groups_of_different_members_is_kept_apart() -> None:
    left, right = {"1": [0, 1]}, {"1": [2, 3]}
    dumps = {
        0: dump([entry(0, "1", 5, "started")], left),
        1: dump([entry(0, "1", 5, "started")], left),
        2: dump([entry(0, "1", 9, "started")], right),
        3: dump([entry(0, "1", 8, "completed")], right),
    }
    seen = look(dumps)
    assert seen.absent == (3,)
    assert sorted(stall.waiting for stall in seen.stalls) == [(0, 1), (2,)]


def test_blame_passes_through_two_groups() -> None:
    groups = {
        0: {"ranks": [0, 1, 2, 3], "at": 41, "but": {1: [40, "completed"]}},
        1: {"ranks": [1, 2], "at": 9, "but": {2: [8, "completed"]}},
        2: {"ranks": [2, 3], "at": 4, "but": {3: [3, "completed"]}},
    }
    groups[0]["but"] |= {2: [40, "completed"], 3: [40, "completed"]}
    seen = look(build_dumps({"groups": groups}))
    assert (seen.absent, seen.inherited) == ((3,), (1, 2))


def test_missing_dumps_are_members_or_expected_ranks_without_one() -> None:
    dumps = standing_at([(9, "started")] * 4)
    del dumps[1]
    assert look(dumps).missing == (1,)
    assert look(dumps, 6).missing == (1, 4, 5)


def test_different_operations_and_sizes_at_one_call_are_told() -> None:
    groups = {
        0: {"ranks": [0, 1, 2], "at": 4, "state": "completed", "changes": {1: {"profiling_name": "nccl:barrier"}}}
    }
    (text,) = look(build_dumps({"groups": groups})).mismatches
    assert text == "call 4 of group 0 was entered with different operations: nccl:barrier on rank 1; " + (
        "nccl:all_gather on 2 ranks (0 first)"
    )
    groups[0]["changes"] = {2: {"input_sizes": [[1, 7168]]}}
    (text,) = look(build_dumps({"groups": groups})).mismatches
    assert "different sizes: [[1, 7168]] to [[32, 7168]] on rank 2" in text


def test_exchanges_may_differ_in_size() -> None:
    changes = {rank: {"profiling_name": "nccl:all_to_all", "input_sizes": [[rank, 8]]} for rank in range(3)}
    groups = {0: {"ranks": [0, 1, 2], "at": 4, "state": "completed", "changes": changes}}
    assert look(build_dumps({"groups": groups})).mismatches == ()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=8), st.integers(0, 1000))
def test_the_ranks_may_be_renumbered(lag: list[int], order: int) -> None:
    top = max(20 - late for late in lag)
    standings = [(20 - late, "started" if 20 - late == top else "completed") for late in lag]
    renumbered = np.random.default_rng(order).permutation(len(lag)).tolist()
    moved = [standings[renumbered.index(rank)] for rank in range(len(lag))]
    expected = {renumbered[rank] for rank in look(standing_at(standings)).absent}
    assert (
        set(look(standing_at(moved)).absent)
        == expected
        == {renumbered[r] for r, late in enumerate(lag) if 20 - late < top}
    )
