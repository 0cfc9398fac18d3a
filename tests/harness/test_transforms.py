"""Changes to copies of recordings do what they say, and nothing to the recording itself."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.harness.faults import fabric, slow_gpu
from dprankdiag.harness.kernel_names import NAME_SETS
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.transforms import CHANGES, Changed, change_copy
from dprankdiag.harness.world import World

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
WORLD = World(seed=4, ranks=4, steps=12, layers=3, attention_tp=2, faults=(slow_gpu(1, 1.3),))
SPLIT = replace(WORLD, files="rank")


def ask(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def change(name: str, world: World, folder: Path) -> tuple[list[Path], Changed]:
    paths = write_world(world, folder / "recording")
    return paths, change_copy(name, paths, folder / "changed", world)


def count_kernels(path: Path, *, of_meetings: bool) -> int:
    names = "SELECT id FROM StringIds WHERE value LIKE '%nccl%'"
    which = "IN" if of_meetings else "NOT IN"
    return int(ask(path, f"SELECT count(*) FROM {KERNELS} WHERE demangledName {which} ({names})")[0][0])


@pytest.mark.parametrize("name", CHANGES)
def test_the_recording_itself_stays_as_it_was(name: str, tmp_path: Path) -> None:
    paths = write_world(SPLIT, tmp_path / "recording")
    before = [path.read_bytes() for path in paths]
    changed = change_copy(name, paths, tmp_path / "changed", SPLIT)
    assert [path.read_bytes() for path in paths] == before
    assert all(path.exists() for path in changed.paths)


def test_renumbered_ranks_keep_their_attention_groups(tmp_path: Path) -> None:
    (path,), changed = change("ranks renumbered", replace(WORLD, seed=5), tmp_path)
    new_of = dict(changed.renamed)
    assert sorted(new_of.values()) == [0, 1, 2, 3]
    assert new_of != {rank: rank for rank in range(4)}
    assert all(new_of[rank] + 1 == new_of[rank + 1] for rank in (0, 2))
    titles = "SELECT globalTid, value FROM ThreadNames JOIN StringIds ON id = nameId ORDER BY globalTid"
    old, new = ([text for _, text in ask(it, titles)] for it in (path, changed.paths[0]))
    assert [old[new_of[rank]] for rank in range(4)] == new


def test_reordered_files_are_the_same_files(tmp_path: Path) -> None:
    paths, changed = change("files reordered", SPLIT, tmp_path)
    assert sorted(it.read_bytes() for it in changed.paths) == sorted(it.read_bytes() for it in paths)
    assert [it.read_bytes() for it in changed.paths] != [it.read_bytes() for it in paths]


@pytest.mark.parametrize("ours,other", [("sglang", "vllm"), ("vllm", "sglang")])
def test_renamed_kernels_have_the_names_of_the_other_engine(ours: str, other: str, tmp_path: Path) -> None:
    _, changed = change("kernels renamed", replace(WORLD, names=ours), tmp_path)  # type: ignore[arg-type]
    shown = {
        text for (text,) in ask(changed.paths[0], f"SELECT value FROM StringIds JOIN {KERNELS} ON demangledName = id")
    }
    assert NAME_SETS[other].kernel("attention").demangled in shown
    assert NAME_SETS[ours].kernel("input_norm").demangled not in shown


def test_shifted_clocks_differ_by_file_and_keep_durations_to_50_ppm(tmp_path: Path) -> None:
    paths, changed = change("clocks shifted", SPLIT, tmp_path)
    query = f"SELECT start, end FROM {KERNELS} ORDER BY rowid LIMIT 1"
    pairs = [(ask(old, query)[0], ask(new, query)[0]) for old, new in zip(paths, changed.paths, strict=True)]
    shifts = [new[0] - old[0] for old, new in pairs]
    assert len(set(shifts)) == len(paths)
    assert all(abs(shift) <= 1_001_000_000 for shift in shifts)
    assert all(abs((new[1] - new[0]) - (old[1] - old[0])) <= 10 for old, new in pairs)


def test_shifted_time_moves_every_table_alike(tmp_path: Path) -> None:
    (path,), changed = change("time shifted", WORLD, tmp_path)
    for table in (KERNELS, "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        query = f"SELECT min(start), max(end) FROM {table}"
        old, new = ask(path, query)[0], ask(changed.paths[0], query)[0]
        assert {new[0] - old[0], new[1] - old[1]} == {10**12}


@pytest.mark.parametrize("name,of_meetings,share", [("work lost", False, 0.3), ("meetings lost", True, 0.01)])
def test_lost_rows_are_of_one_kind_and_about_as_many_as_said(
    name: str, of_meetings: bool, share: float, tmp_path: Path
) -> None:
    world = replace(WORLD, steps=60, layers=6)
    (path,), changed = change(name, world, tmp_path)
    before, after = (count_kernels(it, of_meetings=of_meetings) for it in (path, changed.paths[0]))
    assert 1 - after / before == pytest.approx(share, rel=0.4)
    others = [count_kernels(it, of_meetings=not of_meetings) for it in (path, changed.paths[0])]
    assert others[0] == others[1]


@pytest.mark.parametrize("name,lost", [("culprit's file lost", 1), ("other file lost", 2)])
def test_a_lost_file_is_the_one_meant(name: str, lost: int, tmp_path: Path) -> None:
    paths, changed = change(name, SPLIT, tmp_path)
    missing = {path.name for path in paths} - {path.name for path in changed.paths}
    assert missing == {paths[lost].name}


@pytest.mark.parametrize("name,lost", [("culprit's file lost", 0), ("other file lost", 2)])
def test_where_nobody_is_to_blame_a_file_is_lost_all_the_same(name: str, lost: int, tmp_path: Path) -> None:
    paths, changed = change(name, replace(SPLIT, faults=(fabric(3.0),)), tmp_path)
    assert {path.name for path in paths} - {path.name for path in changed.paths} == {paths[lost].name}


def test_one_file_alone_cannot_be_lost(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too few files"):
        change("culprit's file lost", WORLD, tmp_path)


def test_without_labels_no_text_names_a_rank(tmp_path: Path) -> None:
    _, changed = change("labels dropped", WORLD, tmp_path)
    tables = {name for (name,) in ask(changed.paths[0], "SELECT name FROM sqlite_master")}
    assert not tables & {"ThreadNames", "NVTX_EVENTS"}
    assert {name for (name,) in ask(changed.paths[0], "SELECT name FROM PROCESSES")} == {"python3"}


def test_calls_are_lost_in_one_file_only(tmp_path: Path) -> None:
    _, changed = change("calls of one file lost", SPLIT, tmp_path)
    with_calls = [ask(it, "SELECT 1 FROM sqlite_master WHERE name LIKE '%RUNTIME'") for it in changed.paths]
    assert [bool(found) for found in with_calls] == [False, True, True, True]


def test_a_wobbling_clock_is_mended_by_no_offset_and_no_rate(tmp_path: Path) -> None:
    paths, changed = change("clocks beyond repair", replace(SPLIT, steps=40), tmp_path)
    query = f"SELECT start FROM {KERNELS} ORDER BY start"
    old, new = ([start for (start,) in ask(it[0], query)] for it in (paths, changed.paths))
    errors = [after - before for before, after in zip(old, new, strict=True)]
    third = len(errors) // 3
    swing = max(errors) - min(errors)
    assert swing > 50_000
    assert all(max(part) - min(part) > 0.8 * swing for part in (errors[:third], errors[third : 2 * third]))
