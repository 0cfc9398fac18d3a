"""Reports in which something was not recorded: what is absent is no idle rank, no healthy page, and no guess."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprankdiag.harness.faults import load_context
from dprankdiag.harness.nsys_schema import Schema
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.worlds import World
from dprankdiag.pipelines.diagnose import Options, diagnose
from tests.proof.filler import fill
from tests.proof.scenario import Event, Scenario, attention_of, play
from tests.proof.verdicts import class_of, reasons_of, warned


@pytest.fixture(scope="module")
def without_rank_2() -> list[Event]:
    """B04: the profile of four GPUs holds the activity of three."""
    return [event for event in play(Scenario(factor=attention_of(2, 2.0))) if event.rank != 2]


@pytest.mark.parametrize("expected", [None, 4])
def test_a_rank_without_rows_is_missing_and_not_idle(
    tmp_path: Path, without_rank_2: list[Event], expected: int | None
) -> None:
    path = fill(tmp_path / "export.sqlite", without_rank_2)
    diagnosis = diagnose([path], Options(expect_ranks=expected)).diagnosis
    assert (diagnosis.status, diagnosis.findings) == ("inconclusive", ())
    assert [rank.rank for rank in diagnosis.ranks] == [0, 1, 3]
    assert "rank 2 was not recorded" in reasons_of(diagnosis)


def test_an_unseen_rank_at_the_end_is_missed_when_the_user_expects_it(tmp_path: Path) -> None:
    events = [event for event in play(Scenario(factor=attention_of(3, 2.0))) if event.rank != 3]
    diagnosis = diagnose([fill(tmp_path / "export.sqlite", events)], Options(expect_ranks=4)).diagnosis
    assert (diagnosis.status, diagnosis.findings) == ("inconclusive", ())
    assert "rank 3" in reasons_of(diagnosis)


@pytest.mark.parametrize("schema", ["3.25", "2.9"])
def test_kernels_replayed_from_a_graph_give_the_verdict_in_old_and_new_exports(tmp_path: Path, schema: Schema) -> None:
    """B02: one launch covers many kernels, and older exports lack the columns that say so."""
    world = World(seed=81, ranks=4, layers=4, faults=(load_context(1, 2.5),))
    diagnosis = diagnose(write_world(world, tmp_path, schema=schema)).diagnosis
    assert {(class_of(finding), finding.ranks) for finding in warned(diagnosis)} == {("load", (1,))}


def test_a_graph_recorded_as_one_row_is_not_read_as_health(tmp_path: Path) -> None:
    """B17: a replay without its kernels."""
    world = World(seed=82, ranks=4, layers=4, graph_mode="graph", faults=(load_context(1, 2.5),))
    diagnosis = diagnose(write_world(world, tmp_path)).diagnosis
    assert diagnosis.status != "healthy"
    assert not {rank for finding in warned(diagnosis) for rank in finding.ranks} - {1}


def test_a_graph_recorded_as_one_row_is_told_how_to_record_its_kernels(tmp_path: Path) -> None:
    world = World(seed=82, ranks=4, layers=4, graph_mode="graph", faults=(load_context(1, 2.5),))
    diagnosis = diagnose(write_world(world, tmp_path)).diagnosis
    commands = [item.get_it_with or "" for item in diagnosis.abstentions]
    assert any("--cuda-graph-trace=node" in command for command in commands)


def test_files_that_do_not_name_their_rank_are_not_all_rank_0(tmp_path: Path) -> None:
    """B15: no rank in the trace."""
    world = World(seed=83, ranks=4, layers=4, files="rank", thread_titles=False, faults=(load_context(1, 2.5),))
    paths = write_world(world, tmp_path)
    assert len(paths) == 4
    diagnosis = diagnose(paths).diagnosis
    assert [rank.rank for rank in diagnosis.ranks] == [0, 1, 2, 3]
    assert {rank.grade for rank in diagnosis.ranks} == {"assumed"}
    (finding,) = warned(diagnosis)
    assert (class_of(finding), finding.ranks) == ("load", (1,))
    assert finding.confidence <= 0.9
    assert "process" in finding.summary
    assert "--rank-map" in reasons_of(diagnosis)
