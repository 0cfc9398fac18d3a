"""Turn the loads of single ranks, whoever told them, into one answer.

A load is a nested record (`/v1/loads`, shared memory) or comes flat (its Prometheus format). Nested ones are flattened
to the names that the Prometheus format gives, which are the rows of `engine_series.toml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dprankdiag.catalog.engine_series import SeriesRow, load_series
from dprankdiag.collectors.base import MOST_NUMBER
from dprankdiag.model.ledgers import FloatArray, Role

SECTIONS = {
    "memory": "memory_",
    "speculative": "spec_",
    "lora": "lora_",
    "disaggregation": "disagg_",
    "queues": "queues_",
    "decode_moments": "decode_moments_",
}
"""Section of a load → prefix of its leaves in the Prometheus format (`decode_moments` has none there)."""

MODES: Mapping[Any, Role] = {"null": "unified", "prefill": "prefill", "decode": "decode"}
MUTE: Mapping[Role, frozenset[str]] = {
    "unified": frozenset(
        {
            "load_retracted_requests",
            "load_prealloc_requests",
            "load_transfer_requests",
            "load_bootstrap_requests",
            "load_inflight_requests",
        }
    ),
    "prefill": frozenset(
        {"load_running_requests", "load_retracted_requests", "load_prealloc_requests", "load_transfer_requests"}
    ),
    "decode": frozenset({"load_waiting_tokens", "load_bootstrap_requests", "load_inflight_requests"}),
}
"""Role → fields that its load answers always show as 0. Source: sglang 0.5.23."""

Leaves = Mapping[str, float]


def flatten_load(load: Mapping[str, Any]) -> dict[str, float]:
    """Flatten a load to its numbers, under the names of the Prometheus format."""
    leaves: dict[str, float] = {}
    for name, value in load.items():
        if name in SECTIONS and isinstance(value, Mapping | list):
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            leaves.update(
                {f"{SECTIONS[name]}{key}": number for key, item in items if (number := _read_number(item)) is not None}
            )
        elif (number := _read_number(value)) is not None:
            leaves[name] = number
    return leaves


def read_role(load: Mapping[str, Any]) -> Role | None:
    """Read the engine's role; None where the answer does not say."""
    section = load.get("disaggregation")
    return MODES.get(section.get("mode")) if isinstance(section, Mapping) else None


def read_loads(by_rank: Mapping[int, Leaves], role: Role | None) -> tuple[dict[str, FloatArray], tuple[str, ...]]:
    """Read the fields of the ledger, ranks ascending; and what was passed over.

    A slot that was made and never written shows zeros and the time 0: its rank tells nothing.
    """
    ranks = sorted(by_rank)
    silent = [rank for rank in ranks if by_rank[rank].get("timestamp") == 0]
    columns = [{} if rank in silent else by_rank[rank] for rank in ranks]
    values = _read_columns(load_series("sglang_loads"), columns)
    warnings = (f"rank {', '.join(map(str, silent))} has published no load yet",) if silent else ()
    muted = MUTE[role] if role else frozenset()
    return {name: told for name, told in values.items() if name not in muted}, warnings


def _read_columns(rows: Iterable[SeriesRow], columns: list[Leaves]) -> dict[str, FloatArray]:
    values: dict[str, FloatArray] = {}
    for row in rows:
        told = np.array([_read_leaf(row, leaves) for leaves in columns])
        if not np.isnan(told).all():
            earlier = values.get(row.field)
            values[row.field] = told if earlier is None else np.where(np.isnan(earlier), told, earlier)
    return values


def _read_leaf(row: SeriesRow, leaves: Leaves) -> float:
    value = next((leaves[name] for name in row.names if name in leaves), np.nan)
    return np.nan if row.zero_is_absent and value == 0 else value * row.scale


def _read_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= MOST_NUMBER else None
