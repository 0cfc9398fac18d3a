"""Calls that are sent and received in two kernels of one name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.analysis.calls import Calls, Channel
from dprankdiag.analysis.collectives import match_halves
from dprankdiag.analysis.halves import meet_as_one, pair_halves
from dprankdiag.analysis.overlap import Halves
from dprankdiag.analysis.partners import match_sequences
from tests.analysis.builders import EPOCH_NS, Array, calls

N, RANKS = 64, 4
SEND_NS, TRANSFER_NS, TURN_NS = 3_000, 12_000, 240_000


def send(late_ns: int = 0, late_rank: int = 2) -> Array:
    """Draw when two halves of a batch are sent in turns, `(2 * N, RANKS)`: A, soon B, then work; six layers a step."""
    random = np.random.default_rng(3)
    borders = 317_000 * (np.arange(N) // 6) + random.integers(0, 20_000, N).cumsum()
    turn = EPOCH_NS + (TURN_NS * np.arange(N) + borders)[:, None] + random.integers(0, 2_000, (N, RANKS))
    sent = np.stack([turn, turn + 80_000], axis=1).reshape(2 * N, RANKS)
    sent[:, late_rank] += late_ns
    return np.asarray(sent)


def receive(sent: Array) -> tuple[Array, Array]:
    """Say when each rank looks for the data and has them: each half after the other was sent."""
    look = np.empty_like(sent)
    look[0::2] = sent[1::2] + SEND_NS + 500
    look[1::2] = look[0::2] + 70_000
    come = sent.max(axis=1, keepdims=True) + TRANSFER_NS
    done = np.maximum(look + 1_500, come)
    look[1::2] = np.maximum(look[1::2], done[0::2] + 60_000)
    return look, np.maximum(look + 1_500, come)


def parts(sent: Array, look: Array, done: Array) -> list[Channel]:
    """Lay the halves out by places: all sends, receipts of A, receipts of B."""

    def gather(begin: Array, end: Array, place: int) -> Channel:
        members = tuple(calls(rank, begin[:, rank], end[:, rank], place=place) for rank in range(RANKS))
        return Channel("deep_ep::dispatch", "dispatch", "dispatch", members)

    return [
        gather(sent, sent + SEND_NS, 1),
        gather(look[0::2], done[0::2], 2),
        gather(look[1::2], done[1::2], 3),
    ]


def pair(late_ns: int = 0) -> tuple[Array, Channel]:
    sent = send(late_ns)
    look, done = receive(sent)
    channel = pair_halves(parts(sent, look, done), [True, False, False])
    assert channel is not None
    return done, channel


def test_what_was_sent_first_is_received_first() -> None:
    done, channel = pair()
    for rank, member in enumerate(channel.calls):
        np.testing.assert_array_equal(member.end_ns, done[:, rank])
        assert member.halves is not None
        np.testing.assert_array_equal(member.halves.on_ns, member.start_ns + SEND_NS)


@pytest.mark.parametrize("late_ns", [0, 30_000, 150_000])
def test_nobody_has_the_data_before_the_last_has_sent(late_ns: int) -> None:
    done, channel = pair(late_ns)
    meeting = match_halves(channel)
    assert meeting is not None
    assert meeting.arrival_ns.shape == done.shape
    assert (meeting.end_ns >= meeting.arrival_ns.max(axis=1, keepdims=True)).all()
    assert meeting.matched_calls == 2 * done.size


@pytest.mark.parametrize(
    ("groups", "one"), [([(0, 1, 2, 3)], True), ([(0, 1), (2, 3)], False), ([(0, 2), (1, 3)], False)]
)
def test_those_who_wait_for_the_sends_of_some_do_not_meet_all(groups: list[tuple[int, ...]], one: bool) -> None:
    random = np.random.default_rng(7)
    sent = send() + random.integers(0, 40_000, (2 * N, RANKS))
    look = sent + 20_000
    done = np.empty_like(sent)
    for group in map(list, groups):
        come = sent[:, group].max(axis=1, keepdims=True) + TRANSFER_NS + random.integers(0, 400, (2 * N, len(group)))
        done[:, group] = np.maximum(look[:, group] + 1_500, come)
    members = [
        replace(calls(rank, sent[:, rank], done[:, rank]), halves=Halves(sent[:, rank], look[:, rank], done[:, rank]))
        for rank in range(RANKS)
    ]
    assert meet_as_one(members) is one


def test_where_no_receipt_waits_all_are_taken_to_meet() -> None:
    sent = send()
    look = sent + 90_000
    members = [
        replace(calls(rank, sent[:, rank], look[:, rank] + 1_500), halves=Halves(sent[:, rank], *2 * (look[:, rank],)))
        for rank in range(RANKS)
    ]
    assert meet_as_one(members)


def test_a_lost_half_spoils_its_own_call_only() -> None:
    sent = send()
    look, done = receive(sent)
    whole = parts(sent, look, done)
    keep = np.delete(np.arange(2 * N), 21)
    members = (whole[0].calls[0].take(keep), *whole[0].calls[1:])
    channel = pair_halves([replace(whole[0], calls=members), *whole[1:]], [True, False, False])
    assert channel is not None
    meeting = match_halves(channel)
    assert meeting is not None
    assert len(meeting.arrival_ns) >= 0.95 * 2 * N


def test_calls_of_which_no_part_waits_for_nobody_are_not_paired() -> None:
    sent = send()
    look, done = receive(sent)
    assert pair_halves(parts(sent, look, done), [False, False, False]) is None


def test_unequal_numbers_are_no_halves() -> None:
    sent = send()
    look, done = receive(sent)
    some = parts(sent, look, done)[:2]
    assert pair_halves(some, [True, False]) is None


def test_other_collectives_never_come_in_halves() -> None:
    sent = send()
    look, done = receive(sent)
    other = [replace(part, family="collective") for part in parts(sent, look, done)]
    assert pair_halves(other, [True, False, False]) is None


def test_receipts_that_end_before_the_last_has_sent_are_no_meeting() -> None:
    _, channel = pair()
    moved = [replace(channel.calls[0], arrival_ns=channel.calls[0].arrival_ns + 10 * TURN_NS), *channel.calls[1:]]
    assert match_halves(replace(channel, calls=tuple(moved))) is None


@pytest.mark.parametrize("lost", [(), (40,), (40, 41, 90)])
def test_sequences_follow_each_other_however_late_one_of_them_is(lost: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    one = EPOCH_NS + np.cumsum(random.integers(50_000, 300_000, 200))
    other = np.delete(one + 90_000 + random.integers(0, 3_000, 200), lost)
    index = match_sequences([one, other])
    partner = np.full(200, -1)
    partner[np.setdiff1d(np.arange(200), lost)] = np.arange(200 - len(lost))
    found = index[:, 1] >= 0
    assert found.sum() >= 200 - len(lost) - 64
    np.testing.assert_array_equal(index[found, 1], partner[found])


def test_a_rank_without_calls_has_no_partners() -> None:
    one = EPOCH_NS + 1_000 * np.arange(20)
    assert (match_sequences([one, np.empty(0, np.int64)])[:, 1] == -1).all()


def test_rows_of_calls_keep_their_halves() -> None:
    _, channel = pair()
    taken: Calls = channel.calls[0].take(np.array([5, 1]))
    assert taken.halves is not None
    np.testing.assert_array_equal(taken.halves.leave_ns, taken.end_ns)
