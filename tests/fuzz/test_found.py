"""What fuzzing found, each as small as it can be told."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dprankdiag.errors import DamagedInput, InputError, TableError
from dprankdiag.harness.faults import slow_gpu
from dprankdiag.harness.suites import write_world
from dprankdiag.pipelines.diagnose import diagnose
from dprankdiag.readers.engine_log import parse_log
from dprankdiag.readers.expert_counts import read_expert_counts
from dprankdiag.readers.flight_recorder import parse_dump
from dprankdiag.readers.request_log import read_request_log
from dprankdiag.readers.torch_json import read as read_trace
from dprankdiag.store.bundle_fit import check_tables
from dprankdiag.store.recorder import Recorder
from dprankdiag.store.recording import read_recording
from tests.flights import standing_at, write_dumps
from tests.fuzz.damages import unpack
from tests.fuzz.subjects import LOG_LINE, list_subjects
from tests.proof.command import analyze_here, run_here
from tests.properties.worlds import EVEN, change, judge
from tests.store.told import assert_same, plain_answer


def log_line(rank: int, running: int, second: int = 0) -> str:
    return LOG_LINE.format(minute=0, second=second, rank=rank, running=running, tokens=9, speed=1.0)


def test_two_log_lines_that_a_bad_sector_joined_tell_nothing_of_either_rank() -> None:
    torn = f"{log_line(1, 20)[:40]}{chr(0) * 512}{log_line(2, 60)[40:]}"
    lines = [log_line(rank, 20, second) for second in (0, 9) for rank in range(3)]
    answers = parse_log("\n".join([*lines[:3], torn, *lines[3:]]), "server.log")
    assert {value for answer in answers for value in answer.values.get("running_requests", np.array([])).tolist()} == {
        20
    }


@pytest.mark.parametrize("year", ["0001", "9999"])
def test_a_log_line_of_a_year_that_cannot_be_is_passed_over(year: str) -> None:
    lines = [log_line(rank, 20, second) for second in (0, 9) for rank in range(2)]
    stray = log_line(0, 99).replace("2026", year)
    with_it, without = (parse_log("\n".join(some), "server.log") for some in ([*lines, stray], lines))
    for one, other in zip(with_it, without, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("grid", [[2**200, 1, 1], [2**31, 2**31, 2**31], [-1, 1, 1], [1.5, 1, "x"]])
def test_a_launch_shape_that_no_gpu_has_is_none(grid: list[Any], tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.0, "dur": 1.0}
    event["args"] = {"device": 0, "stream": 7, "correlation": 1, "grid": grid, "block": [1, 1, 1]}
    (tmp_path / "a.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    assert read_trace(tmp_path / "a.json").names.shapes == ((0, 0, 0, 0, 0, 0),)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE targets SET engine = x'00'",
        "UPDATE answers SET taken_ns = 'late'",
        "UPDATE field_sets SET names = '[7]'",
        f"UPDATE answers SET warnings = '{'[' * 200_000}'",
        "UPDATE experts SET tokens = 5",
        "UPDATE facts SET kind = x'07'",
    ],
)
def test_a_recording_whose_columns_hold_what_they_cannot_is_broken(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    with Recorder(path) as recorder:
        recorder.write([replace(plain_answer(), warnings=("x",))], 1)
    with closing(sqlite3.connect(path)) as database:
        database.execute("DROP VIEW told")
        for table in ("targets", "answers", "field_sets", "experts", "facts"):
            # As another program may copy it: without the rules that keep columns clean.
            database.execute(f"CREATE TABLE made AS SELECT * FROM {table}")
            database.execute(f"DROP TABLE {table}")
            database.execute(f"ALTER TABLE made RENAME TO {table}")
        database.execute("INSERT INTO experts VALUES (1, 0, '[1]')")
        database.execute(statement)
        database.commit()
    with pytest.raises(DamagedInput, match="broken recording") as told:
        read_recording(path)
    assert len(str(told.value)) < 500


def test_a_count_in_a_dump_that_is_no_number_is_one_short_line() -> None:
    (made,) = standing_at([(3, "started")]).values()
    made["pg_status"]["0"]["last_completed_collective"] = "[" * 5_000
    with pytest.raises(DamagedInput) as told:
        parse_dump(json.dumps(made).encode(), "nccl_trace_rank_0.json")
    assert len(str(told.value)) < 400


def test_a_rank_whose_own_count_says_that_it_came_is_not_absent_because_its_entries_are_gone(tmp_path: Path) -> None:
    dumps = standing_at([(8, "started"), (8, "started"), (7, "completed"), (8, "started")])
    dumps[1]["entries"] = []
    said = analyze_here(*write_dumps(dumps, tmp_path))
    assert [(item["cause"], item["ranks"]) for item in said["findings"]] == [("stall.absent", [2])]


def slow_export(folder: Path) -> Path:
    (path,) = write_world(replace(EVEN, seed=3, faults=(slow_gpu(1, 1.3),)), folder)
    return path


@pytest.mark.parametrize(
    "statement, reason",
    [
        ("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL", "none of its kernels"),
        ("DELETE FROM StringIds WHERE value LIKE '%gemm%' OR value LIKE '%nvjet%'", "no name"),
    ],
    ids=["kernels", "names"],
)
def test_ranks_are_not_called_even_where_what_tells_them_apart_is_gone(
    statement: str, reason: str, tmp_path: Path
) -> None:
    path = slow_export(tmp_path)
    change([path], statement)
    found = judge([path])
    named = {rank for item in found.findings if item.severity != "info" for rank in item.ranks}
    assert found.status != "healthy"
    assert named <= {1}
    assert named or any(reason in note for note in found.notes)


def test_a_rank_whose_kernels_lost_their_times_hides_what_it_did(tmp_path: Path) -> None:
    paths = write_world(replace(EVEN, seed=3, faults=(slow_gpu(1, 1.3),)), tmp_path, format="torch")
    packed = next(path for path in paths if "TP-1" in path.name)
    document: dict[str, Any] = json.loads(unpack(packed.read_bytes()))
    for event in document["traceEvents"]:
        if event.get("cat") == "kernel":
            del event["ts"]
    packed.write_text(json.dumps(document))
    found = diagnose(paths).diagnosis
    assert found.status == "inconclusive"
    assert "rank 1" in found.headline


@pytest.mark.parametrize("number", ["1e999999", "1e999990", "-1e400", "NaN", "1e60"])
def test_times_and_counts_beyond_all_measure_are_damage(number: str, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for row in (f'{{"arrival_s": {number}, "input_tokens": 1, "output_tokens": 1}}',
                f'{{"arrival_s": 1, "input_tokens": {number}, "output_tokens": 1}}'):  # fmt: skip
        path.write_text(row + "\n")
        with pytest.raises(InputError) as told:
            read_request_log(path)
        assert len(str(told.value)) < 400


@pytest.mark.parametrize("cell", ["9" * 30, "1\0", '"' + "x" * 200_000])
def test_cells_of_counts_that_are_none_are_damage(cell: str, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(f"layer,expert,tokens\n0,0,1\n0,1,{cell}\n")
    with pytest.raises(DamagedInput):
        read_expert_counts([tmp_path / "c.csv"])


@pytest.mark.parametrize(
    "table, column, value", [("step_walls", "group", 7), ("rank_steps", "step", 0), ("layers", "position", -1)]
)
def test_tables_of_a_bundle_that_do_not_fit_are_refused_together(table: str, column: str, value: int) -> None:
    (content,) = next(one for one in list_subjects() if one.kind == "bundle").files.values()
    with zipfile.ZipFile(BytesIO(content)) as archive:
        names = ("steps", "step_walls", "rank_steps", "positions", "layers")
        read = {name: archive.read(f"{name}.parquet") for name in names}
    tables = {name: pq.read_table(BytesIO(one)) for name, one in read.items()}
    columns = {name: {item: one.column(item).to_numpy() for item in one.column_names} for name, one in tables.items()}
    assert list(check_tables(columns)) == list(columns)
    columns[table][column] = np.full_like(columns[table][column], value)
    with pytest.raises(TableError, match=table):
        check_tables(columns)


def test_a_rank_that_no_deployment_has_is_refused_before_those_below_it_are_listed(tmp_path: Path) -> None:
    path = slow_export(tmp_path)
    ranks = tmp_path / "ranks.txt"
    ranks.write_text("pid:41200 = 9223372036854775807\npid:41207 = 1\n", "utf-8")
    answer = run_here("analyze", str(path), "--rank-map", str(ranks))
    assert answer.code == 3
    assert "ranks.txt line 1: no rank has the number 9223372036854775807" in answer.stderr
    assert run_here("analyze", str(path), "--expect-ranks", "99999999999").code == 2
    change([path], "UPDATE StringIds SET value = replace(value, '_DP1_', '_DP99999_PP99999_')")
    assert run_here("analyze", str(path)).code == 0
