"""Torch traces as people keep them: in any order, one short, all of one name, beside exports, an engine a folder."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.harness.faults import load_context
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.torch_files import Trouble
from dprankdiag.harness.worlds import World
from tests.proof.command import analyze_here

WORLD = World(seed=97, ranks=4, steps=20, layers=2, lean=True, faults=(load_context(2, 2.5),))
FOUND = [("load.context", [2])]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_world(WORLD, tmp_path_factory.mktemp("traces"), format="torch")


def list_found(said: dict[str, Any], engine: str | None = None) -> list[tuple[str, list[int]]]:
    return [(item["cause"], item["ranks"]) for item in said["findings"] if engine in (None, item["engine"])]


def test_files_in_any_order_give_the_same_answer(traces: list[Path]) -> None:
    first = analyze_here(*traces)
    assert list_found(first) == FOUND
    shuffled = list(traces)
    random.Random(3).shuffle(shuffled)
    assert shuffled != traces
    again = analyze_here(*shuffled)
    by_path = {item["path"]: item for item in again.pop("inputs")}
    assert [by_path[item["path"]] for item in first.pop("inputs")] == [by_path[str(path)] for path in traces]
    assert again == first


def test_a_folder_is_its_files(traces: list[Path]) -> None:
    assert analyze_here(traces[0].parent) == analyze_here(*traces)


@pytest.mark.parametrize("lost", [0, 2, 3])
def test_a_missing_file_names_nobody_and_is_missed(traces: list[Path], lost: int) -> None:
    said = analyze_here(*(path for rank, path in enumerate(traces) if rank != lost))
    assert (said["status"], said["findings"]) == ("inconclusive", [])
    assert f"rank {lost} was not recorded" in said["headline"]


def test_files_that_all_call_themselves_rank_0_are_told_apart_and_assumed(tmp_path: Path) -> None:
    paths = write_world(replace(WORLD, names="vllm"), tmp_path, format="torch", troubles=[Trouble("same_rank")])
    assert {path.name.split(".")[0] for path in paths} == {"rank0"}
    said = analyze_here(*paths)
    assert list_found(said) == FOUND
    assert {rank["grade"] for rank in said["ranks"]} == {"assumed"}
    assert said["findings"][0]["confidence"] <= 0.9
    assert any("all 4 recordings claim to be one rank" in note for note in said["notes"])
    assert any("--rank-map" in note for note in said["notes"])


def test_files_of_one_name_in_several_folders_are_ranks_by_what_they_hold(tmp_path: Path, traces: list[Path]) -> None:
    """Copied from several hosts, each as r0."""
    copies = []
    for rank, path in enumerate(traces):
        folder = tmp_path / f"host-{3 - rank}"
        folder.mkdir()
        copies.append(Path(shutil.copy(path, folder / "r0.json.gz")))
    said = analyze_here(*reversed(copies))
    assert list_found(said) == FOUND
    assert {rank["grade"] for rank in said["ranks"]} == {"sure"}


def test_traces_and_an_export_of_one_run_are_judged_apart_and_agree(tmp_path: Path) -> None:
    write_world(WORLD, tmp_path, format="torch")
    write_world(WORLD, tmp_path)
    said = analyze_here(tmp_path)
    assert list_found(said, "torch-json") == list_found(said, "nsys-sqlite") == FOUND
    assert len(said["ranks"]) == 8
    assert any("judged apart as engines torch-json, nsys-sqlite" in note for note in said["notes"])
    lost = [item["lost_ns"] for item in said["findings"]]
    assert lost[0] == pytest.approx(lost[1], rel=0.03)


def test_prefill_and_decode_engines_in_two_folders_are_two_deployments(tmp_path: Path, traces: list[Path]) -> None:
    prompts = replace(WORLD, seed=98, prefill_every=2, faults=(load_context(1, 2.5),))
    write_world(prompts, tmp_path / "prefill", format="torch")
    shutil.copytree(traces[0].parent, tmp_path / "decode")
    said = analyze_here(tmp_path / "prefill", tmp_path / "decode")
    assert list_found(said, "prefill") == [("load.context", [1])]
    assert list_found(said, "decode") == FOUND
    assert {(rank["engine"], rank["role"]) for rank in said["ranks"]} == {("prefill", "prefill"), ("decode", "decode")}
    assert any("judged apart as engines" in note for note in said["notes"])
