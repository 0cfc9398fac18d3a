from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.collectors.vllm_metrics import VllmMetrics
from dprankdiag.model.ledgers import LedgerAnswer

SCENARIOS = ("balanced", "balanced-api8", "hot-rank", "kv-skew", "half-idle", "moe-slow-gpu")


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


def test_a_dense_engine_with_a_slow_gpu_has_longer_gaps_between_tokens(fixtures: Path) -> None:
    folder = fixtures / "vllm-0.33.0" / "dense-slow-gpu"
    first, second = read(folder / "scrape1.prom"), read(folder / "scrape2.prom")
    spent = second.values["token_gap_s"] - first.values["token_gap_s"]
    gap_ms = 1000 * spent / (second.values["token_gaps"] - first.values["token_gaps"])
    assert gap_ms[6] == pytest.approx(22.35, abs=0.01)
    assert np.delete(gap_ms, 6) == pytest.approx(13.46, abs=0.1)


PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:gpu_prefix_cache_queries_total counter
vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 90.0
# TYPE vllm:time_per_output_token_seconds histogram
vllm:time_per_output_token_seconds_sum{engine="0",model_name="m"} 5.5
vllm:time_per_output_token_seconds_count{engine="0",model_name="m"} 100.0
"""


def test_names_of_old_releases_are_known() -> None:
    (answer,) = VllmMetrics().parse(PAGE.encode(), "x")
    told = {name: float(values[0]) for name, values in answer.values.items()}
    assert told == {
        "running_requests": 3.0, "kv_usage_ratio": 0.25, "cache_query_tokens": 90.0, "token_gap_s": 5.5,
        "token_gaps": 100.0,
    }  # fmt: skip


def test_new_names_win_over_old_ones() -> None:
    page = PAGE + 'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\n'
    (answer,) = VllmMetrics().parse(page.encode(), "x")
    assert answer.values["kv_usage_ratio"].tolist() == [0.5]


@pytest.mark.parametrize("prefix", ["vllm_", "ray_vllm_"])
def test_rays_spelling_is_understood_and_replicas_are_told_apart(prefix: str) -> None:
    page = "".join(
        f'{prefix}num_requests_running{{ReplicaId="{replica}",engine="0",model_name="m"}} {count}\n'
        for replica, count in (("a", 1), ("b", 2))
    )
    answers = VllmMetrics().parse(page.encode(), "x")
    assert [answer.facts["replica"] for answer in answers] == ["a", "b"]
    assert [answer.values["running_requests"].tolist() for answer in answers] == [[1.0], [2.0]]
    assert answers[0].facts["spelling"] == "underscore"


def test_engines_without_numbers_are_unlabelled() -> None:
    (answer,) = VllmMetrics().parse(b'vllm:num_requests_running{model_name="m"} 3.0\n', "x")
    assert (answer.unlabelled, answer.ranks, dict(answer.values)) == (True, (), {})


def test_pages_of_two_ports_do_not_mix_what_they_say_of_the_pool() -> None:
    collector = VllmMetrics()

    def page(tokens: int) -> bytes:
        config = f'vllm:cache_config_info{{engine="0",kv_cache_size_tokens="{tokens}"}} 1.0\n'
        return (PAGE + config).encode()

    for tokens in (100, 200, 100):
        (answer,) = collector.parse(page(tokens), "x")
        assert answer.values["capacity_tokens"].tolist() == [tokens]
