from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprankdiag.collectors.sglang_metrics import SglangMetrics
from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import LedgerAnswer

SCENARIOS = (
    "balanced", "count-skew", "length-skew", "single-slow-rank", "one-busy-seven-idle", "prefill-on-one-rank",
    "spec-decode", "tp16-dp8-default", "missing-rank", "one-rank-stale-snapshot", "health-check-only",
)  # fmt: skip


def read(path: Path) -> LedgerAnswer:
    (answer,) = SglangMetrics().parse(path.read_bytes(), str(path))
    return answer


def true_ranks(folder: Path, moment: str) -> dict[int, Mapping[str, Any]]:
    told = json.loads((folder / "ground_truth.json").read_text())["ranks"].values()
    return {rank["dp_rank"]: rank[moment] for rank in told if rank["attn_tp_rank"] == 0}


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("moment", ["t0", "t1"])
def test_counters_are_what_the_engine_did(fixtures: Path, scenario: str, moment: str) -> None:
    folder = fixtures / "sglang-0.5.23" / scenario
    answer = read(folder / f"metrics_{moment}.prom")
    truth = true_ranks(folder, moment)
    assert answer.ranks == tuple(sorted(truth))
    assert (answer.model, answer.role, answer.unlabelled) == ("deepseek-ai/DeepSeek-V3.2", "unified", False)
    is_counted = scenario != "health-check-only"
    for field, key, scale in (
        ("scheduled_tokens", "tokens_sum", 1.0),
        ("scheduled_pairs", "pairs_sum", 1.0),
        ("sync_wait_s", "sync_wait_sum", 1.0),
        ("sync_waits", "recorded_steps", 1.0),
    ):
        expected = [truth[rank][key] * scale * is_counted for rank in answer.ranks]
        np.testing.assert_allclose(answer.values[field], expected, rtol=1e-6, err_msg=field)


def test_copies_of_a_rank_are_not_added_up(fixtures: Path) -> None:
    folder = fixtures / "sglang-0.5.23" / "tp16-dp8-default"
    answer = read(folder / "metrics_t1.prom")
    assert answer.facts["copies_per_rank"] == 2
    assert answer.values["active_steps"].tolist() == [280.0] * 8
    assert answer.values["stages_s"].tolist() == pytest.approx([21.0] * 8)


def test_zeros_of_switches_that_are_off_are_told_apart_from_balance(fixtures: Path) -> None:
    off = read(fixtures / "sglang-0.5.23" / "flags-off" / "metrics_t1.prom")
    on = read(fixtures / "sglang-0.5.23" / "balanced" / "metrics_t1.prom")
    assert off.values["scheduled_tokens"].tolist() == [0.0] * 8
    assert (off.facts["has_dp_attention"], off.facts["dp_attention_steps_seen"]) == (True, False)
    assert (on.facts["has_dp_attention"], on.facts["dp_attention_steps_seen"]) == (True, True)


def test_a_rank_that_never_computed_a_prefill_computed_none(fixtures: Path) -> None:
    answer = read(fixtures / "sglang-0.5.23" / "prefill-on-one-rank" / "metrics_t1.prom")
    assert answer.values["prefill_tokens"].tolist() == [0, 688128, 0, 0, 0, 0, 0, 0]
    assert answer.values["tokens_beside_prefill"].tolist() == [2016, 688128, *[2016] * 6]


def test_idle_ranks_without_gauges_tell_none(fixtures: Path) -> None:
    answer = read(fixtures / "sglang-0.5.23" / "one-busy-seven-idle" / "metrics_t1.prom")
    assert np.isnan(answer.values["running_requests"]).tolist() == [True, True, False, True, True, True, True, True]
    assert answer.values["idle_steps"][2] == 0
    assert (np.delete(answer.values["idle_steps"], 2) > 0).all()


def test_tokens_of_each_gpu_are_differences_of_buckets(fixtures: Path) -> None:
    folder = fixtures / "sglang-0.5.23" / "expert-skew"
    answer = read(folder / "metrics_eplb.prom")
    truth = json.loads((folder / "ground_truth.json").read_text())
    assert answer.expert_tokens is not None
    expected = np.array(truth["per_gpu_tokens_per_layer_per_pass"]) * truth["passes"]
    np.testing.assert_allclose(answer.expert_tokens, expected, rtol=0.005)  # the engine shares out whole tokens


@pytest.mark.parametrize("release", ["0.5.9", "0.5.12", "0.5.18"])
def test_releases_without_the_family_tell_the_rest(fixtures: Path, release: str) -> None:
    answer = read(fixtures / f"sglang-{release}" / "count-skew" / "metrics_t1.prom")
    assert "scheduled_tokens" not in answer.values
    assert answer.values["running_requests"].tolist() == [24, 24, 24, 80, 24, 24, 24, 24]
    assert answer.values["decode_tokens"].argmax() == 3
    assert answer.values["forward_s"].shape == (8,)


def test_a_load_answer_is_refused(fixtures: Path) -> None:
    path = fixtures / "sglang-0.5.23" / "count-skew" / "v1_loads_t1.prom"
    with pytest.raises(InputError, match="answer of /v1/loads"):
        read(path)
