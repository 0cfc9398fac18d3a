"""Pages of a simulated SGLang deployment: `/metrics` in the shape of several releases.

Source: pages written by SGLang 0.5.9, 0.5.12, 0.5.18 and 0.5.23; which release tells what is read in their
packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dprankdiag.harness.events import Array
from dprankdiag.harness.ledger_counts import CACHED, COMPUTED, DECODED, GATHER_EDGES_S, RATIO_EDGES
from dprankdiag.harness.ledger_engine import LedgerState
from dprankdiag.harness.ledger_page import Deployed, Labels, Page

MODEL = "lab/sparse-moe-1"

_STAGES = {
    "other": None,
    "recv_requests": "control_s",
    "process_input_requests": None,
    "get_next_batch_to_run": "choose_s",
    "process_queue": None,
    "run_batch": "launch_s",
    "process_batch_result": "result_s",
    "sanity_check_cache": None,
    "idle": "idle_s",
}
_TOKEN_MODES = (("prefill_compute", COMPUTED), ("prefill_cache", CACHED), ("decode", DECODED))
_GAUGES = {
    "num_running_reqs": "running",
    "num_queue_reqs": "queued",
    "gen_throughput": "throughput",
    "cache_hit_rate": "hit_rate",
    "num_used_tokens": "used",
    "spec_accept_length": "accept",
}
_EMPTY_GAUGES = ("num_grammar_queue_reqs", "swa_token_usage", "mamba_usage", "utilization", "new_token_ratio")
_QUEUES = {
    "num_prefill_inflight_queue_reqs": "inflight",
    "num_decode_prealloc_queue_reqs": "prealloc",
    "num_decode_transfer_queue_reqs": "transfer",
}
_PAGE_TOKENS = 64
_QUEUE_EDGES = (
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, *map(float, range(1, 6)), *map(float, range(10, 21, 5)),
    *map(float, range(30, 101, 10)), *map(float, range(200, 1001, 100)), *map(float, range(1200, 2001, 200)),
    2500.0, 3000.0,
)  # fmt: skip


def parse_version(text: str) -> tuple[int, ...]:
    """Read a version's numbers."""
    return tuple(int(part) for part in text.split("."))


def write_metrics(world: Deployed, state: LedgerState, ranks: Sequence[int]) -> bytes:
    """Write the page of a host, which shows its own ranks."""
    writer = _Writer(world, state, ranks)
    writer.write_switched()
    writer.write_work()
    writer.write_gauges()
    if world.expert_counts and 0 in ranks:
        writer.write_experts()
    return writer.page.encode()


class _Writer:
    """One page in the making."""

    def __init__(self, world: Deployed, state: LedgerState, ranks: Sequence[int]) -> None:
        self.page = Page()
        self._world, self._state, self._ranks = world, state, ranks
        self._release = parse_version(world.version)

    def _labels(self, rank: int, copy: int = 0, **more: str) -> Labels:
        scheduler = str(rank * self._world.attention_tp + copy)
        return {
            "dp_rank": str(rank),
            "engine_type": self._world.role,
            "model_name": MODEL,
            "moe_ep_rank": scheduler,
            "pp_rank": "0",
            "tp_rank": scheduler,
            **more,
        }

    def _each(self, values: Array, seen: Array | None = None, **more: str) -> Iterator[tuple[Labels, float]]:
        for rank in self._ranks:
            if seen is None or seen[rank]:
                yield self._labels(rank, 0, **more), float(values[rank])

    def _all_schedulers(self, values: Array, copies: float | None, **more: str) -> Iterator[tuple[Labels, float]]:
        """Give a value a scheduler: of those beyond a rank's first the same, or a placeholder."""
        for rank in self._ranks:
            for copy in range(self._world.attention_tp):
                told = float(values[rank]) if copy == 0 or copies is None else copies
                yield self._labels(rank, copy, **more), told

    def write_switched(self) -> None:
        """Write what the attention switch and the scheduler's own clock count."""
        counts, page = self._state.counts.by_rank, self.page
        if self._release >= (0, 5, 22):
            on = float(self._world.dp_attention)
            for name, kinds in (("tokens", ("tokens", "lag_tokens")), ("pairs", ("pairs", "lag_pairs"))):
                samples = [
                    sample
                    for kind, key in zip(("scheduled", "imbalance"), kinds, strict=True)
                    for sample in self._all_schedulers(counts[key] * on, 0.0, kind=kind)
                ]
                page.family(f"sglang:dp_attention_{name}_total", "counter", samples)
            steps = [
                sample
                for rank_state, key in (("active", "own_steps"), ("idle", "kept_steps"))
                for sample in self._all_schedulers(counts[key] * on, 0.0, rank_state=rank_state)
            ]
            page.family("sglang:dp_attention_steps_total", "counter", steps)
            self._write_waits(on)
        if self._release >= (0, 5, 20):
            stages = [
                sample
                for category, counted in _STAGES.items()
                for sample in self._all_schedulers(
                    counts[counted] if counted else np.zeros(self._state.ranks), 0.0,
                    category=category, forward_overlap="none",
                )
            ]  # fmt: skip
            page.family("sglang:scheduler_stage_seconds_total", "counter", stages)
            page.family("sglang:scheduler_idle_seconds_total", "counter", self._all_schedulers(counts["idle_s"], None))
            cpu = self._all_schedulers(counts["cpu_s"], None)
            page.family("sglang:scheduler_process_cpu_seconds_total", "counter", cpu)

    def _write_waits(self, on: float) -> None:
        counts, ranks, copies = self._state.counts, self._ranks, self._world.attention_tp
        nothing = [0.0] * (len(GATHER_EDGES_S) + 1)
        waits = [
            (self._labels(rank, copy), *(
                (counts.gather_buckets[rank] * on, float(counts.by_rank["gather_s"][rank]) * on)
                if copy == 0 else (nothing, 0.0)
            ))
            for rank in ranks for copy in range(copies)
        ]  # fmt: skip
        self.page.histogram("sglang:dp_attention_sync_wait_seconds", GATHER_EDGES_S, waits)
        blank = [0.0] * (len(RATIO_EDGES) + 1)
        ratios = [
            (self._labels(rank, copy), *(
                (counts.ratio_buckets * on, counts.ratio_sum * on) if rank == copy == 0 else (blank, 0.0)
            ))
            for rank in ranks for copy in range(copies)
        ]  # fmt: skip
        self.page.histogram("sglang:dp_attention_token_imbalance_ratio", RATIO_EDGES, ratios)

    def write_work(self) -> None:
        """Write the counters of tokens, passes, GPU time, retractions and queueing."""
        counts, page, together = self._state.counts.by_rank, self.page, self._state.counts.together
        tokens = {"prefill_compute": "computed", "prefill_cache": "cached", "decode": "generated"}
        page.family("sglang:realtime_tokens_total", "counter", [
            sample for mode, key in tokens.items()
            for sample in self._each(counts[key], counts[key] > 0, mode=mode)
        ])  # fmt: skip
        page.family("sglang:dp_cooperation_realtime_tokens_total", "counter", [
            sample for mode, at in _TOKEN_MODES for number in range(self._state.ranks + 1)
            for sample in self._each(
                together[at, number], together[at, number] > 0, mode=mode, num_prefill_ranks=str(number)
            )
        ] if self._world.dp_attention else [])  # fmt: skip
        modes = {"decode_cuda_graph": "graph_decodes", "decode_none": "eager_decodes", "prefill_none": "eager_prefills"}
        page.family("sglang:cuda_graph_passes_total", "counter", [
            sample for mode, key in modes.items()
            for sample in self._each(counts[key], counts[key] > 0, mode=mode)
        ])  # fmt: skip
        self._write_forward()
        if self._release >= (0, 5, 18):
            hits = {"input": counts["computed"], "device_hit": counts["cached"]}
            nothing = np.zeros(self._state.ranks)
            page.family("sglang:prefill_effective_tokens_total", "counter", [
                sample for mode in ("input", "device_hit", "host_hit", "storage_hit")
                for sample in self._all_schedulers(hits.get(mode, nothing), 0.0, mode=mode)
            ])  # fmt: skip
        retracted = {
            "num_retracted_requests": "retracted",
            "num_retracted_input_tokens": "retracted_prompt",
            "num_retracted_output_tokens": "retracted_output",
        }
        for name, key in retracted.items():
            page.family(f"sglang:{name}_total", "counter", self._each(counts[key], counts[key] > 0))

        queued = [
            (self._labels(rank), float(counts["admitted"][rank]), float(counts["queued_s"][rank]))
            for rank in self._ranks
            if counts["admitted"][rank] > 0
        ]
        page.summed("sglang:queue_time_seconds", _QUEUE_EDGES, queued)

    def _write_forward(self) -> None:
        """Write GPU time by pass; the name and its categories changed on the way."""
        counts = self._state.counts.by_rank
        if self._release >= (0, 5, 11):
            name, prefix = "sglang:forward_execution_seconds_total", ""
            keys = {"decode": "decode_forward_s", "extend": "extend_forward_s", "idle": "idle_forward_s"}
        else:
            name, prefix = "sglang:gpu_execution_seconds_total", "forward_"
            keys = {"decode": "decode_forward_s", "extend": "extend_forward_s"}
        copies = self._world.attention_tp
        self.page.family(name, "counter", [
            (self._labels(rank, copy, category=prefix + category), float(counts[key][rank]))
            for category, key in keys.items() for rank in self._ranks for copy in range(copies)
            if counts[key][rank] > 0
        ])  # fmt: skip

    def write_gauges(self) -> None:
        """Write gauges as they were last set, and what is set once at the start."""
        shown, page, ranks = self._state.shown.gauges, self.page, self._state.ranks
        written = ~np.isnan(shown["running"])
        for name, key in _GAUGES.items():
            page.family(f"sglang:{name}", "gauge", self._each(shown[key], written))
        page.family("sglang:decode_sum_seq_lens", "gauge", self._each(shown["context"], written))
        usage = shown["used"] / self._state.capacity
        page.family("sglang:token_usage", "gauge", self._each(np.round(usage, 2), written))
        if self._release >= (0, 5, 10):
            page.family("sglang:full_token_usage", "gauge", self._each(usage, written))
        nothing = np.zeros(ranks)
        first = "num_prefill_bootstrap_queue_reqs"
        if self._release < (0, 5, 12):
            first = "num_prefill_prealloc_queue_reqs"
        for name in _EMPTY_GAUGES:
            page.family(f"sglang:{name}", "gauge", self._each(nothing, written))
        for name, key in {first: "bootstrap", **_QUEUES}.items():
            page.family(f"sglang:{name}", "gauge", self._each(np.nan_to_num(shown[key]), written))
        if self._release >= (0, 5, 12):
            page.family("sglang:fwd_occupancy", "gauge", self._each(np.full(ranks, np.nan), written))
            pages = self._all_schedulers(np.full(ranks, float(_PAGE_TOKENS)), None)
            page.family("sglang:page_size", "gauge", pages)
        page.family("sglang:max_total_num_tokens", "gauge", self._all_schedulers(self._state.capacity, None))

    def write_experts(self) -> None:
        """Write tokens by layer and GPU, told as a histogram whose bounds are GPUs, and the balance seen by rank 0."""
        experts = self._state.counts.experts
        gpus = np.arange(experts.shape[1], dtype=float)
        rows = [
            ({"layer": str(layer)}, [*experts[layer], 0.0], float((experts[layer] * gpus).sum()))
            for layer in range(len(experts))
        ]
        self.page.histogram("sglang:eplb_gpu_physical_count", gpus.tolist(), rows)
