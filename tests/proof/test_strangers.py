"""Exports that other people made: one with two ranks to compare, and seven in which nothing may be claimed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dprankdiag.pipelines.diagnose import diagnose
from tests.proof.command import run_here
from tests.proof.verdicts import class_of, value_of, waits_of

PAIR = "2026.2.1-nsysai-mfu-2gpu-before"
ONE_RANK = "only one rank was recorded"
NOTHING = "neither GPU kernels nor annotated ranges"
REASONS = {
    "2022.2.1-pipit-saxpy-mpi-rank0": ONE_RANK,
    "2022.4.2-rodinia-gaussian-7gpu-node": ONE_RANK,
    "2023.4.1-python-c-nvidia-no-cuda": NOTHING,
    "2024.5.1-pipit-cloverleaf-4gpu-node": ONE_RANK,
    "2025.5.1-cestwc-report7-small": ONE_RANK,
    "2026.2.1-jacc-cg-nvtx-no-cuda": NOTHING,
    "legacy-mordred-report1-b": ONE_RANK,
}


@pytest.fixture
def strangers(fixtures: Path) -> Path:
    folder = fixtures / "real" / "nsys"
    if not folder.is_dir():
        pytest.skip(f"no recordings of others in {folder}")
    return folder


def test_every_recording_of_others_is_covered_here(strangers: Path) -> None:
    assert {path.stem for path in strangers.glob("*.sqlite")} == {PAIR, *REASONS}


@pytest.mark.parametrize("name", REASONS)
def test_what_cannot_be_judged_is_answered_with_the_reason(strangers: Path, name: str) -> None:
    answer = run_here("analyze", strangers / f"{name}.sqlite", "--format", "json")
    assert answer.code == 0
    said = json.loads(answer.stdout)
    assert (said["status"], said["findings"]) == ("inconclusive", [])
    assert said["lost"]["total_ns"] is None
    assert REASONS[name] in said["headline"]
    assert len(said["ranks"]) == (1 if REASONS[name] == ONE_RANK else 0)
    assert {abstention["cause"].split(".")[0] for abstention in said["abstentions"]} >= {"load", "single_point"}


def test_a_transient_host_delay_is_neither_a_slow_gpu_nor_the_network(strangers: Path) -> None:
    diagnosis = diagnose([strangers / f"{PAIR}.sqlite"]).diagnosis
    assert diagnosis.time.collectives == 33
    assert diagnosis.time.matched_ratio == 1.0
    assert {finding.cause for finding in diagnosis.findings} == {"single_point.host"}
    assert "communication" not in {class_of(finding) for finding in diagnosis.findings}
    worst, *rest = diagnosis.findings
    assert (worst.ranks, worst.when) == ((1,), "burst")
    assert "process 145" in worst.summary
    assert [(finding.ranks, finding.cause) for finding in rest] in ([], [((0,), "single_point.host")])
    assert all((finding.lost_ns or 0) < (worst.lost_ns or 0) for finding in rest)


def test_the_peer_waits_as_long_as_the_ends_of_the_transfers_tell(strangers: Path) -> None:
    diagnosis = diagnose([strangers / f"{PAIR}.sqlite"]).diagnosis
    waits = waits_of(diagnosis)
    assert waits[0] == pytest.approx(10_900_000, rel=0.02)
    assert waits[1] == pytest.approx(2_500_000, rel=0.05)
    assert value_of(diagnosis.findings[0], "peers_wait_ns") == pytest.approx(10_900_000, rel=0.02)
