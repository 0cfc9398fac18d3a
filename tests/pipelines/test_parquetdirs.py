"""A parquetdir is diagnosed as the SQLite export of the same recording is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dprankdiag.harness.suites import WORLDS, write_world
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.pipelines.diagnose import diagnose, list_kernels
from tests.parquetdir import write_parquetdir

NAMED = ("healthy", "load_context", "slow_gpu", "host_periodic", "one_file_per_rank_clock")
ONE_A_RANK = "one_file_per_rank_clock"


def without_places(diagnosis: Diagnosis) -> Diagnosis:
    inputs = tuple(replace(source, path=Path(source.path).stem, kind="") for source in diagnosis.inputs)
    return replace(diagnosis, inputs=inputs)


@pytest.mark.parametrize("name", NAMED)
def test_a_world_is_told_the_same_from_folders(tmp_path: Path, name: str) -> None:
    files = write_world(WORLDS[name], tmp_path / "files")
    folders = [write_parquetdir(path, tmp_path / "folders" / path.stem) for path in files]
    by_file, by_folder = diagnose(files).diagnosis, diagnose(folders).diagnosis
    assert {source.kind for source in by_folder.inputs} == {"nsys-parquet"}
    assert without_places(by_folder) == without_places(by_file)


def test_a_folder_of_parquetdirs_is_one_deployment(tmp_path: Path) -> None:
    files = write_world(WORLDS[ONE_A_RANK], tmp_path / "files")
    for path in files:
        write_parquetdir(path, tmp_path / "folders" / path.stem)
    assert len(files) > 1
    by_file, by_folder = diagnose(files).diagnosis, diagnose([tmp_path / "folders"]).diagnosis
    assert by_folder.findings
    assert by_folder.findings == by_file.findings


def test_folders_and_files_of_one_run_are_told_together(tmp_path: Path) -> None:
    files = write_world(WORLDS[ONE_A_RANK], tmp_path / "run")
    whole = diagnose(files).diagnosis
    for path in files[1::2]:
        write_parquetdir(path, tmp_path / "run" / path.stem)
        path.unlink()
    mixed = diagnose([tmp_path / "run"]).diagnosis
    assert {source.kind for source in mixed.inputs} == {"nsys-sqlite", "nsys-parquet"}
    assert len(mixed.inputs) == len(files)
    assert mixed.findings == whole.findings


def test_the_kernels_of_a_folder_are_those_of_the_file(tmp_path: Path) -> None:
    (path,) = write_world(WORLDS["load_context"], tmp_path)
    listed = list_kernels(write_parquetdir(path, tmp_path / "folder"))
    assert listed == list_kernels(path)
    assert listed
