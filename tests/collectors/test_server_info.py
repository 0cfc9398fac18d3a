"""What engines tell of their configuration, and what is never kept of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.collectors.sglang_server_info import SglangServerInfo
from dprankdiag.collectors.vllm_info import VllmLoad, VllmServerInfo, VllmVersion
from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import LedgerAnswer

SECRETS = {
    "api_key": "k-12345", "admin_api_key": "k-12345", "launch_command": "serve --api-key k-12345",
    "model_path": "/home/k-12345/m", "dist_init_addr": "k-12345", "log_requests_target": "k-12345",
}  # fmt: skip


def read(told: dict[str, Any]) -> LedgerAnswer:
    (answer,) = SglangServerInfo().parse(json.dumps(told).encode(), "x")
    return answer


@pytest.mark.parametrize("scenario", ["balanced", "spec-decode", "tp16-dp8-default"])
def test_ranks_are_replicas_times_attention_ranks(fixtures: Path, scenario: str) -> None:
    path = fixtures / "sglang-0.5.23" / scenario / "server_info.json"
    (answer,) = SglangServerInfo().parse(path.read_bytes(), str(path))
    assert (answer.facts["dp_size"], answer.facts["num_dp_ranks"]) == (1, 8)
    assert (answer.facts["version"], answer.facts["load_balance_method"]) == ("0.5.23", "round_robin")
    assert (answer.model, answer.role) == ("deepseek-ai/DeepSeek-V3.2", "unified")
    assert answer.facts["internal_states"] == 8


def test_older_releases_tell_one_size() -> None:
    assert read({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}).facts["num_dp_ranks"] == 8


def test_secrets_are_not_kept() -> None:
    answer = read({"tp_size": 8, "dp_size": 8, "internal_states": [SECRETS], **SECRETS})
    assert "k-12345" not in repr(answer)


def test_nothing_is_kept_of_odd_types() -> None:
    facts = read({"tp_size": [8], "dp_size": None, "version": {"a": 1}, "kv_events": [], "internal_states": 3}).facts
    assert facts == {}


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"vllm_config": {}}', b"<html>"])
def test_other_answers_are_refused(body: bytes) -> None:
    with pytest.raises(InputError):
        SglangServerInfo().parse(body, "x")


def test_vllm_tells_version_and_load() -> None:
    (version,) = VllmVersion().parse(b'{"version":"0.33.0"}', "x")
    (load,) = VllmLoad().parse(b'{"server_load":3}', "x")
    assert (version.facts, load.facts) == ({"version": "0.33.0"}, {"server_load": 3})


def test_vllm_tells_its_parallel_configuration() -> None:
    parallel = {"data_parallel_size": 8, "enable_expert_parallel": True, "all2all_backend": None, "master": "secret"}
    (answer,) = VllmServerInfo().parse(json.dumps({"vllm_config": {"parallel_config": parallel}}).encode(), "x")
    assert answer.facts == {"data_parallel_size": 8, "enable_expert_parallel": True}


@pytest.mark.parametrize("collector", [VllmVersion(), VllmLoad(), VllmServerInfo()])
@pytest.mark.parametrize("body", [b"[]", b"{}", b"nothing", b'{"version": 5}', b'{"tp_size": 8, "dp_size": 1}'])
def test_other_answers_are_not_vllms(collector: VllmVersion | VllmLoad | VllmServerInfo, body: bytes) -> None:
    with pytest.raises(InputError):
        collector.parse(body, "x")
