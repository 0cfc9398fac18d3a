"""Read SGLang's `/server_info`: how the engine is configured, key by key from a list; never a token, key or path.

The answer repeats all server arguments, API keys among them, so that nothing outside the list is kept or shown.

Source: sglang 0.5.23; `/get_server_info` until 0.5.5 has the same shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dprankdiag.collectors.decoding import decode_json
from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import Fact, LedgerAnswer, Role

KEPT = (
    "attn_cp_size", "attn_dp_size", "chunked_prefill_size", "decode_log_interval", "deepep_mode", "disable_cuda_graph",
    "disable_overlap_schedule", "disable_radix_cache", "disaggregation_mode", "dp_size", "dwdp_size",
    "enable_dp_attention", "enable_dp_attention_local_control_broadcast", "enable_eplb",
    "enable_expert_distribution_metrics", "enable_forward_pass_metrics", "enable_layerwise_nvtx_marker",
    "enable_metrics", "enable_metrics_for_all_schedulers", "enable_priority_scheduling", "enable_two_batch_overlap",
    "ep_num_redundant_experts", "ep_size", "eplb_rebalance_num_iterations", "expert_balancedness_report_mode",
    "expert_distribution_recorder_mode", "frontend", "load_balance_method", "load_snapshot_publish_interval",
    "max_running_requests", "max_total_num_tokens", "moe_a2a_backend", "moe_dense_tp_size", "moe_dp_size", "nnodes",
    "node_rank", "page_size", "pp_size", "prefill_decode_interval", "schedule_policy", "scheduler_recv_interval",
    "served_model_name", "speculative_algorithm", "speculative_num_draft_tokens", "tokenizer_worker_num", "tp_size",
    "version",
)  # fmt: skip
"""Keys that become facts under their own names."""

STATES = ("effective_max_running_requests_per_dp", "world_size")
"""Keys of a rank's internal state that hold for the whole engine."""

ROLES: Mapping[Any, Role] = {"null": "unified", "prefill": "prefill", "decode": "decode"}


class SglangServerInfo:
    """Collects `/server_info` of SGLang."""

    interface = "sglang-server-info"
    path = "/server_info"

    def parse(self, body: bytes, where: str, taken_ns: int | None = None) -> tuple[LedgerAnswer, ...]:
        """Turn an answer into facts; see `Collector.parse`."""
        told = decode_json(body, where)
        if not isinstance(told, dict) or "tp_size" not in told or "dp_size" not in told:
            raise InputError("expected an answer of SGLang's /server_info", where=where)
        facts = _keep(told, KEPT)
        told_states = told.get("internal_states")
        states = [state for state in told_states if isinstance(state, dict)] if isinstance(told_states, list) else []
        for state in states[:1]:
            facts.update(_keep(state, STATES))
        facts.update(_keep_publishers(told))
        ranks = count_dp_ranks(told)
        if ranks is not None:
            facts["num_dp_ranks"] = ranks
        if states:
            facts["internal_states"] = len(states)
        model = facts.get("served_model_name")
        return (
            LedgerAnswer(
                interface=self.interface,
                where=where,
                engine="sglang",
                model=model if isinstance(model, str) else None,
                role=ROLES.get(told.get("disaggregation_mode")),
                taken_ns=taken_ns,
                facts=facts,
            ),
        )


def count_dp_ranks(told: Mapping[str, Any]) -> int | None:
    """Count the ranks that place requests; None where the answer does not say.

    Releases from 0.5.22 on tell independent replicas (`dp_size`) and attention ranks inside one (`attn_dp_size`); with
    the old spelling `--dp-size 8 --enable-dp-attention` they tell 1 and 8.
    """
    sizes = [told.get("dp_size"), told.get("attn_dp_size", 1)]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    return int(sizes[0]) * int(sizes[1])


def _keep(told: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Fact]:
    return {key: told[key] for key in keys if isinstance(told.get(key), str | int | float | bool)}


def _keep_publishers(told: Mapping[str, Any]) -> dict[str, Fact]:
    """Keep where load publishers listen: rank r at the base port + r."""
    events = told.get("kv_events")
    if not isinstance(events, dict):
        return {}
    port = events.get("load_endpoint_port_base")
    return {"load_endpoint_port_base": port} if isinstance(port, int) else {}
