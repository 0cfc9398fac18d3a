"""Reports of wait matrices and hangs in which a tool named too many, too few or the wrong ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flights import ALL, dump, entry, standing_at, write_dumps
from tests.matrices import TWO_NODES, complete_two_nodes, slow_at_once, write_matrix
from tests.proof.command import run_here, run_process


def named(document: dict[str, Any]) -> list[tuple[str, list[int]]]:
    return [(finding["cause"], finding["ranks"]) for finding in document["findings"]]


def ask(*paths: Path) -> dict[str, Any]:
    answer = run_here("analyze", *paths, "--format", "json")
    assert answer.code == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def test_the_slow_receiver_of_a_recorded_matrix_is_named(fixtures: Path) -> None:
    """A75: the row of rank 3 is eight times the mean of all."""
    document = ask(fixtures / "real" / "matrix" / "A75-row.csv")
    assert named(document) == [("single_point.unknown", [3])]
    assert document["findings"][0]["lost_ns"] is None


def test_the_slow_pair_of_a_recorded_matrix_is_named(fixtures: Path) -> None:
    """A75: rank 3 waits 125 for rank 4, everyone else 10 to 20; 38 elsewhere is no fault."""
    assert named(ask(fixtures / "real" / "matrix" / "A75-point.csv")) == [("single_point.link", [3, 4])]


def test_one_late_rank_over_two_nodes_is_named_and_the_other_node_is_not(tmp_path: Path) -> None:
    """A76: everyone waits 2.1 M for rank 2; the 0.6 M for the second node are no further culprits."""
    document = ask(write_matrix(TWO_NODES, tmp_path / "waits.csv"))
    assert named(document) == [("single_point.unknown", [2])]
    (own,) = [item for item in document["findings"][0]["evidence"] if item["name"] == "own_row_ratio"]
    assert own["value"] == pytest.approx(1, abs=0.2)
    for pattern in ("repeated", "mirrored", "late"):
        path = write_matrix(complete_two_nodes(pattern), tmp_path / f"{pattern}.csv")
        assert named(ask(path)) == [("single_point.unknown", [2])], pattern


def test_the_file_of_that_report_is_read_as_it_is(fixtures: Path) -> None:
    path = fixtures.parent / "cases" / "A76-rows0-6.csv"
    if not path.exists():
        pytest.skip("no folder of public cases")
    assert named(ask(path)) == [("single_point.unknown", [2])]


def test_two_columns_and_a_row_at_once_are_all_named(tmp_path: Path) -> None:
    """C08: scores of 2.946, 2.948 and 2.947 stay under a threshold of three times the mean."""
    waits = slow_at_once()
    assert max(waits[:, 2].mean(), waits[:, 4].mean(), waits[6].mean()) / waits.mean() == pytest.approx(2.947, abs=0.01)
    document = ask(write_matrix(waits, tmp_path / "waits.csv"))
    assert sorted(named(document)) == [("single_point.unknown", [rank]) for rank in (2, 4, 6)]


def test_the_unit_of_the_counters_does_not_matter(tmp_path: Path) -> None:
    """C05: counters add over warps that wait in parallel; only ratios are usable, and no time is told."""
    answers = [ask(write_matrix(TWO_NODES * unit, tmp_path / "waits.csv")) for unit in (1.0, 64.0)]
    assert named(answers[0]) == named(answers[1])
    assert answers[0]["lost"]["total_ns"] is None
    assert answers[0]["time"]["steps"] == 0


def test_thirty_ranks_behind_two_are_behind(tmp_path: Path) -> None:
    """C12: 30 ranks at operation 640 and two at 641; the tool listed the two."""
    standings = [(641, "started") if rank in (12, 13) else (640, "completed") for rank in range(32)]
    document = ask(*write_dumps(standing_at(standings, first=630), tmp_path))
    (finding,) = document["findings"]
    assert finding["cause"] == "stall.absent"
    assert finding["ranks"] == [rank for rank in range(32) if rank not in (12, 13)]
    assert finding["confidence"] <= 0.5
    assert "normal while running" in finding["summary"]


def test_a_wedge_in_which_all_have_come_names_nobody(tmp_path: Path) -> None:
    """A33: all 16 sit in the same all-gather of the first batch."""
    document = ask(*write_dumps(standing_at([(1, "started")] * 16), tmp_path))
    assert (document["findings"], document["status"]) == ([], "inconclusive")
    (reason,) = [item["reason"] for item in document["abstentions"] if item["cause"] == "stall.absent"]
    assert "all 16 ranks are in call 1" in reason


def test_a_rank_without_tokens_that_returns_early_is_the_absent_one(tmp_path: Path) -> None:
    """A61: the rank skips the exchange and has gone on to the next collective of another group."""
    members = {ALL: range(4), "1": range(4)}
    dumps = {}
    for rank in range(4):
        entries = [entry(0, ALL, 1), entry(1, "1", 1)]
        if rank != 2:
            entries.append(entry(2, "1", 2, "started", "nccl:all_to_all"))
        dumps[rank] = dump(entries, members)
    assert named(ask(*write_dumps(dumps, tmp_path))) == [("stall.absent", [2])]


def test_a_missing_dump_is_a_suspect(tmp_path: Path) -> None:
    dumps = standing_at([(9, "started")] * 8)
    del dumps[5]
    document = ask(*write_dumps(dumps, tmp_path))
    assert named(document) == [("stall.absent", [5])]
    assert any("a missing file is a suspect" in note for note in document["notes"])


def test_what_cannot_be_used_exits_3_with_one_line(tmp_path: Path) -> None:
    pickle = tmp_path / "nccl_trace_rank_0"
    pickle.write_bytes(b"\x80\x02}q\x00.")
    ragged = tmp_path / "ragged.csv"
    ragged.write_text("waiting_rank,on_0,on_1\n0,1,2\n1,2\n")
    text = tmp_path / "text.csv"
    text.write_text("waiting_rank,on_0,on_1\n0,1,two\n1,2,3\n")
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps(dump([entry(0, ALL, 1)], {ALL: range(2)}))[:-9])
    for path in (pickle, ragged, text, cut):
        assert run_here("analyze", path).is_refusal, path.name


def test_the_verdict_decides_the_exit_code(tmp_path: Path) -> None:
    waits = write_matrix(TWO_NODES, tmp_path / "waits.csv")
    assert run_process("analyze", waits, "--fail-on", "warning").code == 0
    assert run_here("analyze", waits, "--fail-on", "inconclusive").code == 1
    dumps = write_dumps(standing_at([(9, "started"), (9, "started"), (8, "completed")]), tmp_path / "dumps")
    assert run_here("analyze", *dumps, "--fail-on", "critical").code == 1


def test_the_page_says_what_it_can_and_cannot(tmp_path: Path) -> None:
    page = run_here("analyze", write_matrix(TWO_NODES, tmp_path / "waits.csv")).stdout
    assert page.startswith("rank 2: every other rank waits 4211 × as long for it")
    assert "its own row is even" in page
    assert "not computable from this input" in page
    assert "0.000" not in page
