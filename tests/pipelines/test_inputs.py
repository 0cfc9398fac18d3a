from __future__ import annotations

import gzip
import os
import signal
from pathlib import Path

import pytest

from dprankdiag.errors import DamagedInput, InputError, UsageError
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.world import World
from dprankdiag.pipelines import inputs as pipeline
from dprankdiag.pipelines.inputs import Inputs, read_inputs
from tests.parquetdir import write_parquetdir
from tests.readers.builders import ExportBuilder
from tests.readers.checks import assert_equal


def write_export(path: Path, kernels: int = 3, pid: int = 5) -> Path:
    with ExportBuilder(path) as export:
        for number in range(kernels):
            export.kernel(pid, 100 * number, 100 * number + 50)
    return path


def write_folder(path: Path, pid: int = 5) -> Path:
    """Write a parquetdir, and nothing beside it."""
    source = write_export(path.with_name(f"{path.name}.made"), pid=pid)
    write_parquetdir(source, path)
    source.unlink()
    return path


def write_notes(path: Path) -> Path:
    path.write_text("restarted at noon\n")
    return path


def write_cut(path: Path) -> Path:
    whole = write_export(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


def names_read(inputs: Inputs) -> list[str]:
    return [Path(reading.source.path).name for reading in inputs.readings]


def names_unusable(inputs: Inputs) -> dict[str, str]:
    return {Path(source.path).name: source.status for source in inputs.unusable}


def test_files_are_read_in_the_order_given(tmp_path: Path) -> None:
    paths = [write_export(tmp_path / name) for name in ("b.sqlite", "a.sqlite")]
    inputs = read_inputs(paths)
    assert names_read(inputs) == ["b.sqlite", "a.sqlite"]
    assert inputs.unusable == ()


def test_a_folder_stands_for_its_files_by_name(tmp_path: Path) -> None:
    for name in ("c.sqlite", "a.sqlite", "b.sqlite"):
        write_export(tmp_path / name)
    assert names_read(read_inputs([tmp_path])) == ["a.sqlite", "b.sqlite", "c.sqlite"]


def test_what_a_folder_holds_besides_exports_is_skipped_with_the_reason(tmp_path: Path) -> None:
    write_export(tmp_path / "a.sqlite")
    write_notes(tmp_path / "notes.txt")
    inputs = read_inputs([tmp_path])
    assert names_read(inputs) == ["a.sqlite"]
    assert names_unusable(inputs) == {"notes.txt": "skipped"}
    assert "a text file" in inputs.unusable[0].warnings[0]


def test_hidden_files_and_inner_folders_are_passed_over(tmp_path: Path) -> None:
    write_export(tmp_path / "a.sqlite")
    write_notes(tmp_path / ".hidden")
    (tmp_path / "inner").mkdir()
    write_export(tmp_path / "inner" / "b.sqlite")
    inputs = read_inputs([tmp_path])
    assert names_read(inputs) == ["a.sqlite"]
    assert inputs.unusable == ()


@pytest.mark.parametrize("first", ["notes.txt", "a.sqlite"])
def test_a_named_file_of_unknown_kind_is_an_error_wherever_it_stands(tmp_path: Path, first: str) -> None:
    paths = [write_export(tmp_path / "a.sqlite"), write_notes(tmp_path / "notes.txt")]
    paths.sort(key=lambda path: path.name != first)
    with pytest.raises(InputError, match="text file") as raised:
        read_inputs(paths)
    assert raised.value.where == str(tmp_path / "notes.txt")


def test_a_damaged_file_is_unused_while_others_can_be_read(tmp_path: Path) -> None:
    inputs = read_inputs([write_cut(tmp_path / "cut.sqlite"), write_export(tmp_path / "a.sqlite")])
    assert names_read(inputs) == ["a.sqlite"]
    assert names_unusable(inputs) == {"cut.sqlite": "unused"}
    assert "incomplete" in inputs.unusable[0].warnings[0]


def test_a_damaged_file_alone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DamagedInput, match="incomplete"):
        read_inputs([write_cut(tmp_path / "cut.sqlite")])


def test_the_first_reason_is_told_where_nothing_could_be_read(tmp_path: Path) -> None:
    cut = write_cut(tmp_path / "a-cut.sqlite")
    (tmp_path / "b-empty.sqlite").touch()
    with pytest.raises(DamagedInput) as raised:
        read_inputs([tmp_path])
    assert raised.value.where == str(cut)


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no files"):
        read_inputs([tmp_path])


def test_a_parquetdir_is_one_input(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "run")
    inputs = read_inputs([folder])
    assert [reading.source.path for reading in inputs.readings] == [str(folder)]
    assert inputs.readings[0].source.kind == "nsys-parquet"
    assert inputs.unusable == ()


def test_a_folder_stands_for_the_parquetdirs_in_it_beside_its_files(tmp_path: Path) -> None:
    write_folder(tmp_path / "rank_10", pid=10)
    write_folder(tmp_path / "rank_2", pid=2)
    write_export(tmp_path / "rank_3.sqlite", pid=3)
    write_notes(tmp_path / "notes.txt")
    (tmp_path / "empty").mkdir()
    inputs = read_inputs([tmp_path])
    assert names_read(inputs) == ["rank_10", "rank_2", "rank_3.sqlite"]
    assert names_unusable(inputs) == {"notes.txt": "skipped"}


def test_a_broken_parquetdir_in_a_folder_costs_only_itself(tmp_path: Path) -> None:
    write_export(tmp_path / "a.sqlite")
    for table in write_folder(tmp_path / "run").iterdir():
        table.write_bytes(b"")
    inputs = read_inputs([tmp_path])
    assert names_read(inputs) == ["a.sqlite"]
    assert names_unusable(inputs) == {"run": "unused"}
    assert inputs.unusable[0].kind == "nsys-parquet"
    assert "none of its tables can be read" in inputs.unusable[0].warnings[0]


def test_a_folder_of_folders_is_answered_with_those_to_give(tmp_path: Path) -> None:
    for name in ("b run", "a", "c", "d", "e"):
        (tmp_path / name).mkdir()
        write_export(tmp_path / name / "run.sqlite")
    with pytest.raises(InputError, match="only folders") as raised:
        read_inputs([tmp_path])
    assert raised.value.where == str(tmp_path)
    given = f"{tmp_path}/a '{tmp_path}/b run' {tmp_path}/c {tmp_path}/d (5 in all)"
    assert raised.value.mend == f"give the folders of one run: dprankdiag analyze {given}"
    assert "\n" not in str(raised.value)


def test_a_folder_of_folders_beside_other_inputs_is_passed_over_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    inputs = read_inputs([write_export(tmp_path / "a.sqlite"), tmp_path / "outer"])
    assert names_read(inputs) == ["a.sqlite"]
    assert names_unusable(inputs) == {"outer": "skipped"}


def test_a_folder_without_exports_is_an_error(tmp_path: Path) -> None:
    write_notes(tmp_path / "notes.txt")
    with pytest.raises(InputError, match="text file"):
        read_inputs([tmp_path])


def test_a_path_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_inputs([write_export(tmp_path / "a.sqlite"), tmp_path / "gone.sqlite"])


def test_a_link_is_followed_and_a_dead_one_is_a_usage_error(tmp_path: Path) -> None:
    export = write_export(tmp_path / "a.sqlite")
    (tmp_path / "link.sqlite").symlink_to(export)
    (tmp_path / "dead.sqlite").symlink_to(tmp_path / "gone.sqlite")
    assert names_read(read_inputs([tmp_path / "link.sqlite"])) == ["link.sqlite"]
    with pytest.raises(UsageError):
        read_inputs([tmp_path / "dead.sqlite"])


def test_a_dead_link_in_a_folder_is_skipped(tmp_path: Path) -> None:
    write_export(tmp_path / "a.sqlite")
    (tmp_path / "dead.sqlite").symlink_to(tmp_path / "gone.sqlite")
    assert names_read(read_inputs([tmp_path])) == ["a.sqlite"]


def test_a_pipe_in_a_folder_is_skipped_without_waiting(tmp_path: Path) -> None:
    write_export(tmp_path / "a.sqlite")
    os.mkfifo(tmp_path / "pipe.sqlite")
    inputs = read_inputs([tmp_path])
    assert names_read(inputs) == ["a.sqlite"]
    assert names_unusable(inputs) == {"pipe.sqlite": "skipped"}


def test_progress_names_each_file_and_runs_forward(tmp_path: Path) -> None:
    told: list[tuple[str, float | None]] = []
    paths = [write_export(tmp_path / name) for name in ("a.sqlite", "b.sqlite")]
    read_inputs(paths, lambda text, share: told.append((text, share)))
    assert [text for text, _ in told] == ["read a.sqlite", "read b.sqlite"]
    shares = [share for _, share in told if share is not None]
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)


def test_files_read_at_the_same_time_come_in_the_order_given(tmp_path: Path) -> None:
    paths = [write_export(tmp_path / f"{name}.sqlite") for name in "dcba"]
    assert names_read(read_inputs(paths, jobs=3)) == [path.name for path in paths]


def write_torch_traces(folder: Path) -> list[Path]:
    return write_world(World(seed=3, ranks=3, steps=4, layers=2), folder, format="torch")


def test_large_torch_traces_are_read_by_processes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [*write_torch_traces(tmp_path), write_export(tmp_path / "last.sqlite")]
    paths[1].write_bytes(gzip.compress(b'{"schemaVersion": 1, "traceEvents": [', 1))
    alone = read_inputs(paths, jobs=1)
    monkeypatch.setattr(pipeline, "_WORTH_PROCESSES_BYTES", 0)
    shared = read_inputs(paths, jobs=2)
    assert names_read(shared) == [path.name for path in (paths[0], paths[2], paths[3])]
    assert shared.unusable == alone.unusable
    for one, other in zip(alone.readings, shared.readings, strict=True):
        assert_equal(one, other)


def test_a_trace_whose_process_was_killed_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_torch_traces(tmp_path)
    monkeypatch.setattr(pipeline, "_WORTH_PROCESSES_BYTES", 0)
    monkeypatch.setattr(pipeline, "_end_at_interrupt", end_at_once)
    assert names_read(read_inputs(paths, jobs=2)) == [path.name for path in paths]


def end_at_once() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_closed_folder_in_a_folder_is_told(tmp_path: Path) -> None:
    write_export(tmp_path / "a.sqlite")
    closed = write_folder(tmp_path / "rank_1")
    closed.chmod(0)
    if os.access(closed, os.R_OK):
        pytest.skip("this user may list everything")
    try:
        inputs = read_inputs([tmp_path])
        assert names_unusable(inputs) == {"rank_1": "skipped"}
        assert "cannot list the folder" in inputs.unusable[0].warnings[0]
    finally:
        closed.chmod(0o755)
