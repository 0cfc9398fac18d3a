"""Which calls are one meeting, of which ranks, and who waited."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.analysis import partners
from dprankdiag.analysis.calls import extract_calls, form_channels, split_by_place, split_by_row_before
from dprankdiag.analysis.collectives import Refusal, match_channel
from dprankdiag.analysis.partitions import choose_partition
from dprankdiag.analysis.partners import match_complete, match_rows
from dprankdiag.model.traces import MESSAGES
from tests.analysis.builders import EPOCH_NS, Array, Row, arrive, calls, channel, lane, meet, naming, to_calls


def drop(values: Array, rows: list[int]) -> Array:
    return np.delete(values, rows)


def test_calls_of_all_ranks_meet_one_by_one() -> None:
    arrival = arrive(50, 4)
    (found,), refusal = match_channel(channel(to_calls(arrival, meet(arrival))))
    assert refusal is None
    assert found.ranks == (0, 1, 2, 3)
    np.testing.assert_array_equal(found.arrival_ns, arrival)
    np.testing.assert_array_equal(found.end_ns, meet(arrival))
    assert found.waits.all()


@pytest.mark.parametrize("block_calls", [1, 90, 1 << 16])
def test_calls_meet_in_order_however_many_ranks_are_looked_at_together(
    block_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partners, "BLOCK_CALLS", block_calls)
    arrival = arrive(40, 5)
    end = meet(arrival)
    members = [calls(rank, arrival[:, rank], end[:, rank]) for rank in range(5)]
    assert (match_rows(members) == np.arange(40)[:, None]).all()
    members[4] = calls(4, arrival[1:, 4], end[1:, 4])
    assert np.array_equal(match_complete(members), np.stack([np.arange(1, 40)] * 4 + [np.arange(39)], axis=1))
    members[4] = calls(4, np.append(arrival[1:, 4], end[-1, 4] + 10**6), np.append(end[1:, 4], end[-1, 4] + 10**7))
    assert (match_rows(members)[1:, 4] == np.arange(39)).all()
    assert match_rows(members)[0, 4] == -1


def test_a_lost_row_spoils_one_meeting_and_not_the_rest() -> None:
    arrival = arrive(50, 4)
    members = to_calls(arrival, meet(arrival))
    members[2] = calls(2, drop(arrival[:, 2], [20]), drop(meet(arrival)[:, 2], [20]))
    (found,), _ = match_channel(channel(members))
    np.testing.assert_array_equal(found.arrival_ns, np.delete(arrival, 20, axis=0))


def test_lost_rows_on_the_busiest_rank_spoil_theirs_alone() -> None:
    arrival = arrive(60, 4)
    end = meet(arrival)
    lost = [[5], [17], [17, 30], [44]]
    members = [calls(k, drop(arrival[:, k], rows), drop(end[:, k], rows)) for k, rows in enumerate(lost)]
    (found,), _ = match_channel(channel(members))
    np.testing.assert_array_equal(found.arrival_ns, np.delete(arrival, [5, 17, 30, 44], axis=0))


def test_a_late_exit_does_not_part_those_who_met() -> None:
    arrival = arrive(80, 4)
    late = np.zeros_like(arrival)
    late[:, 1] = 90_000
    (found,), _ = match_channel(channel(to_calls(arrival, meet(arrival, exit_ns=late))))
    assert len(found.arrival_ns) == 80


@pytest.mark.parametrize("groups", [[(0, 1), (2, 3), (4, 5), (6, 7)], [(0, 4), (1, 5), (2, 6), (3, 7)]])
def test_groups_side_by_side_or_strided_are_told_by_their_ends(groups: list[tuple[int, ...]]) -> None:
    arrival = arrive(200, 8, spread_ns=60_000)
    end = np.empty_like(arrival)
    for group in groups:
        end[:, group] = meet(arrival[:, group], transfer_ns=9_000)
    assert choose_partition(to_calls(arrival, end)) == groups
    found, _ = match_channel(channel(to_calls(arrival, end)))
    assert [item.ranks for item in found] == groups


def test_where_all_meet_no_smaller_group_is_taken() -> None:
    arrival = arrive(200, 8)
    assert choose_partition(to_calls(arrival, meet(arrival))) == [tuple(range(8))]


def test_two_groupings_that_explain_the_ends_equally_are_refused() -> None:
    # 0 with 1 and 0 with 2 look the same, because 1 and 2, and 0 and 3, are copies of each other.
    pair = arrive(200, 2, spread_ns=60_000)
    arrival = pair[:, [0, 1, 1, 0]]
    end = np.concatenate([meet(pair), meet(pair)], axis=1)
    end = end + np.random.default_rng(3).integers(0, 3, end.shape)
    assert choose_partition(to_calls(arrival, end)) in (None, [(0, 1, 2, 3)])
    apart = np.array([0, 0, 250_000, 250_000])
    assert choose_partition(to_calls(arrival + apart, end + apart)) != [(0, 2), (1, 3)]


def test_calls_that_do_not_wait_are_local_and_blame_nobody() -> None:
    arrival = arrive(200, 4, spread_ns=100_000, period_ns=600_000)
    own = arrival + 150_000 + np.random.default_rng(1).integers(0, 2_000, arrival.shape)
    found, refusal = match_channel(channel(to_calls(arrival, own)))
    assert all(not item.waits.any() for item in found)
    assert refusal is not None
    assert refusal.is_local


def test_calls_that_a_slow_fabric_makes_longer_for_a_while_still_wait() -> None:
    arrival = arrive(300, 8, spread_ns=2_000)
    arrival[100:200] = arrival[100:200].min(axis=1, keepdims=True) + (arrival[100:200] % 700)
    transfer = np.full(300, 6_000)
    transfer[100:200] = 60_000
    (found,), refusal = match_channel(channel(to_calls(arrival, meet(arrival, transfer))))
    assert refusal is None
    assert found.waits.all()


@pytest.mark.parametrize("ranks", [2, 8])
def test_calls_that_the_last_to_come_leaves_late_still_wait(ranks: int) -> None:
    arrival = arrive(300, ranks, spread_ns=2_000, period_ns=900_000)
    late = np.zeros_like(arrival)
    late[::7, 1] = 150_000
    found, refusal = match_channel(channel(to_calls(arrival + late, meet(arrival + late, exit_ns=late))))
    assert refusal is None
    assert found[0].ranks == tuple(range(ranks))


def test_one_rank_that_does_not_block_among_others_that_do_is_given_no_wait() -> None:
    arrival = arrive(300, 4, spread_ns=14_000)
    end = meet(arrival)
    end[:, 0] = arrival[:, 0] + 15_000
    (found,), _ = match_channel(channel(to_calls(arrival, end)))
    assert found.waits.tolist() == [False, True, True, True]


def test_arrivals_that_hardly_differ_count_as_waiting() -> None:
    arrival = arrive(100, 4, spread_ns=500)
    (found,), _ = match_channel(channel(to_calls(arrival, meet(arrival))))
    assert found.waits.all()


def test_a_channel_of_one_rank_is_refused() -> None:
    arrival = arrive(20, 1)
    found, refusal = match_channel(channel(to_calls(arrival, meet(arrival))))
    assert found == []
    assert refusal == Refusal("gather", "only one rank calls it")


def test_calls_that_never_overlap_are_refused() -> None:
    first = arrive(40, 1)
    members = [*to_calls(first, meet(first)), *to_calls(first + 10**12, meet(first) + 10**12, [1])]
    found, refusal = match_channel(channel(members))
    assert found == []
    assert refusal is not None


def test_a_call_that_starts_before_the_kernel_ahead_of_it_ends_arrives_at_that_end() -> None:
    rows = [Row("gemm", EPOCH_NS, EPOCH_NS + 100), Row("collective", EPOCH_NS + 60, EPOCH_NS + 300)]
    found = extract_calls(lane(rows), 3)[0, 7]
    assert found.rank == 3
    assert (found.start_ns[0], found.arrival_ns[0]) == (EPOCH_NS + 60, EPOCH_NS + 100)


def test_work_on_another_stream_does_not_delay_the_arrival() -> None:
    rows = [Row("gemm", 0, 100, stream=8), Row("collective", 60, 300)]
    assert extract_calls(lane(rows), 0)[0, 7].arrival_ns.tolist() == [60]


def test_an_arrival_is_never_after_the_end() -> None:
    rows = [Row("gemm", 0, 500), Row("collective", 60, 300)]
    assert extract_calls(lane(rows), 0)[0, 7].arrival_ns.tolist() == [300]


def test_a_lane_without_communication_has_no_calls() -> None:
    assert extract_calls(lane([Row("gemm", 0, 100)]), 0) == {}


def test_streams_are_paired_by_how_busy_they_are() -> None:
    many, few = arrive(60, 2), arrive(20, 2, seed=1)
    by_rank = []
    for rank, (busy, quiet) in enumerate([(7, 9), (30, 20)]):
        parts = {(0, busy): calls(rank, many[:, rank], meet(many)[:, rank])}
        parts[0, quiet] = calls(rank, few[:, rank], meet(few)[:, rank])
        by_rank.append(parts)
    found = form_channels(by_rank, naming(["collective"]))
    assert [[len(member) for member in item.calls] for item in found] == [[60, 60], [20, 20]]


def test_ranks_that_use_unlike_numbers_of_streams_have_theirs_merged() -> None:
    times = arrive(60, 2)
    one = {(0, 7): calls(0, times[:, 0], meet(times)[:, 0])}
    halves = {(0, 7 + k): calls(1, times[k::2, 1], meet(times)[k::2, 1]) for k in range(2)}
    (found,) = form_channels([one, halves], naming(["collective"]))
    np.testing.assert_array_equal(found.calls[1].start_ns, times[:, 1])


def test_calls_made_in_two_places_of_a_step_are_two_channels() -> None:
    times = arrive(100, 3)
    place = np.arange(100) % 2
    whole = channel([calls(k, times[:, k], meet(times)[:, k], place=place) for k in range(3)])
    assert [[len(member) for member in part.calls] for part in split_by_place(whole)] == [[50] * 3, [50] * 3]


@pytest.mark.parametrize("rare, kept", [(10, [145, 145, 10]), (4, [148, 148])])
def test_calls_in_rare_places_stay_together_unless_they_are_too_few(rare: int, kept: list[int]) -> None:
    times = arrive(300, 3)
    place = np.arange(300) % 2
    place[np.linspace(1, 298, rare).astype(int)] = 2 + np.arange(rare)
    whole = channel([calls(k, times[:, k], meet(times)[:, k], place=place) for k in range(3)])
    assert [len(part.calls[0]) for part in split_by_place(whole)] == kept


def test_places_that_differ_between_the_ranks_leave_a_channel_whole() -> None:
    times = arrive(100, 3)
    places = [np.arange(100) % 2, np.arange(100) % 2, (np.arange(100) % 4 == 0).astype(int)]
    whole = channel([calls(k, times[:, k], meet(times)[:, k], place=places[k]) for k in range(3)])
    assert split_by_place(whole) == [whole]


@pytest.mark.parametrize("seed", range(12))
def test_one_row_in_fifty_lost_does_not_split_those_who_all_meet(seed: int) -> None:
    arrival = arrive(90, 4, seed=seed)
    end = meet(arrival)
    kept = np.asarray(np.random.default_rng(seed).random(arrival.shape) > 0.02)
    members = [calls(k, arrival[kept[:, k], k], end[kept[:, k], k]) for k in range(4)]
    assert choose_partition(members) == [(0, 1, 2, 3)]


def test_numbered_calls_meet_by_their_number_wherever_their_times_lie() -> None:
    arrival = arrive(40, 4)
    members = to_calls(arrival, meet(arrival))
    numbered = [replace(member, sequence=(7 << 44) + np.arange(40)) for member in members]
    late = replace(numbered[1], start_ns=numbered[1].start_ns + 9_000_000, end_ns=numbered[1].end_ns + 9_000_000)
    index = match_rows([numbered[0], late.take(np.delete(np.arange(40), 5)), *numbered[2:]])
    assert (index[:, 1] == np.concatenate([np.arange(5), [-1], np.arange(5, 39)])).all()
    other_group = replace(late, sequence=(8 << 44) + np.arange(40))
    assert (match_rows([numbered[0], other_group])[:, 1] == -1).all()


def test_what_the_recording_says_of_a_call_is_found_by_stream_and_start() -> None:
    rows = [Row("collective", 100 * k, 100 * k + 50, 21, key=5) for k in range(6)]
    rows += [Row("gemm", 100 * k, 100 * k + 10, 7) for k in range(6)]
    said = MESSAGES.check(
        {
            "rank": np.zeros(3, np.int16),
            "stream": np.array([21, 21, 7], np.int32),
            "start_ns": np.array([0, 100, 200], np.int64),
            "end_ns": np.array([50, 150, 250], np.int64),
            "group_id": np.array([2, 2, 2], np.int32),
            "sequence": np.array([11, 12, 13], np.int64),
            "size_bytes": np.array([4096, 8192, 4096], np.int64),
        }
    )
    (found,) = extract_calls(lane(rows), 0, said).values()
    assert found.sequence is None  # the call at 200 is of another stream, so that not all are numbered
    assert len(set(found.place.tolist())) == 3
    (some,) = extract_calls(lane(rows[:2]), 0, said).values()
    assert some.sequence is not None
    assert some.sequence.tolist() == [(2 << 44) + 11, (2 << 44) + 12]


def send_and_receive(rank: int, size: int, n: int = 40) -> list[Row]:
    """Run n layers of work whose launches follow the batch's size, each with a send and a receipt of one name."""
    rows: list[Row] = []
    for turn in range(n):
        now = EPOCH_NS + 100_000 * turn + 700 * rank
        rows.append(Row("gemm", now, now + 20_000 * size, key=100 + size))
        rows.append(Row("dispatch", now + 50_000, now + 54_000, key=7 + 1_000 * size))
        rows.append(Row("dispatch", now + 55_000, now + 70_000, key=7 + 1_000 * size))
    return rows


def test_sends_and_receipts_are_told_apart_whatever_the_batches_of_their_ranks() -> None:
    by_rank = [extract_calls(lane(send_and_receive(rank, 1 + rank)), rank) for rank in range(2)]
    (whole,) = form_channels(by_rank, naming(["dispatch"]))
    assert len(split_by_place(whole)) == 1
    parts = split_by_row_before(whole)
    assert sorted(len(member) for part in parts for member in part.calls) == [40, 40, 40, 40]
    took = [{int(it) for member in part.calls for it in member.end_ns - member.start_ns} for part in parts]
    assert sorted(took, key=min) == [{4_000}, {15_000}]
