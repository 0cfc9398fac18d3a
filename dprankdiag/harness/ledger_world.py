"""The description of a served deployment to simulate: what it is, who asks it, what it tells, what is wrong with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Engine = Literal["sglang", "vllm"]
Policy = Literal["round_robin", "least_requests", "least_tokens", "sticky"]
Trouble = Literal[
    "requests",
    "context",
    "prefill",
    "cache",
    "kv_pressure",
    "speculation",
    "idle",
    "host",
    "gpu",
    "expert",
    "stale",
    "uniform",
]

CAUSES: dict[Trouble, str] = {
    "requests": "load.requests",
    "context": "load.context",
    "prefill": "load.prefill",
    "cache": "load.cache",
    "kv_pressure": "load.kv_pressure",
    "speculation": "load.speculation",
    "idle": "load.idle",
    "host": "single_point.host",
    "gpu": "single_point.gpu",
    "expert": "structural.expert",
    "stale": "ledger.stale",
    "uniform": "uniform.slow",
}


@dataclass(frozen=True, slots=True)
class LedgerFault:
    """What goes wrong for a time.

    Attributes:
        kind: the trouble.
        ranks: the culprits; of "idle" the busy ones; empty for "uniform".
        size: of "requests", "context" and "prefill" the share of all requests that is pinned to the culprits; of
            "context" and "prefill" such requests have long histories, or long prompts that no cache knows; of "cache"
            the hit ratio left; of "kv_pressure" the share of the pool left; of "speculation" the accepted tokens a
            step; of "host" the seconds by which each step is late; of "gpu" and "uniform" the factor on GPU time; of
            "expert" the factor on the tokens routed to the culprits' experts.
        start_s, end_s: seconds after the world's beginning.
    """

    kind: Trouble
    ranks: tuple[int, ...] = ()
    size: float = 0.0
    start_s: float = 0.0
    end_s: float = math.inf

    @property
    def cause(self) -> str:
        """Name the cause as a diagnosis does."""
        return CAUSES[self.kind]

    def acts(self, seconds: float) -> bool:
        """Tell whether it acts at a moment."""
        return self.start_s <= seconds < self.end_s


@dataclass(frozen=True, slots=True)
class Restart:
    """The engine goes away for a time and comes back with counters at zero and a cold cache.

    Attributes:
        at_s: when it goes.
        down_s: how long its pages answer nothing.
        ranks: how many DP ranks it has afterwards; 0 for as many as before.
        stagger_s: where each rank has a page of its own, by how much each comes back later than the one before.
    """

    at_s: float
    down_s: float = 40.0
    ranks: int = 0
    stagger_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LedgerWorld:
    """One served model, seen through what its engine tells of itself.

    Attributes:
        ranks: DP ranks.
        engine, version: whose pages are written, and in which release's shape.
        dp_attention: the SGLang switch that counts steps, pairs and waits is on (0.5.22 and later).
        control_broadcast: each SGLang step begins with a message from rank 0 along a tree.
        nodes: SGLang hosts, each with a page of its own ranks.
        attention_tp: SGLang schedulers of one DP rank; those beyond the first show placeholders.
        expert_counts: SGLang tells of tokens by layer and GPU.
        loads: SGLang's load answers are polled as well.
        lockstep: all ranks step together, as a mixture of experts does; else each engine runs alone (vLLM, dense).
        api_servers: vLLM front ends, of which each counts every iteration.
        external_lb: each vLLM rank has a page of its own.
        rate_s: requests a second, on the average of a day.
        rhythm: 0 for the same rate all day, 1 for a night without requests.
        start_hour: time of day at the beginning; the rate is highest at 15 h.
        bursts_hour: bursts of requests in an hour.
        burst_factor: by how much a burst raises the rate, for about half a minute.
        prompt_tokens, output_tokens: medians of log-normal lengths.
        length_spread: standard deviation of their logarithms.
        turns: how often a session comes back on the average; sticky routing keeps it on its rank.
        hit_ratio: share of a prompt that a warm prefix cache knows.
        policy: of the router.
        publish_s: age of the counts that load-aware policies see.
        capacity_tokens, running_limit: room of one rank.
        queue_limit: waiting requests of a rank beyond which further ones are turned away.
        chunk_tokens: most prompt tokens of a step.
        accept_tokens: tokens a step and request; above 1 with speculative decoding.
        base_s, row_s, context_s, prompt_s, pair_s: GPU time of a step, and of each row, KV token, prompt token and
            pair of prompt tokens.
        expert_share: share of the base time spent in experts.
        host_s: median time by which hosts come late to a step at random.
        noise: spread of GPU time.
        hiccups_hour: how often an hour some host stalls for some tens of milliseconds.
        probes_s: seconds between health probes that generate; 0 for none.
        failed_scrapes: share of polls that give nothing.
        seconds: length.
        interval_s: between polls.
        slice_s: the simulation's own step.
        warm: the world begins in full swing, long after its start.
        faults, restarts: what happens.
    """

    seed: int = 0
    ranks: int = 8
    engine: Engine = "sglang"
    version: str = "0.5.23"
    dp_attention: bool = True
    control_broadcast: bool = True
    nodes: int = 1
    attention_tp: int = 1
    expert_counts: bool = False
    loads: bool = True
    lockstep: bool = True
    api_servers: int = 1
    external_lb: bool = False
    rate_s: float = 24.0
    rhythm: float = 0.0
    start_hour: float = 12.0
    bursts_hour: float = 0.0
    burst_factor: float = 2.5
    prompt_tokens: int = 1200
    output_tokens: int = 220
    length_spread: float = 0.6
    turns: float = 3.0
    hit_ratio: float = 0.4
    policy: Policy = "round_robin"
    publish_s: float = 0.5
    capacity_tokens: int = 420_000
    running_limit: int = 128
    queue_limit: int = 600
    chunk_tokens: int = 8192
    accept_tokens: float = 1.0
    base_s: float = 0.020
    row_s: float = 8e-5
    context_s: float = 5e-8
    prompt_s: float = 2.5e-5
    pair_s: float = 4e-10
    expert_share: float = 0.4
    host_s: float = 2.5e-4
    noise: float = 0.03
    hiccups_hour: float = 20.0
    probes_s: float = 0.0
    failed_scrapes: float = 0.0
    seconds: float = 120.0
    interval_s: float = 1.0
    slice_s: float = 0.25
    warm: bool = True
    faults: tuple[LedgerFault, ...] = ()
    restarts: tuple[Restart, ...] = ()

    def __post_init__(self) -> None:
        outside = [rank for fault in self.faults for rank in fault.ranks if not 0 <= rank < self.ranks]
        if outside:
            raise ValueError(f"faults name ranks {outside} of {self.ranks}")
        if not self.lockstep and self.engine != "vllm":
            raise ValueError("only vLLM runs a dense model's ranks each on its own clock")
        if self.api_servers > 1 and self.external_lb:
            raise ValueError("a page a rank leaves no room for several front ends")

    @property
    def role(self) -> str:
        """Tell that it computes prompts and decodes."""
        return "unified"

    def acting(self, kind: Trouble, seconds: float) -> LedgerFault | None:
        """Give the fault of a kind that acts at a moment, None if there is none."""
        return next((fault for fault in self.faults if fault.kind == kind and fault.acts(seconds)), None)
