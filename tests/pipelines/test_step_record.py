"""Any step in full: its kernels lie where they ran, and the one that makes a rank late stands out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.harness.suites import WORLDS, write_world
from dprankdiag.harness.worlds import World
from dprankdiag.model.results import REPLAY_FAMILY
from dprankdiag.model.schema import Columns, take_rows
from dprankdiag.pipelines.diagnose import Options, Outcome, diagnose
from dprankdiag.pipelines.step_record import keep_kernels
from dprankdiag.views.kernel_times import choose_meeting, compare_segment, compare_step, find_longest_wait

LATE = {"load_context": 3, "one_file_per_rank_clock": 7, "attention_tp_load": 4, "deepep_load": 0}
"""World → the rank, or the first of two, whose attention the harness made longer."""


def open_world(world: World, folder: Path) -> Outcome:
    return diagnose(write_world(world, folder), Options(keep_steps=True))


@pytest.fixture(scope="module", params=list(LATE))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Outcome]:
    return request.param, open_world(WORLDS[request.param], tmp_path_factory.mktemp(request.param))


def test_the_kernel_that_was_made_longer_is_the_largest_difference(opened: tuple[str, Outcome]) -> None:
    name, outcome = opened
    (record,) = outcome.steps
    team = WORLDS[name].attention_tp
    for step in (3, 11, int(outcome.tables["worst_steps"]["step"][0])):
        meetings, kernels = record.list_meetings(step), record.list_kernels(step)
        meeting = choose_meeting(meetings, find_longest_wait(meetings))
        assert meeting.late // team == LATE[name] // team
        segment, whole = compare_segment(kernels, meeting), compare_step(kernels, meeting)
        assert (segment[0].family, whole[0].family) == ("attention", "attention")
        assert segment[0].late_ns > 1.8 * segment[0].median_ns
        assert whole[-1].family in ("collective", "dispatch")


def test_kernels_and_idle_time_of_one_stream_add_up_to_the_segment(opened: tuple[str, Outcome]) -> None:
    _, outcome = opened
    (record,) = outcome.steps
    meetings, kernels = record.list_meetings(5), record.list_kernels(5)
    for position in np.unique(meetings["position"]).tolist():
        meeting = choose_meeting(meetings, position)
        row = int(np.searchsorted(meeting.here["rank"], meeting.late))
        length = int(meeting.here["arrival_ns"][row] - meeting.here["start_ns"][row])
        assert sum(item.late_ns for item in compare_segment(kernels, meeting)) == length


def test_the_kernels_of_a_step_lie_between_the_meetings_of_their_rank(opened: tuple[str, Outcome]) -> None:
    _, outcome = opened
    (record,) = outcome.steps
    for step in (0, 7, record.seen.n_steps - 1):
        meetings, kernels = record.list_meetings(step), record.list_kernels(step)
        for rank in np.unique(meetings["rank"]):
            own, mine = take_rows(meetings, meetings["rank"] == rank), take_rows(kernels, kernels["rank"] == rank)
            assert mine["start_ns"].min() >= own["start_ns"].min()
            assert mine["end_ns"].max() == own["end_ns"].max()
            assert np.isin(own["end_ns"], mine["end_ns"]).all()


def test_no_kernel_belongs_to_two_steps(opened: tuple[str, Outcome]) -> None:
    _, outcome = opened
    (record,) = outcome.steps
    of_steps = [record.list_kernels(step) for step in (4, 5, 6)]
    of_rank = [take_rows(kernels, kernels["rank"] == 1)["start_ns"] for kernels in of_steps]
    joined = np.concatenate(of_rank)
    assert (np.diff(joined) >= 0).all()
    assert len({len(starts) for starts in of_rank}) == 1


def test_the_bundle_keeps_the_worst_step_as_the_open_recording_shows_it(opened: tuple[str, Outcome]) -> None:
    _, outcome = opened
    (record,) = outcome.steps
    shown = record.list_kernels(int(outcome.tables["worst_steps"]["step"][0]))
    for name, values in outcome.tables["step_kernels"].items():
        assert values.tolist() == shown[name].tolist()


def test_steps_are_kept_only_where_they_are_asked_for(tmp_path: Path) -> None:
    outcome = diagnose(write_world(WORLDS["load_context"], tmp_path))
    assert outcome.steps == ()
    assert len(outcome.tables["step_kernels"]["rank"])


def test_a_graph_recorded_as_a_whole_is_one_row(tmp_path: Path) -> None:
    outcome = open_world(replace(WORLDS["load_context"], graph_mode="graph"), tmp_path)
    (record,) = outcome.steps
    kernels = record.list_kernels(4)
    replays = take_rows(kernels, kernels["family"] == REPLAY_FAMILY)
    assert replays["rank"].tolist() == list(range(8))
    assert set(replays["name"].tolist()) == {"CUDA graph replay"}


def make_rows(n_ranks: int, each: int) -> tuple[Columns, Columns]:
    kernels = {"rank": np.repeat(np.arange(n_ranks), each)}
    meetings = {
        "rank": np.arange(n_ranks),
        "last_rank": np.full(n_ranks, 5),
        "wait_ns": np.where(np.arange(n_ranks) == 2, 900, 100) * (np.arange(n_ranks) != 5),
    }
    return kernels, meetings


@pytest.mark.parametrize(
    "most, kept", [(1, [7]), (20, [5, 7]), (30, [2, 5, 7]), (49, [0, 2, 5, 7]), (1000, list(range(8)))]
)
def test_of_many_ranks_those_of_findings_then_the_last_then_the_first_to_come_are_kept(
    most: int, kept: list[int]
) -> None:
    kernels, meetings = make_rows(8, 10)
    assert np.unique(keep_kernels(kernels, meetings, {7}, most)["rank"]).tolist() == kept
