"""The tables of a bundle say the same as the diagnosis they belong to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.harness.suites import WORLDS, write_world
from dprankdiag.model.compared import COMPARED_TABLES
from dprankdiag.model.results import COMPONENTS, RESULT_TABLES, find_table
from dprankdiag.model.schema import Columns
from dprankdiag.pipelines.diagnose import Outcome, diagnose
from dprankdiag.pipelines.result_tables import MOST_BLAMED, tabulate
from dprankdiag.store.bundle import load_bundle, pack_bundle, save_bundle
from tests.analysis.builders import observe_grids, observe_steps, run_grid
from tests.pipelines.builders import EVEN_NS, TRANSFER_NS, see

MOST_BYTES_A_RANK_STEP = 3_000


@pytest.fixture(scope="module", params=["load_context", "attention_tp_load", "host_burst", "deepep_load"])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp(request.param)
    return diagnose(write_world(WORLDS[request.param], folder))


def test_every_declared_table_is_there_and_no_other(outcome: Outcome) -> None:
    declared = (*RESULT_TABLES, *COMPARED_TABLES)
    assert len({table.name for table in declared}) == len(declared)
    assert set(outcome.tables) == {table.name for table in declared}
    for table in declared:
        assert find_table(outcome.tables, table) is not None


def test_saved_tables_come_back_as_they_were_declared(outcome: Outcome, tmp_path: Path) -> None:
    path = tmp_path / "run.dprank"
    save_bundle(path, outcome.diagnosis, outcome.tables)
    _, tables = load_bundle(path)
    for table in RESULT_TABLES:
        columns = find_table(tables, table)
        assert columns is not None
        for name, values in columns.items():
            assert values.tolist() == outcome.tables[table.name][name].tolist()


def test_a_bundle_stays_small(outcome: Outcome) -> None:
    rank_steps = len(outcome.tables["rank_steps"]["rank"])
    assert len(pack_bundle(outcome.diagnosis, outcome.tables)) < MOST_BYTES_A_RANK_STEP * rank_steps


def test_the_waits_of_a_ranks_steps_add_up_to_the_ranks_wait(outcome: Outcome) -> None:
    rank_steps = outcome.tables["rank_steps"]
    for rank in outcome.diagnosis.ranks:
        assert rank_steps["wait_ns"][rank_steps["rank"] == rank.rank].sum() == rank.wait_ns


def test_blame_adds_up_to_what_each_rank_waits_and_to_what_is_told_step_by_step(outcome: Outcome) -> None:
    blame, by_step, rank_steps = (outcome.tables[name] for name in ("blame", "blame_steps", "rank_steps"))
    for rank in np.unique(rank_steps["rank"]):
        waits = rank_steps["wait_ns"][rank_steps["rank"] == rank].sum()
        for name in ("last_ns", "caused_ns"):
            assert blame[name][blame["rank"] == rank].sum() == waits
        assert by_step["caused_ns"][by_step["rank"] == rank].sum() == blame["caused_ns"][blame["blamed"] == rank].sum()
    culprits = {rank for finding in outcome.diagnosis.findings for rank in finding.ranks}
    first = np.argsort(-np.bincount(by_step["rank"], by_step["caused_ns"]))[: len(culprits)]
    assert set(first.tolist()) == culprits


def test_of_very_many_ranks_pairs_tell_those_apart_for_whom_the_others_wait_longest() -> None:
    seen = observe_steps(
        150, 2 * MOST_BLAMED, 1, factor={"attention": np.where(np.arange(2 * MOST_BLAMED) == 99, 3, 1)}
    )
    blame = tabulate([seen])["blame"]
    assert len(np.unique(blame["blamed"])) <= MOST_BLAMED + 1
    assert -1 in blame["blamed"]
    assert 99 in blame["blamed"]
    np.testing.assert_array_equal(np.bincount(blame["rank"], blame["caused_ns"]), seen.sums["wait"].sum(axis=0))


def test_the_worst_step_adds_up_to_its_rank_steps(outcome: Outcome) -> None:
    meetings, rank_steps = outcome.tables["worst_meetings"], outcome.tables["rank_steps"]
    step = outcome.tables["worst_steps"]["step"][0]
    for rank in np.unique(meetings["rank"]):
        mine = meetings["rank"] == rank
        of_step = (rank_steps["rank"] == rank) & (rank_steps["step"] == step)
        segment = (meetings["arrival_ns"] - meetings["start_ns"])[mine].sum()
        for_hosts = rank_steps["wait_ns"][of_step].sum() - meetings["wait_ns"][mine].sum()
        assert for_hosts >= 0
        assert segment == for_hosts + sum(rank_steps[f"{name}_ns"][of_step].sum() for name in COMPONENTS)


def test_the_meetings_of_the_worst_step_follow_each_other(outcome: Outcome) -> None:
    meetings, steps = outcome.tables["worst_meetings"], outcome.tables["steps"]
    step = outcome.tables["worst_steps"]["step"][0]
    for rank in np.unique(meetings["rank"]):
        mine = _of_rank(meetings, int(rank))
        np.testing.assert_array_equal(mine["position"], np.arange(len(mine["position"])))
        np.testing.assert_array_equal(mine["start_ns"][1:], mine["end_ns"][:-1])
    ends = [_of_rank(meetings, int(rank))["end_ns"][-1] for rank in np.unique(meetings["rank"])]
    assert min(ends) <= steps["end_ns"][step] <= max(ends)


def test_whoever_waits_in_the_worst_step_is_released_when_the_last_arrives(outcome: Outcome) -> None:
    meetings = outcome.tables["worst_meetings"]
    arrival = {
        (position, rank): time
        for position, rank, time in zip(
            meetings["position"].tolist(), meetings["rank"].tolist(), meetings["arrival_ns"].tolist(), strict=True
        )
    }
    waiting = np.flatnonzero(meetings["wait_ns"] > 0)
    assert len(waiting)
    for row in waiting:
        late = arrival[int(meetings["position"][row]), int(meetings["last_rank"][row])]
        assert meetings["arrival_ns"][row] + meetings["wait_ns"][row] == late


def test_someone_comes_last_to_every_meeting(outcome: Outcome) -> None:
    arrivals = outcome.tables["arrivals"]
    assert 0 < arrivals["last"].sum() <= arrivals["meetings"].sum() / 2
    lags = [arrivals[name] for name in arrivals if name.startswith("lag_")]
    assert (np.diff(lags, axis=0) >= 0).all()


def test_the_worst_step_is_the_one_that_was_made_worst() -> None:
    late = np.zeros(40, np.int64)
    late[[7, 23]] = 400_000
    tables = tabulate([see(late)])
    assert tables["worst_steps"]["step"].tolist() == [7]
    assert tables["worst_steps"]["wait_ns"].tolist() == [300_000]
    assert tables["worst_steps"]["median_ns"].tolist() == [EVEN_NS + TRANSFER_NS]
    meetings = tables["worst_meetings"]
    assert meetings["wait_ns"].tolist() == [400_000, 0, 400_000, 400_000]
    assert meetings["last_rank"].tolist() == [1, 1, 1, 1]
    assert meetings["work_ns"].tolist() == [EVEN_NS, EVEN_NS + 400_000, EVEN_NS, EVEN_NS]


def test_whom_a_rank_waits_for_elsewhere_in_the_step_is_unknown() -> None:
    attention = np.full((6, 2, 2), EVEN_NS)
    attention[:, 0, 1] += 100_000
    grid = run_grid({"attention": attention}, transfer=TRANSFER_NS)
    apart = replace(grid, group=np.array([[0, 1], [1, 0]]))
    assert tabulate([observe_grids([grid])])["worst_meetings"]["last_rank"].tolist() == [1, 1, 0, 0]
    assert tabulate([observe_grids([apart])])["worst_meetings"]["last_rank"].tolist() == [-1, 1, 0, 1]


def test_work_that_needs_a_call_beside_it_waits_for_the_rank_that_came_last_to_the_call(tmp_path: Path) -> None:
    paths = write_world(WORLDS["overlap_slow_gpu"], tmp_path)
    meetings = diagnose(paths).tables["worst_meetings"]
    joined = meetings["awaited"] != meetings["position"]
    waits = joined & (meetings["wait_ns"] > 0) & (meetings["awaited"] >= 0)
    assert waits.sum() > 50
    assert set(meetings["last_rank"][waits].tolist()) == {2}
    assert (meetings["awaited"][waits] < meetings["position"][waits]).all()
    assert set(meetings["last_rank"][meetings["awaited"] < 0].tolist()) <= {-1}


def test_arrival_lags_count_from_the_median_rank() -> None:
    tables = tabulate([see(400_000)])
    assert tables["arrivals"]["lag_p50_ns"].tolist() == [0, 400_000, 0, 0]
    assert tables["arrivals"]["last"].tolist() == [0, 40, 0, 0]


def test_groups_bear_the_name_of_their_engine() -> None:
    other = see(0)
    other = replace(other, ranks=tuple(replace(rank, engine="decode") for rank in other.ranks))
    tables = tabulate([see(0), other])
    assert tables["members"]["group"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert tables["members"]["engine"].tolist() == ["default"] * 4 + ["decode"] * 4


def test_nothing_to_compare_gives_no_tables() -> None:
    assert tabulate([]) == {}


def test_a_table_that_lacks_a_column_counts_as_not_saved() -> None:
    tables = tabulate([see(0)])
    for table in RESULT_TABLES:
        for column in table.columns:
            cut = {name: values for name, values in tables[table.name].items() if name != column.name}
            found = find_table({table.name: cut}, table)
            if not column.nullable:
                assert found is None
            else:
                assert found is not None
                assert (found[column.name] == -1).all()
        newer = {**tables[table.name], "of_tomorrow": np.zeros(1)}
        assert find_table({table.name: newer}, table) is not None


def _of_rank(columns: Columns, rank: int) -> Columns:
    mine = columns["rank"] == rank
    return {name: values[mine] for name, values in columns.items()}
