"""What goes wrong in a world: the ranks, the steps, the size, and the cause it should be called by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dprankdiag.harness.events import Array

Kind = Literal[
    "slow_gpu",
    "load_context",
    "load_requests",
    "host_late",
    "host_burst",
    "hot_expert",
    "receiver_queue",
    "slow_link",
    "fabric",
    "uniform",
    "load_prefill",
    "load_idle",
    "structural_layout",
    "structural_graph",
]

Side = Literal["before", "after"]

CAUSES: dict[Kind, str] = {
    "slow_gpu": "single_point.gpu",
    "load_context": "load.context",
    "load_requests": "load.requests",
    "host_late": "single_point.host",
    "host_burst": "single_point.host",
    "hot_expert": "structural.expert",
    "receiver_queue": "structural.dispatch",
    "slow_link": "single_point.link",
    "fabric": "communication.fabric",
    "uniform": "uniform.slow",
    "load_prefill": "load.prefill",
    "load_idle": "load.idle",
    "structural_layout": "structural.layout",
    "structural_graph": "structural.graph",
}

SPREADABLE = (
    "load_context",
    "load_requests",
    "load_prefill",
    "load_idle",
    "hot_expert",
    "structural_layout",
    "structural_graph",
)
"""Faults whose twin does the same work: spread evenly, or replayed as a graph; that of any other does without it."""

GROUP_WIDE = ("load_context", "load_requests", "load_prefill", "load_idle", "structural_graph")
"""Faults of a DP rank, which all GPUs of its attention group share."""

NEEDS_BATCHES: tuple[Kind, ...] = ("load_prefill", "load_idle", "structural_layout", "structural_graph")
"""Faults of batches and layouts, of which the fixed physics knows nothing."""


@dataclass(frozen=True, slots=True)
class When:
    """The steps in which a fault acts.

    Attributes:
        kind: steady; onset (from `first`); window (`first` until before `last`); periodic (every `period` steps, from
            `first`); burst (a random `share` of the steps, at least one).
    """

    kind: Literal["steady", "burst", "onset", "window", "periodic"] = "steady"
    first: int = 0
    last: int = 0
    period: int = 1
    share: float = 0.05

    def steps(self, count: int, random: np.random.Generator) -> Array:
        """Mark the active steps: `(count,)` bool."""
        index: Array = np.arange(count)
        if self.kind == "onset":
            begun: Array = index >= self.first
            return begun
        if self.kind == "window":
            inside: Array = (index >= self.first) & (index < self.last)
            return inside
        if self.kind == "periodic":
            turn: Array = (index >= self.first) & ((index - self.first) % self.period == 0)
            return turn
        if self.kind == "burst":
            chosen = random.choice(count, size=max(1, round(self.share * count)), replace=False)
            return np.isin(index, chosen)
        return np.ones(count, bool)


STEADY = When()


def burst(share: float) -> When:
    """Act in a random share of the steps."""
    return When("burst", share=share)


def onset(step: int) -> When:
    """Act from a step on."""
    return When("onset", first=step)


def window(first: int, last: int) -> When:
    """Act from step `first` until before step `last`."""
    return When("window", first=first, last=last)


def periodic(period: int, first: int = 0) -> When:
    """Act every `period` steps."""
    return When("periodic", first=first, period=period)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        ranks: who; empty for faults of all ranks.
        size: a factor on time, work or transfers, or nanoseconds for host and link faults and receiver queues.
        rotating: one of `ranks` at a time, the next one in every active step.
        memory_only: a slow GPU of which only memory-bound kernels suffer.
        before_gather: a late host that is late before the CPU metadata gather, so that every host is held up.
        stalls: number of stalls of a bursty host.
        layers: hot rank by layer.
        side: whether an uneven layout is one of the work before or after the gather.
        spread: the same work spread evenly over the ranks, or replayed as a graph (what a twin does).
    """

    kind: Kind
    ranks: tuple[int, ...] = ()
    size: float = 1.0
    when: When = field(default=STEADY)
    rotating: bool = False
    memory_only: bool = False
    before_gather: bool = False
    stalls: int = 0
    layers: tuple[tuple[int, int], ...] = ()
    side: Side = "before"
    spread: bool = False

    @property
    def cause(self) -> str:
        """Name the cause a perfect diagnosis gives."""
        return CAUSES[self.kind]

    def activity(self, steps: int, ranks: int, random: np.random.Generator) -> Array:
        """Mark the active steps and ranks: `(steps, ranks)` bool."""
        active = self.when.steps(steps, random)
        members = self.ranks or tuple(range(ranks))
        if self.rotating:
            turn = np.maximum(np.cumsum(active) - 1, 0) % len(members)
            who = np.asarray(members)[turn][:, None] == np.arange(ranks)
        else:
            who = np.broadcast_to(np.isin(np.arange(ranks), members), (steps, ranks))
        marked: Array = active[:, None] & who
        return marked


Ranks = int | tuple[int, ...]


def _tuple(ranks: Ranks) -> tuple[int, ...]:
    return (ranks,) if isinstance(ranks, int) else tuple(ranks)


def slow_gpu(
    ranks: Ranks, factor: float, *, memory_only: bool = False, when: When = STEADY, rotating: bool = False
) -> Fault:
    """Every kernel (or every memory-bound one) takes `factor` as long."""
    return Fault("slow_gpu", _tuple(ranks), factor, when, rotating, memory_only=memory_only)


def load_context(ranks: Ranks, factor: float, *, when: When = STEADY, rotating: bool = False) -> Fault:
    """The requests of these ranks hold `factor` as many KV tokens."""
    return Fault("load_context", _tuple(ranks), factor, when, rotating)


def load_requests(ranks: Ranks, factor: float, *, when: When = STEADY, rotating: bool = False) -> Fault:
    """These ranks hold `factor` as many requests, each of ordinary length."""
    return Fault("load_requests", _tuple(ranks), factor, when, rotating)


def host_late(
    ranks: Ranks, delay_ns: int, *, when: When = STEADY, rotating: bool = False, before_gather: bool = False
) -> Fault:
    """The host starts launching `delay_ns` late."""
    return Fault("host_late", _tuple(ranks), delay_ns, when, rotating, before_gather=before_gather)


def host_burst(ranks: Ranks, *, stalls: int, stall_ns: int) -> Fault:
    """The host stops for `stall_ns` in `stalls` steps: before a graph launch, or anywhere among eager launches."""
    return Fault("host_burst", _tuple(ranks), stall_ns, stalls=stalls)


def hot_expert(layers: Mapping[int, int], factor: float, *, when: When = STEADY) -> Fault:
    """In each named layer the experts of its rank draw `factor` as many tokens."""
    pairs = tuple(sorted(layers.items()))
    return Fault("hot_expert", tuple(sorted({rank for _, rank in pairs})), factor, when, layers=pairs)


def receiver_queue(ranks: Ranks, queue_ns: int, *, when: When = STEADY) -> Fault:
    """These ranks leave dispatch and combine late, by `queue_ns` at the mean number of received tokens."""
    return Fault("receiver_queue", _tuple(ranks), queue_ns, when)


def slow_link(ranks: Ranks, delay_ns: int, *, when: When = STEADY) -> Fault:
    """These ranks leave every collective `delay_ns` late."""
    return Fault("slow_link", _tuple(ranks), delay_ns, when)


def fabric(factor: float, *, when: When = STEADY) -> Fault:
    """Every transfer takes `factor` as long, on all ranks."""
    return Fault("fabric", (), factor, when)


def uniform(factor: float, *, when: When = STEADY) -> Fault:
    """Every kernel of every rank takes `factor` as long."""
    return Fault("uniform", (), factor, when)


def load_prefill(ranks: Ranks, factor: float, *, when: When = STEADY, rotating: bool = False) -> Fault:
    """These ranks compute a part of a prompt beside their decoders: `factor - 1` times the mean context's tokens."""
    return Fault("load_prefill", _tuple(ranks), factor, when, rotating)


def load_idle(busy: Ranks, factor: float = 1.0, *, when: When = STEADY) -> Fault:
    """Only the busy ranks have requests, `factor` as many as usual; the others keep step."""
    return Fault("load_idle", _tuple(busy), factor, when)


def structural_layout(ranks: Ranks, factor: float, *, side: Side = "before") -> Fault:
    """These ranks always do `factor` as much of the work on one side of the gather, whatever the load."""
    return Fault("structural_layout", _tuple(ranks), factor, side=side)


def structural_graph(ranks: Ranks, *, when: When) -> Fault:
    """These ranks have no requests, and nobody replays a graph because of that."""
    return Fault("structural_graph", _tuple(ranks), when=when)
