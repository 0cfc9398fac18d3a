"""Read what vLLM tells of itself: `/version`, `/load`, and, in development mode, `/server_info`.

Source: vllm 0.33.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dprankdiag.collectors.decoding import decode_json
from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import Fact, LedgerAnswer

PARALLEL = (
    "all2all_backend", "data_parallel_backend", "data_parallel_external_lb", "data_parallel_hybrid_lb",
    "data_parallel_rank", "data_parallel_size", "data_parallel_size_local", "dp_sync_interval", "enable_eplb",
    "enable_expert_parallel", "pipeline_parallel_size", "tensor_parallel_size",
)  # fmt: skip
"""Keys of the parallel configuration that become facts under their own names."""


class VllmVersion:
    """Collects `/version` of vLLM."""

    interface = "vllm-version"
    path = "/version"

    def parse(self, body: bytes, where: str, taken_ns: int | None = None) -> tuple[LedgerAnswer, ...]:
        """Turn an answer into a fact; see `Collector.parse`."""
        told = decode_json(body, where)
        if not isinstance(told, dict) or set(told) != {"version"} or not isinstance(told["version"], str):
            raise InputError("expected an answer of vLLM's /version", where=where)
        return (_answer(self.interface, where, taken_ns, {"version": told["version"]}),)


class VllmLoad:
    """Collects `/load` of vLLM: requests of one API server, 0 for ever unless it is told to count."""

    interface = "vllm-load"
    path = "/load"

    def parse(self, body: bytes, where: str, taken_ns: int | None = None) -> tuple[LedgerAnswer, ...]:
        """Turn an answer into a fact; see `Collector.parse`."""
        told = decode_json(body, where)
        load = told.get("server_load") if isinstance(told, dict) else None
        if not isinstance(load, int):
            raise InputError("expected an answer of vLLM's /load", where=where)
        return (_answer(self.interface, where, taken_ns, {"server_load": load}),)


class VllmServerInfo:
    """Collects `/server_info` of vLLM."""

    interface = "vllm-server-info"
    path = "/server_info?config_format=json"

    def parse(self, body: bytes, where: str, taken_ns: int | None = None) -> tuple[LedgerAnswer, ...]:
        """Turn an answer into facts; see `Collector.parse`."""
        told = decode_json(body, where)
        config = told.get("vllm_config") if isinstance(told, dict) else None
        if not isinstance(config, dict):
            raise InputError("expected an answer of vLLM's /server_info in JSON", where=where)
        return (_answer(self.interface, where, taken_ns, _read_config(config)),)


def _read_config(config: Mapping[str, Any]) -> dict[str, Fact]:
    parallel = config.get("parallel_config")
    told = parallel if isinstance(parallel, dict) else {}
    return {key: told[key] for key in PARALLEL if isinstance(told.get(key), str | int | float | bool)}


def _answer(interface: str, where: str, taken_ns: int | None, facts: Mapping[str, Fact]) -> LedgerAnswer:
    return LedgerAnswer(interface=interface, where=where, engine="vllm", taken_ns=taken_ns, facts=facts)
