"""The shared-memory file of an engine: the same numbers as its load answer, and no harm from a broken one."""

from __future__ import annotations

import fcntl
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.collectors.sglang_loads import SglangLoads
from dprankdiag.collectors.sglang_shm import SglangShm, read_all
from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.ledgers import LedgerAnswer, NoData

SCENARIOS = (
    "sglang-0.5.23/balanced", "sglang-0.5.23/count-skew", "sglang-0.5.23/health-check-only",
    "sglang-0.5.23/missing-rank", "sglang-0.5.23/one-rank-stale-snapshot", "sglang-0.5.18/count-skew",
    "sglang-0.5.18/one-busy-seven-idle",
)  # fmt: skip
SLOT = 256


def build(loads: list[dict[str, Any] | None], slot: int = SLOT) -> bytes:
    body = struct.pack("<4sHHI", b"SLNS", 2, len(loads), slot)
    for load in loads:
        payload = b"" if load is None else msgspec.msgpack.encode(load)
        body += (struct.pack("<I", len(payload)) + payload).ljust(slot, b"\0")
    return body


def parse(body: bytes) -> LedgerAnswer:
    (answer,) = SglangShm().parse(body, "x")
    return answer


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_memory_and_load_answer_tell_the_same(fixtures: Path, scenario: str) -> None:
    folder = fixtures / scenario
    memory = parse((folder / "loads.shm").read_bytes())
    (answer,) = SglangLoads().parse((folder / "v1_loads_t1.json").read_bytes(), "x")
    assert (memory.ranks, memory.role) == (answer.ranks, answer.role)
    assert memory.facts == {"dp_rank_count": 8}
    assert set(answer.values) - set(memory.values) <= {"load_prefill_tokens", "load_prefill_busy_s"}
    for name, told in memory.values.items():
        np.testing.assert_array_equal(told, answer.values[name])


def test_a_slot_without_load_tells_nothing() -> None:
    answer = parse(build([{}, {"dp_rank": 1}, {"dp_rank": 2, "timestamp": 5.0, "num_running_reqs": 4}, None]))
    assert answer.ranks == (0, 1, 2)
    assert np.isnan(answer.values["load_running_requests"]).tolist() == [True, True, False]
    assert answer.warnings == ("rank 0, 1 has published no load yet",)


def test_the_flat_layout_without_stamps_is_understood() -> None:
    load = {"num_running_reqs": 3, "has_memory": True, "memory_weight_gb": 1.0}
    answer = parse(build([load, {"dp_rank": 1, "num_waiting_reqs": 2}]))
    assert answer.values["load_running_requests"].tolist() == [3, 0]
    assert answer.values["load_waiting_requests"].tolist() == [0, 2]
    assert "load_stamp_s" not in answer.values


def test_counters_left_out_are_zero_only_where_another_rank_shows_them() -> None:
    stamped = {"timestamp": 5.0, "num_running_reqs": 1}
    assert "load_prefill_tokens" not in parse(build([stamped])).values
    told = parse(build([stamped, {**stamped, "dp_rank": 1, "total_prefill_uncached_tokens": 7}]))
    assert told.values["load_prefill_tokens"].tolist() == [0, 7]


def test_a_damaged_slot_leaves_the_others() -> None:
    body = bytearray(build([{"timestamp": 5.0}, {"timestamp": 5.0, "num_running_reqs": 4}]))
    body[12 : 12 + 4] = struct.pack("<I", 10**6)
    answer = parse(bytes(body))
    assert answer.ranks == (1,)
    assert "damaged slots of ranks 0" in answer.warnings[-1]


@pytest.mark.parametrize("body", [b"", b"SLNS", b"OTHER" * 10, struct.pack("<4sHHI", b"SLNS", 3, 1, SLOT)])
def test_other_files_are_refused(body: bytes) -> None:
    with pytest.raises(InputError):
        parse(body)


@pytest.mark.parametrize("cut", [13, SLOT, -1])
def test_a_short_file_is_damaged(cut: int) -> None:
    with pytest.raises(DamagedInput, match="shorter than its 2 slots"):
        parse(build([{}, {}])[:cut])


@given(st.binary(min_size=SLOT, max_size=SLOT))
def test_hostile_slots_do_no_harm(slot: bytes) -> None:
    with suppress(InputError):
        parse(build([{"timestamp": 5.0}])[:12] + slot)


def test_files_of_this_machine_are_found(tmp_path: Path) -> None:
    (tmp_path / "sglang_loads_0a_0b.shm").write_bytes(build([{"timestamp": 5.0}]))
    (tmp_path / "sglang_loads_1a_1b.shm").write_bytes(b"SLNS")
    (tmp_path / "other.shm").write_bytes(b"")
    answers = read_all(77, tmp_path)
    assert [type(answer) for answer in answers] == [LedgerAnswer, NoData]
    assert [answer.taken_ns for answer in answers] == [77, 77]


def test_a_file_that_a_writer_holds_is_no_data(tmp_path: Path) -> None:
    path = tmp_path / "sglang_loads_0a_0b.shm"
    path.write_bytes(build([{"timestamp": 5.0}]))
    with path.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        (answer,) = read_all(77, tmp_path)
    assert isinstance(answer, NoData)
    assert "a writer holds it" in answer.reason
