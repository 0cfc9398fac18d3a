"""The Perfetto file says what the tables say, and every viewer can draw it."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprankdiag.harness.suites import WORLDS, write_world
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.schema import Columns
from dprankdiag.pipelines.diagnose import diagnose
from dprankdiag.views.perfetto import STEPS_THREAD, count_waits, render
from tests import builders
from tests.conftest import ROOT
from tests.views.results import HOSTILE, make_tables

Result = tuple[Diagnosis, dict[str, Columns]]


@pytest.fixture(scope="module", params=["load-one-rank", "host-stalls"])
def result(request: pytest.FixtureRequest) -> Result:
    outcome = diagnose([ROOT / "examples" / f"{request.param}.sqlite"])
    return outcome.diagnosis, outcome.tables


def _events(result: Result, **matching: Any) -> list[dict[str, Any]]:
    events = json.loads(render(*result))["traceEvents"]
    return [event for event in events if all(event.get(key) == value for key, value in matching.items())]


def _origin(result: Result) -> int:
    origin: int = json.loads(render(*result))["otherData"]["origin_ns"]
    return origin


def _ns(time_us: float) -> int:
    return round(time_us * 1000)


def _sum_by_rank(columns: Columns, name: str, chosen: Any = slice(None)) -> dict[int, int]:
    sums: dict[int, int] = defaultdict(int)
    for rank, value in zip(columns["rank"][chosen].tolist(), columns[name][chosen].tolist(), strict=True):
        sums[rank] += value
    return dict(sums)


def test_waits_add_up_to_those_of_the_worst_step(result: Result) -> None:
    _, tables = result
    drawn: dict[int, int] = defaultdict(int)
    for event in _events(result, ph="X", cat="wait"):
        drawn[event["tid"] - 1] += _ns(event["dur"])
    expected = _sum_by_rank(tables["worst_meetings"], "wait_ns")
    assert drawn == {rank: wait for rank, wait in expected.items() if wait}


def test_counters_add_up_to_the_wait_of_each_rank_in_the_diagnosis(result: Result) -> None:
    diagnosis, _ = result
    counted: dict[str, int] = defaultdict(int)
    for event in _events(result, ph="C"):
        counted[event["name"]] += event["args"]["wait_ns"]
    assert counted == {f"rank {rank.rank} waits in the step": rank.wait_ns for rank in diagnosis.ranks}


def test_counters_of_very_many_steps_are_added_up() -> None:
    tables = make_tables()
    counted: dict[str, list[int]] = defaultdict(list)
    for event in count_waits(tables, 0, most=50):
        counted[event["name"]].append(event["args"]["wait_ns"])
    assert {name: sum(values) for name, values in counted.items()} == {
        f"rank {rank} waits in 7 steps": wait for rank, wait in _sum_by_rank(tables["rank_steps"], "wait_ns").items()
    }
    assert {len(values) for values in counted.values()} == {6}


def test_every_step_is_drawn_at_its_time(result: Result) -> None:
    diagnosis, tables = result
    steps = _events(result, ph="X", tid=STEPS_THREAD)
    assert len(steps) == diagnosis.time.steps
    origin = _origin(result)
    assert [origin + _ns(event["ts"]) for event in steps] == tables["steps"]["start_ns"].tolist()
    assert [_ns(event["dur"]) for event in steps] == (tables["steps"]["end_ns"] - tables["steps"]["start_ns"]).tolist()
    assert [event["name"] for event in steps if "worst" in event["name"]] == [
        f"step {tables['worst_steps']['step'][0]}, the worst"
    ]


def test_the_slices_of_a_rank_fill_the_worst_step_without_overlap(result: Result) -> None:
    diagnosis, tables = result
    for rank in diagnosis.ranks:
        slices = _events(result, ph="X", tid=rank.rank + 1)
        spans = [(_ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"])) for event in slices]
        assert spans == sorted(spans)
        assert all(end == start for (_, end), (start, _) in pairwise(spans))
        ends = tables["worst_meetings"]["end_ns"][tables["worst_meetings"]["rank"] == rank.rank]
        assert spans[-1][1] == ends[-1] - _origin(result)


def test_arrows_lead_from_the_last_ranks_segment_to_the_waits_it_ends(result: Result) -> None:
    starts = {event["id"]: event for event in _events(result, ph="s")}
    ends = {event["id"]: event for event in _events(result, ph="f")}
    assert starts.keys() == ends.keys()
    assert len(starts) == len(_events(result, ph="X", cat="wait"))
    slices = _events(result, ph="X")
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e"
        assert start["ts"] < end["ts"]
        assert _enclosing(slices, start)["cat"] == "segment"
        wait = _enclosing(slices, end)
        assert wait["cat"] == "wait"
        assert wait["args"]["last_to_arrive"] == f"rank {start['tid'] - 1}"
        assert _enclosing(slices, start)["name"].split(": ")[1] == wait["name"].split(": ")[1]


def _enclosing(slices: list[dict[str, Any]], event: dict[str, Any]) -> dict[str, Any]:
    (found,) = (
        item
        for item in slices
        if (item["pid"], item["tid"]) == (event["pid"], event["tid"])
        and item["ts"] <= event["ts"] < item["ts"] + item["dur"]
    )
    return found


def test_where_collectives_run_beside_work_arrows_lead_from_what_came_before_them(tmp_path: Path) -> None:
    outcome = diagnose(write_world(WORLDS["overlap_slow_gpu"], tmp_path))
    result = outcome.diagnosis, outcome.tables
    begins, ends = ({event["id"]: event for event in _events(result, ph=phase)} for phase in "sf")
    assert len(begins) > 50
    assert set(begins) == set(ends)
    assert {event["tid"] for event in begins.values()} == {2 + 1}
    assert all(begins[number]["ts"] < ends[number]["ts"] for number in begins)
    work = _events(result, ph="X", cat="segment", tid=2 + 1)
    around = [[it for it in work if it["ts"] <= event["ts"] <= it["ts"] + it["dur"]] for event in begins.values()]
    assert all(len(found) == 1 and "join" not in found[0]["name"] for found in around)


def test_the_stalled_hosts_segment_is_called_idle() -> None:
    outcome = diagnose([ROOT / "examples" / "host-stalls.sqlite"])
    segments = _events((outcome.diagnosis, outcome.tables), ph="X", cat="segment", tid=6)
    assert segments[0]["name"] == "idle: all_gather, layer 0 (gather)"
    assert max(segments, key=lambda event: event["dur"]) == segments[0]


def test_tracks_are_named_after_ranks_in_their_order(result: Result) -> None:
    names = [event["args"]["name"] for event in _events(result, ph="M", name="thread_name")]
    assert names[:9] == ["steps", *(f"rank {number}" for number in range(8))]
    assert {name.partition(",")[0] for name in names[9:]} == set(names[1:9])
    order = _events(result, ph="M", name="thread_sort_index")
    place = {event["tid"]: event["args"]["sort_index"] for event in order}
    assert len(set(place.values())) == len(place) == len(names) - 1
    tracks = {event["tid"]: event["args"]["name"] for event in _events(result, ph="M", name="thread_name")}
    by_place = [tracks[thread] for thread in sorted(place, key=lambda thread: place[thread])]
    assert [name.partition(",")[0] for name in by_place] == sorted(name.partition(",")[0] for name in by_place)


def test_the_kernels_of_the_worst_step_stand_on_their_streams_without_overlap(result: Result) -> None:
    _, tables = result
    drawn = _events(result, ph="X", cat="kernel")
    kernels = tables["step_kernels"]
    assert len(drawn) == (kernels["own_ns"] > 0).sum()
    assert [event["name"] for event in drawn] == kernels["name"][kernels["own_ns"] > 0].tolist()
    origin, ends = _origin(result), kernels["end_ns"][kernels["own_ns"] > 0]
    assert [_ns(event["ts"]) + _ns(event["dur"]) + origin for event in drawn] == ends.tolist()
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in drawn:
        spans[event["tid"]].append((_ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"])))
    for mine in spans.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(mine))


def test_every_time_keeps_its_nanoseconds() -> None:
    tables = make_tables()
    meetings = tables["worst_meetings"]
    result = (builders.diagnosis(), tables)
    slices = _events(result, ph="X", cat="wait")
    waiting = meetings["wait_ns"] > 0
    assert [_ns(event["ts"]) + _origin(result) for event in slices] == meetings["arrival_ns"][waiting].tolist()
    assert min(event["ts"] for event in _events(result) if "ts" in event) >= 0


@pytest.mark.parametrize(
    "missing", ["members", "kinds", "positions", "worst_steps", "worst_meetings", "rank_steps", "step_kernels"]
)
def test_a_bundle_of_an_older_version_is_drawn_as_far_as_it_goes(missing: str) -> None:
    tables = {name: columns for name, columns in make_tables().items() if name != missing}
    document = json.loads(render(builders.diagnosis(), tables))
    assert document["traceEvents"]
    declared = {"worst_steps", "worst_meetings", "rank_steps", "step_kernels"}
    assert document["otherData"]["not in this input"] == sorted({missing} & declared)


def test_a_diagnosis_without_tables_is_an_empty_trace_that_says_why() -> None:
    document = json.loads(render(builders.undecided_diagnosis(), {}))
    assert document["traceEvents"] == []
    assert document["otherData"]["status"] == "inconclusive"
    assert "worst_meetings" in document["otherData"]["not in this input"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text(text: str) -> None:
    tables = dict(make_tables())
    positions = dict(tables["positions"])
    positions["operation"] = np.full(len(positions["operation"]), text, object)
    tables["positions"] = positions
    tables["step_kernels"] = {
        **tables["step_kernels"],
        "name": np.full(len(tables["step_kernels"]["name"]), text, object),
    }
    written = render(builders.diagnosis(headline=text), tables)
    assert written.isascii()
    assert all(character == "\n" or character.isprintable() for character in written)
    names = {event["name"] for event in json.loads(written)["traceEvents"] if event.get("cat") == "wait"}
    assert all(text in name for name in names)


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    assert render(builders.diagnosis(), make_tables()) == render(builders.diagnosis(), dict(make_tables()))
