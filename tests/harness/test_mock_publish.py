"""What a mock publishes beside its pages is what it shows on them, and has the shape of what real ranks published."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dprankdiag.collectors.sglang_load_stat import LoadStatStream
from dprankdiag.collectors.sglang_shm import read_all
from dprankdiag.harness.ledger_sglang_loads import list_loads
from dprankdiag.harness.mock_publish import make_load_stat, write_slots
from dprankdiag.harness.mock_sglang import MockSglang
from dprankdiag.harness.served_ledger import NS_PER_S, ServedLedger
from dprankdiag.model.ledgers import LedgerAnswer
from tests.harness.served_worlds import RANKS, Clock, serve_sglang


def find_ports(count: int) -> int:
    """Find so many ports in a row at which nothing listens."""
    for base in range(20_000, 60_000, count):
        held = []
        try:
            for port in range(base, base + count):
                one = socket.socket()
                held.append(one)
                one.bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
        return base
    raise AssertionError("no ports are free")


def wait_for(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if (seen := look()) is not None:
            return seen
        time.sleep(0.02)
    raise AssertionError("nothing came")


def list_served() -> list[dict[str, Any]]:
    outcome, engine = serve_sglang(long=True)
    return list_loads(engine, ServedLedger(outcome, engine).advance(20 * NS_PER_S))


def test_messages_tell_the_loads_of_all_ranks() -> None:
    pytest.importorskip("zmq")
    base, clock = find_ports(RANKS), Clock()
    with MockSglang(*serve_sglang(long=True), clock=clock, start_at_s=20.0, load_port=base) as mock:
        stream = LoadStatStream(f"tcp://127.0.0.1:{base + rank}" for rank in range(RANKS))
        try:
            answer = wait_for(lambda: (told := stream.poll(0)) and (told if len(told.ranks) == RANKS else None))
        finally:
            stream.close()
        shown = list_loads(mock.engine, mock.look())
    assert answer.values["load_used_tokens"].tolist() == [load["num_used_tokens"] for load in shown]
    assert answer.values["load_running_requests"].tolist() == [load["num_running_reqs"] for load in shown]


def test_the_file_tells_the_loads_and_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "sglang_loads_0.shm"
    with MockSglang(*serve_sglang(long=True), clock=Clock(), start_at_s=20.0, snapshot_file=path) as mock:
        wait_for(lambda: (path.exists() and path.stat().st_size) or None)
        shown = list_loads(mock.engine, mock.look())
        (answer,) = read_all(0, tmp_path)
    assert isinstance(answer, LedgerAnswer)
    np.testing.assert_array_equal(answer.values["load_used_tokens"], [load["num_used_tokens"] for load in shown])
    np.testing.assert_array_equal(answer.values["load_stamp_s"], [load["timestamp"] for load in shown])
    assert not path.exists()


def test_a_message_has_the_shape_of_real_ones(fixtures: Path) -> None:
    line = (fixtures / "sglang-0.5.23/count-skew/loadstat_frames_t1.jsonl").read_text("utf-8").splitlines()[0]
    real = msgspec.msgpack.decode(bytes.fromhex(json.loads(line)["payload_hex"]))
    written = make_load_stat(list_served()[0], (0, 5, 23))
    assert [type(part) for part in written] == [type(part) for part in real]
    assert len(make_load_stat(list_served()[0], (0, 5, 19))) == 6


def test_a_slot_has_the_entries_of_real_ones(fixtures: Path) -> None:
    real = (fixtures / "sglang-0.5.23/count-skew/loads.shm").read_bytes()
    written = write_slots(list_served())
    assert written[:12] == real[:12]
    assert len(written) == len(real)
    entries = []
    for body in (written, real):
        start = 12 + 16_384
        (length,) = struct.unpack_from("<I", body, start)
        entries.append(msgspec.msgpack.decode(body[start + 4 : start + 4 + length]))
    ours, theirs = entries
    assert set(theirs) <= set(ours) | {"num_waiting_reqs"}
    assert {key: len(value) for key, value in ours.items() if isinstance(value, list)} == {
        key: len(value) for key, value in theirs.items() if isinstance(value, list)
    }
