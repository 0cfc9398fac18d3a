"""The description of a deployment to simulate: what it is, how it is recorded, what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dprankdiag.harness.dealt import Dealt
from dprankdiag.harness.events import GraphMode
from dprankdiag.harness.faults import NEEDS_BATCHES, Fault
from dprankdiag.harness.kernel_names import CUSTOM_REDUCE_SIZES

Communication = Literal["nccl", "custom_all_reduce", "deepep", "deepep_normal"]
Names = Literal["sglang", "vllm", "invented"]
Annotations = Literal["none", "steps", "batch"]
Files = Literal["one", "node", "rank"]
Physics = Literal["fixed", "roofline", "queueing"]
Model = Literal["drawn", "deepseek-v3", "kimi-k2", "qwen3-235b", "qwen3-30b", "glm-4.5", "gpt-oss-120b"]
Chip = Literal["drawn", "h100", "h200", "h20", "b200"]


@dataclass(frozen=True, slots=True)
class World:
    """One deployment in lockstep.

    Three physics say how long its kernels take. The fixed one gives each a base duration and a straight line over the
    load. The roofline one derives them from the shapes of a model and what a chip can do; it takes no durations, no
    `host_gap_ns` and no `load_spread`. The queueing one reads them from tables and queues, and takes no durations, no
    `host_gap_ns` and no `length_spread`. These two cannot overlap two batches, and know faults that the first does not.

    Attributes:
        physics: which of them.
        model, chip: what the roofline serves on what; drawn by the seed unless named.
        length_spread: standard deviation of the logarithm of a request's KV length (roofline).
        routing_gini: inequality of the experts' popularity, 0 to 1; experts are placed to even it out (not fixed).
        verify_tokens: tokens a request runs a step, drafts included (not fixed).
        chunk_tokens: tokens of the prompt that each rank computes beside its decoders in a prefill step (not fixed).
        load_levels: factors on the number of requests in equal parts of the run (not fixed); none for a steady load.
        ranks, steps, layers: size; with `cut_edges` two more steps run and are only recorded in part, with
            `start_spread` more run that not all ranks record.
        attention_tp: ranks that share one DP rank's attention.
        communication: gather and scatter by NCCL, by custom all-reduce, or DeepEP dispatch and combine (low-latency, or
            normal mode, in which the host waits for the received counts; it cannot be captured in a graph).
        receive_hook: low-latency DeepEP as two kernels of one name, of which the first never waits.
        graph: decode runs as one CUDA graph launch a step, else one launch call a kernel.
        graph_mode: what the profiler keeps of a replay: its kernels, or the whole as one row.
        overlap: the host prepares the next step while the GPU runs this one.
        metadata_gather: each step starts with an all-gather between the hosts.
        dependent_launch: kernels start before their predecessor ends (programmatic dependent launch).
        comm_stream: collectives run on a stream of their own; own work waits for them.
        two_batch_overlap: each step runs two halves of the batch; one half's collectives among all ranks run on a
            stream of their own while the other half computes; with `receive_hook` on the same stream, where the
            other half computes between sending and receiving.
        contention: by what share own work is slower while a collective on another stream holds part of the GPU.
        clears: each layer begins with setting a counter's memory to zero.
        lean: only the kernels that matter, for small files.
        prefill_every: every so many steps all ranks process prompts instead of decoding; 0 never.
        max_padding: rows after the gather are padded to the busiest rank's.
        noise: standard deviation of the logarithm of every kernel's duration.
        tail_share: share of kernels that take up to several times as long.
        chip_spread: standard deviation of the GPUs' speeds.
        load_spread: standard deviation of the DP ranks' KV tokens.
        routing_spread: standard deviation of the tokens routed to a rank, drawn anew in every layer and step.
        requests, context_tokens: per DP rank, per request.
        attention_ns, expert_ns, transfer_ns: duration of attention, of both grouped GEMMs, of one gather.
        host_gap_ns: work of the host between two steps.
        annotations: no ranges; a range a step; also the batch's rows and KV tokens.
        runtime_rows: launch and synchronise calls are recorded.
        thread_titles: each process names its thread in full, else names are cut to 15 bytes.
        start_spread: up to how many steps apart the ranks' profiles begin; each records as many steps as any other.
        files: one recording for all, one a node, one a rank.
        ranks_per_node: 0 for all ranks on one node.
        gpu_skew_ns, host_clock_ns, drift_ppm: standard deviations of a GPU's stamps against its host, of the hosts'
            wall clocks, of the sessions' rates.
        dealt: the batches of every step as a serving world has dealt them (roofline); none to draw them.
        expert_slots: by layer, the expert of each slot, as many slots a rank, one rank after the other (roofline); none
            for a balancer's that knows how popular experts are.
    """

    seed: int = 0
    physics: Physics = "fixed"
    model: Model = "drawn"
    chip: Chip = "drawn"
    length_spread: float = 0.6
    routing_gini: float = 0.3
    verify_tokens: int = 1
    chunk_tokens: int = 512
    load_levels: tuple[float, ...] = ()
    ranks: int = 8
    steps: int = 40
    layers: int = 8
    attention_tp: int = 1
    communication: Communication = "nccl"
    receive_hook: bool = False
    graph: bool = True
    graph_mode: GraphMode = "node"
    overlap: bool = False
    metadata_gather: bool = True
    dependent_launch: bool = False
    comm_stream: bool = False
    two_batch_overlap: bool = False
    contention: float = 0.12
    clears: bool = False
    lean: bool = False
    prefill_every: int = 0
    max_padding: bool = False
    noise: float = 0.02
    tail_share: float = 0.0
    chip_spread: float = 0.01
    load_spread: float = 0.02
    routing_spread: float = 0.08
    requests: int = 16
    context_tokens: int = 2000
    attention_ns: int = 60_000
    expert_ns: int = 75_000
    transfer_ns: int = 16_000
    host_gap_ns: int = 120_000
    names: Names = "sglang"
    annotations: Annotations = "batch"
    runtime_rows: bool = True
    thread_titles: bool = True
    cut_edges: bool = False
    start_spread: int = 0
    files: Files = "one"
    ranks_per_node: int = 0
    gpu_skew_ns: int = 0
    host_clock_ns: int = 0
    drift_ppm: float = 0.0
    faults: tuple[Fault, ...] = ()
    dealt: Dealt | None = field(default=None, compare=False, repr=False)
    expert_slots: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.ranks % self.attention_tp:
            raise ValueError(f"{self.ranks} ranks do not divide into attention groups of {self.attention_tp}")
        if self.cut_edges and self.start_spread:
            raise ValueError("profiles begin inside a step or at different steps, not both")
        if self.files == "one" and self.node_size < self.ranks:
            raise ValueError("one recording cannot span several nodes")
        if self.communication == "deepep_normal" and self.graph:
            raise ValueError("normal-mode dispatch makes the host wait inside a step: it cannot run as a graph")
        if self.two_batch_overlap and self.communication not in ("nccl", "deepep"):
            raise ValueError(f"two halves of a batch do not overlap with {self.communication}")
        if self.communication == "custom_all_reduce" and self.ranks not in CUSTOM_REDUCE_SIZES:
            raise ValueError(f"custom all-reduce joins {CUSTOM_REDUCE_SIZES} GPUs, not {self.ranks}")
        if not self.communication.startswith("deepep") and any(it.kind == "receiver_queue" for it in self.faults):
            raise ValueError("a receiver queue needs dispatch and combine")
        self._check_physics()
        outside = [rank for fault in self.faults for rank in fault.ranks if not 0 <= rank < self.ranks]
        if outside:
            raise ValueError(f"faults name ranks {outside} of {self.ranks}")

    def _check_physics(self) -> None:
        kinds = {fault.kind for fault in self.faults}
        if self.dealt is not None:
            self._check_dealt(self.dealt)
        if self.expert_slots and (self.physics != "roofline" or "hot_expert" in kinds):
            raise ValueError("experts have slots of their own in the roofline physics only, and no hot ranks then")
        if self.physics == "fixed":
            if missing := sorted(kinds.intersection(NEEDS_BATCHES)):
                raise ValueError(f"the fixed physics knows no {', '.join(missing)}")
            if self.verify_tokens != 1 or self.load_levels:
                raise ValueError("the fixed physics knows neither drafts nor load levels")
            return
        if self.two_batch_overlap:
            raise ValueError(f"the {self.physics} physics cannot overlap two batches")
        if "structural_layout" in kinds and max(self.load_levels, default=1) < 2 * min(self.load_levels, default=1):
            raise ValueError("an uneven layout shows only where load levels lie a factor of 2 apart")
        for fault in self.faults:
            if fault.kind == "structural_graph" and (not self.graph or fault.when.kind == "steady"):
                raise ValueError("lost graphs show only beside steps that are replayed as one")

    def _check_dealt(self, dealt: Dealt) -> None:
        if self.physics != "roofline":
            raise ValueError(f"the {self.physics} physics draws its batches itself")
        if dealt.decode_requests.shape != (self.run_steps, self.dp_size):
            shape = dealt.decode_requests.shape
            raise ValueError(f"batches of {shape} steps and ranks were dealt, not {self.run_steps, self.dp_size}")

    @property
    def dp_size(self) -> int:
        """Count the DP ranks."""
        return self.ranks // self.attention_tp

    @property
    def run_steps(self) -> int:
        """Count the steps that run, including those recorded in part."""
        return self.steps + (2 if self.cut_edges else 2 * self.start_spread)

    @property
    def full_steps(self) -> slice:
        """Select the steps that every rank records whole."""
        first = 1 if self.cut_edges else self.start_spread
        return slice(first, first + self.steps)

    @property
    def node_size(self) -> int:
        """Count the ranks of a node."""
        return self.ranks_per_node or self.ranks
