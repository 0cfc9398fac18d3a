"""Torch traces by others: what they cannot carry is said, and nobody is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprankdiag.pipelines.diagnose import diagnose

ALONE = (
    "hta-nccl-args-world2-rank0",
    "hta-sampled-world128-rank0",
    "tracelens-sglang-decode",
    "tracelens-vllm-prefilldecode-piecewise",
)


def test_two_of_many_ranks_name_nobody(fixtures: Path) -> None:
    paths = [fixtures / "real" / "torch" / f"hta-sampled-world128-rank{rank}.json.gz" for rank in (0, 1)]
    diagnosis = diagnose(paths).diagnosis
    assert (diagnosis.status, diagnosis.findings) == ("inconclusive", ())
    assert "126 of 128 ranks are not in the input" in diagnosis.headline
    assert diagnosis.lost.total_ns is None
    assert [rank.rank for rank in diagnosis.ranks] == [0, 1]


@pytest.mark.parametrize("name", ALONE)
def test_one_rank_alone_is_told_as_such(fixtures: Path, name: str) -> None:
    diagnosis = diagnose([fixtures / "real" / "torch" / f"{name}.json.gz"]).diagnosis
    assert (diagnosis.status, diagnosis.findings) == ("inconclusive", ())
    assert diagnosis.notes
    assert {item.cause for item in diagnosis.abstentions} >= {"single_point.unknown", "load.unknown"}
    assert all(item.reason and item.get_it_with for item in diagnosis.abstentions if item.cause.endswith("unknown"))
