"""Ranks that leave late and clocks that are ahead, told apart by what meetings wait for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dprankdiag.analysis.clock_doubt import Block, Doubt, place_blocks
from dprankdiag.analysis.partitions import clock_offsets
from dprankdiag.analysis.shared_ends import sample_meetings
from tests.analysis.builders import EPOCH_NS, TRANSFER_NS, Array, arrive, channel, meet, to_calls

HOSTS = ((0, 1, 2, 3), (4, 5, 6, 7))
LATE_NS = 30_000
STEPS, LAYERS = 60, 6


def run(late_ns: Sequence[int], *, together: bool = True, seed: int = 0) -> tuple[Array, Array]:
    """Let eight ranks work and meet; `together` they begin every step at one time, however late they left.

    Returns:
        Arrivals and ends, `(n_meetings, 8)`, by one true clock.
    """
    random = np.random.default_rng(seed)
    ready = np.full(8, EPOCH_NS, np.int64)
    arrivals, ends = [], []
    for _ in range(STEPS):
        ready = np.full(8, ready.max() + 50_000) if together else ready
        for _ in range(LAYERS):
            arrivals.append(ready + random.integers(80_000, 88_000, 8))
            ends.append(arrivals[-1].max() + TRANSFER_NS + random.integers(0, 400) + np.array(late_ns))
            ready = ends[-1]
    return np.array(arrivals), np.array(ends)


def place(
    arrival: Array, end: Array, blocks: Sequence[Block], starts_ns: Sequence[int] | None = None
) -> tuple[list[int], list[Doubt]]:
    """Set every block to where its first rank's ends are, as a fit does, and place it."""
    for block in blocks:
        offset = clock_offsets(end)[block.ranks[0]]
        arrival, end = (times - np.where(np.isin(np.arange(8), block.ranks), offset, 0) for times in (arrival, end))
    return place_blocks([channel(to_calls(arrival, end))], [()], blocks, 8, starts_ns)


@pytest.mark.parametrize("late", [(4, 5, 6, 7), (4, 5, 6)])
def test_a_host_that_leaves_late_is_set_forth_by_as_much_as_the_fit_set_it_back(late: tuple[int, ...]) -> None:
    arrival, end = run([LATE_NS if rank in late else 0 for rank in range(8)])
    shifts, doubts = place(arrival, end, [Block(ranks) for ranks in HOSTS])
    assert np.mean(shifts[4:]) - np.mean(shifts[:4]) == pytest.approx(LATE_NS, abs=500)
    assert len({*shifts[:4]}) == len({*shifts[4:]}) == 1
    assert max(doubt.cost_ns for doubt in doubts) < 1_500


def test_hosts_that_leave_together_stay_where_they_are_and_leave_little_doubt() -> None:
    shifts, doubts = place(*run([0] * 8), [Block(ranks) for ranks in HOSTS])
    assert shifts == [0] * 8
    assert max(doubt.cost_ns for doubt in doubts) < 1_000


def test_where_late_ranks_come_last_to_every_meeting_a_doubt_is_left() -> None:
    arrival, end = run([LATE_NS if rank >= 4 else 0 for rank in range(8)], together=False)
    shifts, doubts = place(arrival, end, [Block(ranks) for ranks in HOSTS])
    least = np.mean(shifts[4:]) - np.mean(shifts[:4])
    assert 2_000 < least <= LATE_NS + TRANSFER_NS
    assert max(doubt.late_ns for doubt in doubts) >= LATE_NS - least


def test_processes_go_where_their_own_clocks_say_if_that_explains_the_meetings() -> None:
    arrival, end = run([LATE_NS if rank in (2, 5, 6) else 0 for rank in range(8)])
    offsets = clock_offsets(end)
    blocks = [
        Block((rank,), int(offsets[rank]), tuple(other for other in range(8) if other != rank)) for rank in range(8)
    ]
    shifts, _ = place(arrival, end, blocks, offsets.tolist())
    np.testing.assert_allclose(shifts - np.min(shifts), offsets - offsets.min(), atol=500)


def test_what_processes_say_of_their_clocks_is_not_taken_if_meetings_contradict() -> None:
    wrong = [0, 0, 0, 25_000, 0, 0, 0, 0]
    blocks = [Block((rank,), wrong[rank], tuple(other for other in range(8) if other != rank)) for rank in range(8)]
    shifts, _ = place(*run([0] * 8), blocks, wrong)
    assert shifts == [0] * 8


def test_ranks_that_end_together_meet_whatever_their_arrivals_say() -> None:
    arrival = arrive(200, 4)
    end = meet(arrival)
    arrival[:, 2:] -= 500_000
    (seen,) = sample_meetings([channel(to_calls(arrival, end))], [()])
    assert seen.ranks == (0, 1, 2, 3)


def test_two_teams_that_only_meet_among_themselves_are_not_taken_for_one() -> None:
    arrival = arrive(200, 4)
    end = np.concatenate([meet(arrival[:, :2]), meet(arrival[:, 2:])], axis=1)
    assert sample_meetings([channel(to_calls(arrival, end))], [()]) == []
