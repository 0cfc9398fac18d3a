"""Answers of a simulated SGLang deployment to `/v1/loads` and `/get_load`, in the shape of several releases.

Source: answers written by SGLang 0.5.9, 0.5.12, 0.5.18 and 0.5.23; which release tells what is read in their packages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from dprankdiag.harness.ledger_counts import QUEUES
from dprankdiag.harness.ledger_engine import LedgerState
from dprankdiag.harness.ledger_page import Deployed
from dprankdiag.harness.ledger_sglang import parse_version

SECTIONS = {
    "core": "",
    "memory": "memory",
    "spec": "speculative",
    "lora": "lora",
    "disagg": "disaggregation",
    "queues": "queues",
    "all": "",
}
"""Name of a section in a request → its key in a load; core is always there."""

ALL = ("all",)

_MODES = {"unified": "null", "prefill": "prefill", "decode": "decode"}
_SHORT = {"speculative": "spec", "disaggregation": "disagg"}


def write_loads(
    world: Deployed, state: LedgerState, sections: Sequence[str] = ALL, dp_rank: int | None = None
) -> bytes:
    """Write the load answer of an engine.

    Args:
        sections: keys of SECTIONS.
        dp_rank: only this rank; of one that does not exist the list is empty.
    """
    release = parse_version(world.version)
    now = datetime.fromtimestamp(round(state.epoch_s + state.seconds), UTC)
    answer: dict[str, Any] = {"timestamp": now.isoformat(), "version": world.version}
    if release >= (0, 5, 17):
        answer |= {"accelerator": None, "num_accelerators": 1}
    if release < (0, 5, 13):
        answer["dp_rank_count"] = state.ranks
    answer["loads"] = loads = list_loads(world, state, sections, dp_rank)
    if release < (0, 5, 13):
        answer["aggregate"] = _sum_up(loads, release)
    return _encode(answer)


def write_loads_page(
    world: Deployed, state: LedgerState, sections: Sequence[str] = ALL, dp_rank: int | None = None
) -> bytes:
    """Write the same as text: a gauge for each number, whose only label is the rank."""
    leaves: dict[str, list[tuple[int, Any]]] = {}
    for load in list_loads(world, state, sections, dp_rank):
        for name, value in _list_leaves(load):
            leaves.setdefault(name, []).append((load["dp_rank"], value))
    has_help = parse_version(world.version) < (0, 5, 13)
    lines = []
    for name, told in leaves.items():
        if has_help:
            lines.append(f"# HELP sglang_{name} {name.replace('_', ' ')}")
        lines.append(f"# TYPE sglang_{name} gauge")
        lines += [f'sglang_{name}{{dp_rank="{rank}"}} {value}' for rank, value in told]
    return ("\n".join(lines) + "\n").encode()


def write_get_load(world: Deployed, state: LedgerState) -> bytes:
    """Write the answer of the interface that came before, of releases 0.5.3 to 0.5.20."""
    release = parse_version(world.version)
    rows = []
    for load in list_loads(world, state):
        running, waiting = load["num_running_reqs"], load["num_waiting_reqs"]
        row = {"dp_rank": load["dp_rank"], "num_reqs": running + waiting, "num_waiting_reqs": waiting}
        row["num_tokens"] = load.get("num_total_tokens", load["num_used_tokens"])
        if release >= (0, 5, 13):
            row["num_pending_tokens"] = load["num_waiting_uncached_tokens"]
        if release >= (0, 5, 7):
            row["ts_tic"] = state.seconds
        rows.append(row)
    return _encode(rows)


def list_loads(
    world: Deployed, state: LedgerState, sections: Sequence[str] = ALL, dp_rank: int | None = None
) -> list[dict[str, Any]]:
    """List the loads of all ranks, or of one."""
    release = parse_version(world.version)
    ranks = [rank for rank in range(state.ranks) if dp_rank in (None, rank)]
    away = set() if "all" in sections else set(SECTIONS.values()) - {SECTIONS.get(name, "") for name in sections}
    loads = [_describe_load(world, state, rank, release) for rank in ranks]
    return [{key: value for key, value in load.items() if key not in away} for load in loads]


def _describe_load(world: Deployed, state: LedgerState, rank: int, release: tuple[int, ...]) -> dict[str, Any]:
    published, gauges = state.shown.snapshot, state.shown.gauges
    live = release < (0, 5, 13)  # asked of each scheduler at the moment
    running = int(state.running[rank] if live else published["running"][rank])
    waiting = int(state.waiting[rank] if live else published["waiting"][rank])
    used = int(state.used[rank] if live else published["used"][rank])
    capacity = int(state.capacity[rank])
    load: dict[str, Any] = {}
    if release >= (0, 5, 16):
        load["timestamp"] = state.epoch_s + float(published["stamp_s"][rank])
    load |= {"dp_rank": rank, "num_running_reqs": running, "num_waiting_reqs": waiting}
    if not live:
        load["num_waiting_uncached_tokens"] = int(published["waiting_tokens"][rank])
    load["num_used_tokens"] = used
    if release >= (0, 5, 11):
        load["num_total_tokens"] = used if live else int(published["total"][rank])
    if release >= (0, 5, 17):
        load["num_active_tokens"] = load["num_total_tokens"]
    if release >= (0, 5, 20):
        load["num_prealloc_ready_tokens"] = 0
    load |= {
        "max_total_num_tokens": capacity,
        "max_running_requests": world.running_limit,
        "token_usage": round(used / capacity, 4),
        "gen_throughput": round(_told(gauges["throughput"][rank]), 2),
        "cache_hit_rate": round(_told(gauges["hit_rate"][rank]), 4),
        "utilization": 0.0,
    }
    if release >= (0, 5, 17):
        moments = state.shown.moments[rank]
        load |= {
            "total_prefill_uncached_tokens": int(published["computed"][rank]),
            "total_prefill_busy_us": int(published["prefill_busy_s"][rank] * 1e6),
            "decode_moments": [float(part) for part in moments] if moments[0] else None,
        }
    load["memory"] = {"weight_gb": 60.0, "kv_cache_gb": 30.0, "graph_gb": 2.0, "token_capacity": capacity}
    if world.accept_tokens > 1:
        accept = float(state.accept[rank])
        load["speculative"] = {"accept_length": accept, "accept_rate": (accept - 1) / 3}
    queues = {name: int(told[rank]) for name, told in (state.queues if live else published).items() if name in QUEUES}
    load |= _describe_queues(world, waiting, queues, release)
    return load | ({"num_total_reqs": running + waiting} if live else {})


def _describe_queues(
    world: Deployed, waiting: int, told: Mapping[str, int], release: tuple[int, ...]
) -> dict[str, Any]:
    """Describe the queues; those of the role are parts of what waits, but for KV on its way to another engine."""
    first = "prefill_bootstrap_queue_reqs" if release >= (0, 5, 12) else "prefill_prealloc_queue_reqs"
    counts = {name: told.get(name, 0) for name in QUEUES}
    elsewhere = sum(count for name, count in counts.items() if name != "inflight")
    queues = {"waiting": waiting - elsewhere, "grammar": 0, "paused": 0, "retracted": 0}
    if release >= (0, 5, 17):
        queues["prealloc_ready"] = 0
    return {
        "disaggregation": {
            "mode": _MODES[world.role],
            first: counts["bootstrap"],
            "prefill_inflight_queue_reqs": counts["inflight"],
            "decode_prealloc_queue_reqs": counts["prealloc"],
            "decode_transfer_queue_reqs": counts["transfer"],
            "decode_retracted_queue_reqs": counts["retracted"],
            "kv_transfer_speed_gb_s": 0.0,
            "kv_transfer_latency_ms": 0.0,
        },
        "queues": queues,
    }


def _told(value: Any) -> float:
    return 0.0 if np.isnan(value) else float(value)


def _sum_up(loads: Sequence[dict[str, Any]], release: tuple[int, ...]) -> dict[str, Any]:
    """Sum up over the ranks, as releases before 0.5.13 do."""

    def total(name: str) -> Any:
        return sum(load[name] for load in loads)

    number = max(len(loads), 1)
    summed = {
        "total_running_reqs": total("num_running_reqs"),
        "total_waiting_reqs": total("num_waiting_reqs"),
        "total_reqs": total("num_total_reqs"),
    }
    if release >= (0, 5, 11):
        summed |= {"total_used_tokens": total("num_used_tokens"), "total_tokens": total("num_total_tokens")}
    return summed | {
        "avg_token_usage": round(total("token_usage") / number, 4),
        "avg_throughput": round(total("gen_throughput") / number, 2),
        "avg_utilization": round(total("utilization") / number, 4),
    }


def _list_leaves(load: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """List the numbers of a load with those of its sections, under the names of the page."""
    for name, value in load.items():
        if isinstance(value, dict):
            for key, inner in value.items():
                if isinstance(inner, int | float):
                    yield f"{_SHORT.get(name, name)}_{key}", inner
        elif isinstance(value, int | float) and name not in ("dp_rank", "num_total_reqs"):
            yield name, value


def _encode(answer: Any) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()
