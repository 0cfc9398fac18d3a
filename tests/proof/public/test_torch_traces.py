"""The traps of traces, set with torch profiler traces: what a file lacks or mixes up is said, and never judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dprankdiag.harness.faults import load_context
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.worlds import World
from tests.proof.command import analyze_here, run_here
from tests.proof.scenario import Event, Scenario, attention_of, play
from tests.proof.torch_filler import Row, fill_traces, make_row
from tests.proof.verdicts import list_warned

LATE_BY_NS = 60_112_000_000


@pytest.fixture(scope="module")
def heavy_rank_2() -> list[Event]:
    return play(Scenario(factor=attention_of(2, 2.0)))


def test_one_path_for_all_ranks_is_refused_with_the_way_out(tmp_path: Path, heavy_rank_2: list[Event]) -> None:
    """B13: block over block of four traces in one file."""
    texts = [path.read_text() for path in fill_traces(tmp_path / "apart", heavy_rank_2)]
    block = 4_096
    blocks = [texts[at // block % len(texts)][at : at + block] for at in range(0, max(map(len, texts)), block)]
    path = tmp_path / "trace.json"
    path.write_text("".join(blocks))
    answer = run_here("analyze", path)
    assert answer.is_refusal
    assert str(path) in answer.stderr
    assert "wrote to one path at once" in answer.stderr
    assert "a path of its own for each rank" in answer.stderr


def test_traces_without_ranks_are_assumed_and_ask_for_a_rank_map(tmp_path: Path, heavy_rank_2: list[Event]) -> None:
    """B15: no distributedInfo; every file as rank 0 would be one rank, or four that blame rank 0."""
    said = analyze_here(*fill_traces(tmp_path, heavy_rank_2, distributed=False, title=None))
    assert [(rank["rank"], rank["grade"]) for rank in said["ranks"]] == [(rank, "assumed") for rank in range(4)]
    assert [ranks for _, ranks in list_warned(said)] == [[2]]
    (finding,) = said["findings"]
    assert finding["confidence"] <= 0.9
    assert "process 5002 (rank 2 assumed)" in finding["summary"]
    assert any("--rank-map" in note for note in said["notes"])


def test_a_rank_map_answers_the_question(tmp_path: Path, heavy_rank_2: list[Event]) -> None:
    paths = fill_traces(tmp_path / "traces", heavy_rank_2, distributed=False, title=None, name="w{0}.json")
    names = {path.name: 3 - place for place, path in enumerate(paths)}
    rank_map = tmp_path / "ranks.csv"
    rank_map.write_text("".join(f"{name},{rank}\n" for name, rank in names.items()))
    said = analyze_here(*paths, "--rank-map", rank_map)
    assert [ranks for _, ranks in list_warned(said)] == [[1]]
    assert {rank["grade"] for rank in said["ranks"]} == {"sure"}


def test_a_rank_without_a_trace_is_missing_and_not_idle(tmp_path: Path, heavy_rank_2: list[Event]) -> None:
    """B04."""
    _, _, lost, _ = paths = fill_traces(tmp_path, heavy_rank_2)
    lost.unlink()
    said = analyze_here(*(path for path in paths if path != lost))
    assert (said["status"], said["findings"]) == ("inconclusive", [])
    assert [rank["rank"] for rank in said["ranks"]] == [0, 1, 3]
    assert "rank 2 was not recorded" in said["headline"]


def test_a_rank_whose_trace_holds_no_kernels_is_missing_and_not_idle(tmp_path: Path, heavy_rank_2: list[Event]) -> None:
    """B04: the file is there, the GPU's activity is not."""
    paths = fill_traces(tmp_path, heavy_rank_2, replayed=range(99), shows_nodes=False)
    seen = fill_traces(tmp_path / "seen", heavy_rank_2)
    said = analyze_here(*seen[:2], paths[2], seen[3])
    assert said["findings"] == []
    assert said["status"] == "inconclusive"
    assert "rank 2 was not recorded" in said["headline"]


def test_a_window_counts_from_the_first_event_of_the_traces(tmp_path: Path, heavy_rank_2: list[Event]) -> None:
    """B06: the capture began a minute after the clock's zero, and the first second of it is the first second."""
    late = [
        replace(
            event,
            start_ns=event.start_ns + LATE_BY_NS,
            end_ns=event.end_ns + LATE_BY_NS,
            call_start_ns=event.call_start_ns + LATE_BY_NS,
            call_end_ns=event.call_end_ns + LATE_BY_NS,
        )
        for event in heavy_rank_2
    ]
    paths = fill_traces(tmp_path, late)
    assert [ranks for _, ranks in list_warned(analyze_here(*paths, "--window", "0:1"))] == [[2]]
    empty = run_here("analyze", *paths, "--window", "60:61")
    assert (empty.code, empty.stdout) == (2, "")
    assert "between 0 and 0.0" in empty.stderr


@pytest.mark.parametrize("clock_ns", [300_000, 3_000_000])
def test_hosts_whose_clocks_differ_are_no_slow_network(tmp_path: Path, clock_ns: int) -> None:
    """B10: 30 µs of transfer looked like 10 ms between two hosts."""
    world = World(
        seed=62, ranks=4, layers=4, files="node", ranks_per_node=2, host_clock_ns=clock_ns, transfer_ns=30_000
    )
    even = analyze_here(*write_world(world, tmp_path / "even", format="torch"))
    assert (even["status"], even["findings"]) == ("healthy", [])
    ill = replace(world, faults=(load_context(3, 2.5),))
    said = analyze_here(*write_world(ill, tmp_path / "ill", format="torch"))
    assert list_warned(said) == [("load.context", [3])]


def test_a_replay_without_kernels_is_not_read_as_health(tmp_path: Path, heavy_rank_2: list[Event]) -> None:
    """B17: the profiler was not told to look into graphs."""
    said = analyze_here(*fill_traces(tmp_path, heavy_rank_2, replayed=range(99), shows_nodes=False))
    assert (said["status"], said["findings"]) == ("inconclusive", [])
    assert {item["status"] for item in said["inputs"]} == {"unused"}
    assert all("24 graph replays show no kernels" in item["warnings"] for item in said["inputs"])
    assert any("graph replays" in name for item in said["abstentions"] for name in item["lacked"])


def wait_rows(events: list[Event], add: Callable[[Event], list[Row]]) -> dict[int, list[Row]]:
    """Collect, by rank, rows beside the meetings."""
    found: dict[int, list[Row]] = {}
    for event in events:
        if event.is_meeting:
            found.setdefault(event.rank, []).extend(add(event))
    return found


def test_waits_for_streams_and_events_are_no_work(tmp_path: Path, heavy_rank_2: list[Event]) -> None:
    """C02: counted as compute, such rows make every rank busy and all communication hidden."""

    def wait(event: Event) -> list[Row]:
        names = ("Stream Wait Event", "Event Sync", "Stream Sync", "Context Sync")
        return [
            make_row(
                "cuda_sync", name, event.rank, event.start_ns - 20_000, event.end_ns,
                on_gpu=True, device=event.rank, stream=7 if name.startswith("Stream") else -1, correlation=0,
            )
            for name in names
        ]  # fmt: skip

    plain = analyze_here(*fill_traces(tmp_path / "plain", heavy_rank_2))
    waiting = analyze_here(*fill_traces(tmp_path / "waiting", heavy_rank_2, extra=wait_rows(heavy_rank_2, wait)))
    assert list_warned(waiting) == list_warned(plain) == [("load.unknown", [2])]
    parts = ("work_ns", "wait_ns", "transfer_ns", "idle_ns")
    assert [[rank[part] for part in parts] for rank in waiting["ranks"]] == [
        [rank[part] for part in parts] for rank in plain["ranks"]
    ]


def test_an_idle_rank_that_takes_all_out_of_replay_is_named_for_that(tmp_path: Path) -> None:
    """A23: with a one-token dummy on rank 2 every rank launches kernel by kernel; all are slow together."""

    def dummy(key: str, step: int, layer: int, rank: int) -> float:
        return 0.02 if rank == 2 and key == "attention" and step >= 20 else 1.0

    events = play(Scenario(ranks=8, steps=40, factor=dummy, launch_ns=lambda step, rank: 45_000 if step >= 20 else 900))
    said = analyze_here(*fill_traces(tmp_path, events, replayed=range(20)))
    assert list_warned(said) == [("structural.graph", [2])]
    # That the others could spread their attention over it as well is true, and worth little.
    assert [item["cause"] for item in said["findings"] if item["ranks"] != [2]] == ["load.idle"]


def test_a_recording_that_was_never_made_a_report_is_named_with_its_tool(tmp_path: Path) -> None:
    """B08: the import broke off at 27 %, and only the raw stream is left."""
    path = tmp_path / "report.qdstrm"
    path.write_bytes(b"QD" + bytes(4_000))
    answer = run_here("analyze", path)
    assert answer.is_refusal
    assert "never made a report" in answer.stderr
    assert "QdstrmImporter" in answer.stderr
    assert "record a shorter time" in answer.stderr
