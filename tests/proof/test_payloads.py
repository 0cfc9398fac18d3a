"""What engines told gives its verdict, also where the larger outside recordings are absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.command import analyze_here

VERDICTS = {
    "sglang-0.5.9/count-skew": [("load.requests", [3])],
    "sglang-0.5.12/count-skew": [("load.requests", [3])],
    "sglang-0.5.18/count-skew": [("load.requests", [3])],
    "sglang-0.5.23/count-skew": [("load.requests", [3])],
    "sglang-0.5.9/one-busy-seven-idle": [("load.idle", [2])],
    "sglang-0.5.23/one-rank-stale-snapshot": [("ledger.stale", [4])],
    "sglang-0.5.23/missing-rank": [],
    "sglang-0.5.23/measured-gloo-slow-rank": [("single_point.host", [6])],
    "sglang-0.5.23/expert-skew": [("structural.expert", [5])],
    "sglang-0.5.23/forward-pass-metrics": [],
    "vllm-0.33.0/hot-rank-external-lb": [("load.requests", [3])],
}


@pytest.mark.parametrize("scenario", VERDICTS)
def test_each_scenario_has_its_cause_and_rank(payloads: Path, scenario: str) -> None:
    said = analyze_here(payloads / scenario)
    assert [(item["cause"], item["ranks"]) for item in said["findings"]] == VERDICTS[scenario]


def test_a_load_that_is_uneven_is_a_warning(payloads: Path) -> None:
    for scenario, wanted in VERDICTS.items():
        if wanted and wanted[0][0].startswith("load."):
            assert [item["severity"] for item in analyze_here(payloads / scenario)["findings"]] == ["warning"], scenario


def test_a_rank_that_tells_nothing_is_said_to(payloads: Path) -> None:
    assert "rank 5 told nothing" in analyze_here(payloads / "sglang-0.5.23" / "missing-rank")["headline"]
