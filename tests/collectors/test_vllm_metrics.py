from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.collectors.vllm_metrics import VllmMetrics
from dprankdiag.model.ledgers import LedgerAnswer

SCENARIOS = ("balanced", "balanced-api8", "hot-rank", "kv-skew", "half-idle", "moe-slow-gpu", "dense-slow-gpu")


def read(path: Path) -> LedgerAnswer:
    (answer,) = VllmMetrics().parse(path.read_bytes(), str(path))
    return answer


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("scrape", [1, 2])
def test_numbers_are_what_the_engines_did(fixtures: Path, scenario: str, scrape: int) -> None:
    folder = fixtures / "vllm-0.33.0" / scenario
    answer = read(folder / f"scrape{scrape}.prom")
    truth = json.loads((folder / "ground_truth.json").read_text())["scrapes"][scrape - 1]["engines"]
    assert answer.ranks == tuple(range(8))
    assert answer.values["running_requests"].tolist() == [one["running"] for one in truth]
    assert answer.values["waiting_requests"].tolist() == [one["waiting"] for one in truth]
    np.testing.assert_allclose(answer.values["kv_usage_ratio"], [one["kv_cache_usage"] for one in truth], atol=1e-6)
    assert answer.values["decode_tokens"].tolist() == [one["generated_tokens"] for one in truth]
    assert answer.values["capacity_tokens"].tolist() == [131072.0] * 8


def test_several_api_servers_are_told(fixtures: Path) -> None:
    assert read(fixtures / "vllm-0.33.0" / "balanced-api8" / "scrape2.prom").facts["multiprocess"] is True
    assert read(fixtures / "vllm-0.33.0" / "balanced" / "scrape2.prom").facts["multiprocess"] is False


def test_ports_of_external_balancing_show_one_engine_each(fixtures: Path) -> None:
    folder = fixtures / "vllm-0.33.0" / "hot-rank-external-lb"
    together = read(fixtures / "vllm-0.33.0" / "hot-rank" / "scrape2.prom")
    for rank in range(8):
        alone = read(folder / f"rank{rank}.scrape2.prom")
        assert alone.ranks == (rank,)
        for name in ("running_requests", "decode_tokens", "kv_usage_ratio", "finished_requests", "token_gap_s"):
            assert alone.values[name][0] == pytest.approx(together.values[name][rank])
