"""Messages of publishers: dumps, live sockets, and what is none of theirs."""

from __future__ import annotations

import builtins
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.collectors.frames import Frame, Subscription, decode_message
from dprankdiag.collectors.sglang_forward_pass import ForwardPassStream, PassTally, SglangForwardPass
from dprankdiag.collectors.sglang_load_stat import LoadStats, LoadStatStream, SglangLoadStat
from dprankdiag.errors import InputError, UsageError
from dprankdiag.model.ledgers import LedgerAnswer

OLD = ["LoadStat", 3, 1, 500, 9000, 2]
NEW = [*OLD, 40, 560, 64, 7000, 2_500_000]
Parts = list[bytes]


def message(body: Any, sequence: int = 0, topic: bytes = b"load") -> Parts:
    return [topic, sequence.to_bytes(8, "big"), msgspec.msgpack.encode(body)]


def frame(body: Any, sequence: int = 0) -> Frame:
    told = decode_message(message(body, sequence), None)
    assert told is not None
    return told


def forward_pass(rank: int = 0, wall_s: float = 0.02, prefills: int = 0, decodes: int = 4) -> dict[str, Any]:
    return {
        "version": 1,
        "dp_rank": rank,
        "wall_time": wall_s,
        "scheduled_requests": {
            "num_prefill_requests": prefills,
            "sum_prefill_tokens": 100 * prefills,
            "num_decode_requests": decodes,
            "sum_decode_kv_tokens": 1000 * decodes,
        },
    }


@pytest.mark.parametrize("scenario", ["balanced", "count-skew", "one-busy-seven-idle", "prefill-on-one-rank"])
def test_a_dump_ends_with_what_the_load_answer_told(fixtures: Path, scenario: str) -> None:
    folder = fixtures / "sglang-0.5.23" / scenario
    answers = SglangLoadStat().parse((folder / "loadstat_frames_t1.jsonl").read_bytes(), "x")
    moments = [answer.taken_ns for answer in answers]
    assert None not in moments
    assert moments == sorted(set(moments))  # type: ignore[type-var]
    loads = json.loads((folder / "v1_loads_t1.json").read_text())["loads"]
    last = answers[-1]
    assert last.ranks == tuple(range(8))
    for name, key in (
        ("load_running_requests", "num_running_reqs"),
        ("load_waiting_tokens", "num_waiting_uncached_tokens"),
    ):
        assert last.values[name].tolist() == [load[key] for load in loads]


def test_older_releases_send_less() -> None:
    stats = LoadStats()
    assert stats.add(frame(OLD))
    answer = stats.answer("x", None)
    assert answer.ranks == (2,)
    assert set(answer.values) == {
        "load_running_requests", "load_waiting_requests", "load_used_tokens", "load_capacity_tokens",
    }  # fmt: skip


def test_all_fields_of_a_load_have_their_place() -> None:
    stats = LoadStats()
    stats.add(frame(NEW))
    told = {name: float(values[0]) for name, values in stats.answer("x", None).values.items()}
    assert told == {
        "load_running_requests": 3, "load_waiting_requests": 1, "load_used_tokens": 500, "load_capacity_tokens": 9000,
        "load_waiting_tokens": 40, "load_total_tokens": 560, "load_capacity_requests": 64, "load_prefill_tokens": 7000,
        "load_prefill_busy_s": 2.5,
    }  # fmt: skip


def test_lost_messages_and_restarts_are_noted() -> None:
    stats = LoadStats()
    for sequence in (0, 1, 5, 0):
        stats.add(frame(NEW, sequence))
    assert stats.answer("x", None).warnings == ("3 messages were lost", "a publisher started anew 1 times")


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"load"],
        [b"load", b"\0" * 7, b"\x90"],
        [b"load", b"\0" * 8, b""],
        [b"load", b"\0" * 8, b"\xc1"],
        [b"load", b"\0" * 8, b"\x9b\xa8Load"],
        [b"load", b"\0" * 8, b"\x91" * 100_000],
        [b"load", b"\0" * 8, b"\x91" * 5_000],
        [b"load", b"\0" * 8, b"\x90", b"more"],
    ],
)
def test_what_is_no_message_is_passed_over(parts: Parts) -> None:
    assert decode_message(parts, None) is None


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        ["LoadStat"],
        ["Other", *OLD[1:]],
        ["LoadStat", 3, 1, "many", 9000, 2],
        ["LoadStat", 3, 1, 500, 9000, -2],
        ["LoadStat", 3, 1, 500, 9000, 2.5],
        ["LoadStat", 3, None, 500, 9000, 2],
        {"LoadStat": 1},
    ],
)
def test_what_is_no_load_is_passed_over(body: Any) -> None:
    assert not LoadStats().add(frame(body))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"dp_rank": None},
        {"dp_rank": -1},
        {"dp_rank": True},
        {"wall_time": "long"},
        {"wall_time": -1.0},
        {"wall_time": float("nan")},
        {"scheduled_requests": None},
        {"scheduled_requests": {"num_prefill_requests": 1}},
    ],
)
def test_what_is_no_forward_pass_is_passed_over(change: dict[str, Any]) -> None:
    assert not PassTally().add(frame(forward_pass() | change))


@given(st.binary(max_size=200))
def test_hostile_bodies_do_no_harm(body: bytes) -> None:
    told = decode_message([b"load", b"\0" * 8, body], None)
    if told is not None:
        LoadStats().add(told)
        PassTally().add(told)


def test_forward_passes_are_added_up(fixtures: Path) -> None:
    path = fixtures / "sglang-0.5.23" / "forward-pass-metrics" / "frames.jsonl"
    answers = SglangForwardPass().parse(path.read_bytes(), "x")
    last = {name: float(values[0]) for name, values in answers[-1].values.items()}
    assert last == pytest.approx(
        {
            "pass_count": 3, "pass_wall_s": 0.0816, "pass_prefill_tokens": 0, "pass_decode_requests": 12,
            "pass_context_tokens": 51000, "pass_idle_count": 0,
        }
    )  # fmt: skip
    assert [answer.values["pass_count"][0] for answer in answers] == [1, 2, 3, 3]


def test_heartbeats_are_no_passes_and_idle_passes_are_no_work() -> None:
    tally = PassTally()
    for sequence, one in enumerate(
        (forward_pass(wall_s=0.0, decodes=0), forward_pass(wall_s=0.02, decodes=0), forward_pass(prefills=1))
    ):
        tally.add(frame(one, sequence))
    told = tally.answer("x", None).values
    assert (told["pass_count"][0], told["pass_idle_count"][0], told["pass_prefill_tokens"][0]) == (1, 1, 100)


def test_a_publisher_that_starts_anew_counts_from_zero() -> None:
    tally = PassTally()
    for sequence in (7, 8, 0):
        tally.add(frame(forward_pass(), sequence))
    assert tally.answer("x", None).values["pass_count"].tolist() == [1]


@pytest.mark.parametrize("body", [b"", b"[]\n", b"{}\n", b'{"topic_hex": "zz", "seq_hex": "", "payload_hex": ""}\n'])
def test_other_files_are_refused(body: bytes) -> None:
    with pytest.raises(InputError, match="expected lines with topic_hex"):
        SglangLoadStat().parse(body, "x")


def test_a_dump_of_another_kind_is_refused(fixtures: Path) -> None:
    path = fixtures / "sglang-0.5.23" / "forward-pass-metrics" / "frames.jsonl"
    with pytest.raises(InputError, match="no message of the kind LoadStat"):
        SglangLoadStat().parse(path.read_bytes(), "x")


@contextmanager
def publishers(count: int) -> Iterator[tuple[list[str], Callable[[int, Parts], None]]]:
    """Open publishers on this machine; return their endpoints, and how one sends."""
    context = zmq.Context()
    sockets = [context.socket(zmq.PUB) for _ in range(count)]
    ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in sockets]

    def send(which: int, parts: Parts) -> None:
        sockets[which].send_multipart(parts)

    try:
        yield [f"tcp://127.0.0.1:{port}" for port in ports], send
    finally:
        for socket in sockets:
            socket.close(0)
        context.term()


def hear(poll: Callable[[int], LedgerAnswer | None], speak: Callable[[], None], n_ranks: int) -> LedgerAnswer:
    """Speak until all are heard: subscribers join late."""
    for _ in range(500):
        speak()
        answer = poll(77)
        if answer is not None and len(answer.ranks) == n_ranks:
            return answer
        time.sleep(0.01)
    raise AssertionError("nobody was heard")


def test_live_loads_are_heard() -> None:
    with publishers(2) as (endpoints, send):
        stream = LoadStatStream(endpoints)
        sequence = iter(range(10_000))

        def speak() -> None:
            at = next(sequence)
            send(0, message([*NEW[:5], 0, *NEW[6:]], at))
            send(1, message([*NEW[:5], 1, *NEW[6:]], at))
            send(1, [b"load", b"short", b"\xc1"])
            send(1, message(["Other"], at))

        answer = hear(stream.poll, speak, 2)
        stream.close()
    assert answer.taken_ns == 77
    assert answer.values["load_running_requests"].tolist() == [3, 3]
    assert any("passed over" in warning for warning in answer.warnings)


def test_live_forward_passes_are_heard() -> None:
    with publishers(1) as (endpoints, send):
        stream = ForwardPassStream(endpoints)
        sequence = iter(range(10_000))
        answer = hear(stream.poll, lambda: send(0, message(forward_pass(), next(sequence), b"")), 1)
        stream.close()
    assert answer.values["pass_wall_s"][0] == pytest.approx(0.02 * answer.values["pass_count"][0])
    assert np.isfinite(answer.values["pass_context_tokens"]).all()


def test_silence_is_no_answer() -> None:
    with publishers(1) as (endpoints, _):
        stream = LoadStatStream(endpoints)
        assert stream.poll(1) is None
        stream.close()


def test_an_endpoint_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="expected tcp://"):
        Subscription(["nonsense"])


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "zmq":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UsageError, match=r"dprankdiag\[zmq\]"):
        Subscription([])
