"""Pages of a simulated vLLM deployment: one for all engines, or one an engine behind an external balancer.

Source: pages written by vLLM 0.33.0's own metrics code, with one and with eight API servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dprankdiag.harness.events import Array
from dprankdiag.harness.ledger_engine import LedgerState
from dprankdiag.harness.ledger_page import Deployed, Labels, Page

SPARSE_MODEL = "lab/sparse-moe-2"
DENSE_MODEL = "lab/dense-8b"

_ITERATION_EDGES = (1.0, *(float(2**power) for power in range(3, 15)))
_FIRST_TOKEN_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_GAP_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0
)  # fmt: skip
_BLOCK_TOKENS = 16
_DUPLICATED_SHARE = 0.985


def write_metrics(world: Deployed, state: LedgerState, engines: Sequence[int]) -> bytes:
    """Write the page of a port, which shows some of the engines."""
    return _Writer(world, state, engines).write()


class _Writer:
    """One page in the making."""

    def __init__(self, world: Deployed, state: LedgerState, engines: Sequence[int]) -> None:
        self._page = Page()
        self._world, self._state, self._engines = world, state, engines
        self._model = SPARSE_MODEL if world.lockstep else DENSE_MODEL
        self._several = world.api_servers > 1

    def write(self) -> bytes:
        """Write all families."""
        counts = self._state.counts.by_rank
        nothing = np.zeros(self._state.ranks)
        self._write_gauges(nothing)
        for name in ("estimated_flops_per_gpu", "estimated_read_bytes_per_gpu", "estimated_write_bytes_per_gpu"):
            self._count(name, nothing)
        self._count("prefix_cache_queries", counts["looked_up"])
        self._count("prefix_cache_hits", counts["found"])
        self._count("external_prefix_cache_queries", nothing)
        self._count("external_prefix_cache_hits", nothing)
        self._count("num_preemptions", counts["retracted"])
        self._count("prompt_tokens", counts["prompt_seen"])
        computed = counts["prompt_seen"] - counts["prompt_found"]
        sources = {"local_compute": computed, "local_cache_hit": counts["prompt_found"]}
        self._count_by("prompt_tokens_by_source", "source", {**sources, "external_kv_transfer": nothing})
        self._count("prompt_tokens_cached", counts["prompt_found"])
        self._count("generation_tokens", counts["generated"] + counts["firsts"])
        reasons = dict.fromkeys(("stop", "length", "abort", "error", "repetition"), nothing)
        self._count_by("request_success", "finished_reason", {**reasons, "length": counts["done"]})
        copies = self._world.api_servers * _DUPLICATED_SHARE if self._several else 1.0
        iterations = np.floor(counts["iterations"] * copies)
        self._observe("iteration_tokens_total", _ITERATION_EDGES, iterations, counts["iteration_tokens"])
        self._observe("time_to_first_token_seconds", _FIRST_TOKEN_EDGES, counts["firsts"], counts["first_s"])
        self._observe("inter_token_latency_seconds", _GAP_EDGES, counts["gaps"], counts["gap_s"])
        self._write_config()
        return self._page.encode()

    def _labels(self, engine: int, **more: str) -> Labels:
        return {"engine": str(engine), "model_name": self._model, **more}

    def _each(self, values: Array, **more: str) -> Iterator[tuple[Labels, float]]:
        for engine in self._engines:
            yield self._labels(engine, **more), float(values[engine])

    def _write_gauges(self, nothing: Array) -> None:
        state, page = self._state, self._page
        page.family("vllm:num_requests_running", "gauge", self._each(state.running))
        page.family("vllm:num_requests_waiting", "gauge", self._each(state.waiting))
        reasons = {"capacity": state.waiting, "deferred": nothing}
        page.family("vllm:num_requests_waiting_by_reason", "gauge", [
            sample for reason, values in reasons.items() for sample in self._each(values, reason=reason)
        ])  # fmt: skip
        states = {"awake": nothing + 1, "weights_offloaded": nothing, "discard_all": nothing}
        page.family("vllm:engine_sleep_state", "gauge", [
            sample for name, values in states.items() for sample in self._each(values, sleep_state=name)
        ])  # fmt: skip
        page.family("vllm:kv_cache_usage_perc", "gauge", self._each(np.minimum(1.0, state.used / state.capacity)))

    def _count(self, name: str, values: Array) -> None:
        self._page.family(f"vllm:{name}_total", "counter", self._each(values))
        self._write_created(name, [self._labels(engine) for engine in self._engines])

    def _count_by(self, name: str, label: str, parts: dict[str, Array]) -> None:
        samples = [sample for part, values in parts.items() for sample in self._each(values, **{label: part})]
        self._page.family(f"vllm:{name}_total", "counter", samples)
        self._write_created(name, [labels for labels, _ in samples])

    def _observe(self, name: str, edges: tuple[float, ...], counts: Array, sums: Array) -> None:
        rows = [(self._labels(engine), float(counts[engine]), float(sums[engine])) for engine in self._engines]
        self._page.summed(f"vllm:{name}", edges, rows)
        self._write_created(name, [self._labels(engine) for engine in self._engines])

    def _write_created(self, name: str, labels: Sequence[Labels]) -> None:
        """Write when series began; several processes that share their numbers cannot tell."""
        if not self._several:
            self._page.family(f"vllm:{name}_created", "gauge", [(each, self._state.epoch_s) for each in labels])

    def _write_config(self) -> None:
        """Write the cache's configuration; its blocks are those of all engines of the process."""
        samples = []
        for engine in self._engines:
            tokens = int(self._state.capacity[engine])
            blocks = int(self._state.capacity[list(self._engines)].sum()) // _BLOCK_TOKENS
            shown = {
                "engine": str(engine),
                "block_size": str(_BLOCK_TOKENS),
                "enable_prefix_caching": "True",
                "kv_cache_size_tokens": str(tokens),
                "num_gpu_blocks": str(blocks),
            }
            samples.append((shown, 1.0))
        self._page.family("vllm:cache_config_info", "gauge", samples)
