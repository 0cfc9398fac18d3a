"""Read the switches that checks ask for out of what an engine says of its configuration, and nothing else of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from dprankdiag.errors import DamagedInput
from dprankdiag.model.ledgers import Fact

ALWAYS = (
    "version",
    "served_model_name",
    "dp_size",
    "attn_dp_size",
    "enable_dp_attention",
    "tp_size",
    "pp_size",
    "nnodes",
    "data_parallel_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
)
"""Switches that say what the engine is, whatever is checked."""


def read_switches(body: bytes, wanted: Collection[str]) -> dict[str, Fact]:
    """Read named switches of a configuration in JSON, at whatever depth; the outermost of a name is taken.

    A configuration holds keys and passwords: what is not asked for by name is not looked at.

    Raises:
        DamagedInput: it is no JSON object.
    """
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DamagedInput(f"expected JSON ({type(error).__name__})") from error
    if not isinstance(told, dict):
        raise DamagedInput("expected a JSON object")
    found: dict[str, Fact] = {}
    level: list[dict[str, Any]] = [told]
    while level:
        for one in level:
            for name, value in one.items():
                if (name in wanted or name in ALWAYS) and isinstance(value, str | int | float | bool):
                    found.setdefault(name, value)
        level = [value for one in level for value in one.values() if isinstance(value, dict)]
    return found
