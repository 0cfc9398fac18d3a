from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.flight_dumps import COMPLETED, SCHEDULED, STARTED
from dprankdiag.model.schema import ABSENT_NS
from dprankdiag.readers.flight_recorder import FlightRecorderReader, is_flight_dump, parse_dump
from dprankdiag.readers.sniff import sniff
from tests.flights import ALL, CALL_NS, START_NS, dump, entry, run_to

MEMBERS = {ALL: range(4)}


def write(folder: Path, content: Any, name: str = "nccl_trace_rank_2.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def test_entries_are_read_in_order_with_their_states_and_times(tmp_path: Path) -> None:
    path = write(tmp_path, dump(run_to(5, "started", first=3), MEMBERS))
    assert sniff(path) == "flight-recorder"
    read = FlightRecorderReader().read(path)
    assert (read.rank, read.grade, read.is_whole, read.source.producer) == (2, "likely", True, "2.5")
    assert read.entries["sequence"].tolist() == [3, 4, 5]
    assert read.entries["state"].tolist() == [COMPLETED, COMPLETED, STARTED]
    assert read.entries["created_ns"].tolist() == [START_NS + number * CALL_NS for number in (3, 4, 5)]
    assert read.entries["last_ns"][-1] == START_NS + 5 * CALL_NS + 1000
    assert read.names == ("nccl:all_gather",)
    assert read.sizes == ("[[4, 7168]] to [[32, 7168]]",)


def test_members_and_numbers_come_as_text_or_as_they_are(tmp_path: Path) -> None:
    content = dump(run_to(5, "started"), MEMBERS)
    (group,) = parse_dump(json.dumps(content).encode(), "rank2.json").groups
    assert (group.ranks, group.last_entered, group.last_completed) == ((0, 1, 2, 3), 5, 4)
    content["pg_config"][ALL]["ranks"] = [0, 1, 2, 3]
    content["pg_status"][ALL] = {"last_enqueued_collective": 5, "last_completed_collective": -1}
    (group,) = parse_dump(json.dumps(content).encode(), "rank2.json").groups
    assert (group.ranks, group.last_entered, group.last_completed) == ((0, 1, 2, 3), 5, 0)


def test_sends_and_receives_are_counted_and_left_out(tmp_path: Path) -> None:
    sent = entry(1, ALL, 1, "started", "nccl:send 0->1", is_p2p=True)
    read = FlightRecorderReader().read(write(tmp_path, dump([*run_to(1, "completed"), sent], MEMBERS)))
    assert len(read.entries["sequence"]) == 1
    assert read.pending_sends == 1


def test_a_ring_that_has_lost_entries_is_not_whole(tmp_path: Path) -> None:
    late = [entry(2000, ALL, 2001, "started")]
    assert not FlightRecorderReader().read(write(tmp_path, dump(late, MEMBERS))).is_whole


def test_a_dump_without_entries_or_groups_says_what_it_lacks(tmp_path: Path) -> None:
    content = dump([], MEMBERS)
    del content["entries"]
    path = write(tmp_path, content)
    assert sniff(path) == "flight-recorder"
    assert FlightRecorderReader().read(path).source.lacked == ("entries",)
    content = dump(run_to(1, "started"), MEMBERS)
    del content["pg_config"]
    assert FlightRecorderReader().read(write(tmp_path, content)).source.lacked == ("pg_config",)


def test_an_old_dump_with_a_plain_sequence_number_is_read(tmp_path: Path) -> None:
    old = entry(0, ALL, 7, "scheduled", time_discovered_started_ns=None)
    del old["collective_seq_id"], old["time_created_ns"], old["retired"]
    old["seq_id"] = 7
    read = parse_dump(json.dumps({"version": "1.1", "entries": [old], "pg_config": {ALL: [0, 1]}}).encode(), "r1")
    assert read.entries["sequence"].tolist() == [7]
    assert read.entries["state"].tolist() == [SCHEDULED]
    assert read.entries["created_ns"].tolist() == [ABSENT_NS]
    assert read.groups[0].ranks == (0, 1)


@pytest.mark.parametrize(
    "name, rank, grade",
    [
        ("nccl_trace_rank_12.json", 12, "likely"),
        ("nccl_trace_rank_12", 12, "likely"),
        ("_dump_7.json", 7, "likely"),
        ("node-3-rank4-0.json", 4, "likely"),
        ("dump.5", 5, "likely"),
        ("dump.json", None, "assumed"),
        ("job-20251113121000.json", None, "assumed"),
    ],
)
def test_the_rank_is_taken_from_the_name_of_the_file(tmp_path: Path, name: str, rank: int | None, grade: str) -> None:
    read = FlightRecorderReader().read(write(tmp_path, dump(run_to(1, "started"), MEMBERS), name))
    assert (read.rank, read.grade) == (rank, grade)


def test_a_rank_that_the_dump_itself_tells_is_sure(tmp_path: Path) -> None:
    read = FlightRecorderReader().read(write(tmp_path, dump(run_to(1, "started"), MEMBERS, rank=9)))
    assert (read.rank, read.grade) == (9, "sure")


@pytest.mark.parametrize("cut", [200, 1500, -3])
def test_a_dump_cut_short_is_damaged(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path, dump(run_to(40, "started"), MEMBERS))
    path.write_text(path.read_text()[:cut])
    assert sniff(path) == "flight-recorder"
    with pytest.raises(DamagedInput, match="not whole JSON") as caught:
        FlightRecorderReader().read(path)
    assert caught.value.mend


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "lost"},
        {"collective_seq_id": None},
        {"collective_seq_id": "x"},
        {"time_created_ns": 10**30},
        {"process_group": None, "pg_id": None},
    ],
)
def test_an_entry_that_cannot_be_right_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    whole = dump(run_to(1, "started"), MEMBERS)
    whole["entries"][0] |= changes
    if "pg_id" in changes:
        del whole["entries"][0]["pg_id"]
    with pytest.raises(DamagedInput, match="entry that cannot be read"):
        FlightRecorderReader().read(write(tmp_path, whole))


def test_a_dump_nested_beyond_all_measure_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_0.json"
    path.write_text('{"pg_config": {}, "pg_status": {}, "entries": ' + "[" * 200_000 + "]" * 200_000 + "}")
    with pytest.raises(DamagedInput, match="not whole JSON"):
        FlightRecorderReader().read(path)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_is_never_read_and_the_mend_is_json(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(dump(run_to(1, "started"), MEMBERS), protocol))
    with pytest.raises(InputError, match="a Python pickle") as caught:
        sniff(path)
    assert "_dump_nccl_trace_json" in caught.value.mend


@pytest.mark.parametrize(
    "head",
    [
        b'{"schemaVersion": 1, "traceEvents": [], "pg_config": {}, "entries": []}',
        b'{"entries": [1, 2]}',
        b'{"log": {"entries": []}}',
        b'[{"collective_seq_id": 1, "pg_config": {}}]',
        b"",
    ],
)
def test_other_json_is_no_dump(head: bytes) -> None:
    assert not is_flight_dump(head)


def test_a_path_that_cannot_be_opened_is_no_dump(tmp_path: Path) -> None:
    assert not FlightRecorderReader().can_read(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        FlightRecorderReader().read(tmp_path / "absent.json")
