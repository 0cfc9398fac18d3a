"""A lockstep deployment small enough to read: every rank launches its kernels, a meeting ends when the last has come.

Written apart from the harness, so that a mistake made there is not made here as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

LOCAL_NS = {
    "qkv_gemm": 9_000,
    "attention": 60_000,
    "o_proj_gemm": 7_000,
    "router": 4_000,
    "experts": 75_000,
    "lm_head_gemm": 30_000,
    "sampling": 8_000,
    "optimizer": 9_550_000,
}
MEETINGS = ("all_gather", "reduce_scatter", "all_reduce")
MOE_LAYER = ("qkv_gemm", "attention", "o_proj_gemm", "all_gather", "router", "experts", "reduce_scatter")
DENSE_LAYER = ("qkv_gemm", "attention", "o_proj_gemm", "all_reduce", "experts", "all_reduce")
TAIL = ("lm_head_gemm", "sampling")

Factor = Callable[[str, int, int, int], float]
"""What a kernel's duration is multiplied by: key, step, layer (-1 in the tail), rank."""

PerStep = Callable[[int, int], int]
"""Nanoseconds by step and rank."""

Alias = Callable[[str, int, int, int], str]
"""The kernel that runs in place of one: key, step, layer (-1 in the tail), rank."""


def always_one(key: str, step: int, layer: int, rank: int) -> float:
    """Leave every kernel as it is."""
    return 1.0


def as_is(key: str, step: int, layer: int, rank: int) -> str:
    """Let every kernel run under its own name."""
    return key


@dataclass(frozen=True, slots=True)
class Scenario:
    """What runs, and what is wrong with it.

    Attributes:
        layer, tail: kernels of a layer and those after the last, in order.
        factor: work or slowness of single kernels.
        alias: names of single kernels.
        host_ns: what the host does before the first launch of a step.
        launch_ns: from one launch to the next.
        transfer_ns: from the last arrival at a meeting to its end.
        noise: standard deviation of every kernel's duration over the duration.
    """

    ranks: int = 4
    steps: int = 24
    layers: int = 3
    layer: tuple[str, ...] = MOE_LAYER
    tail: tuple[str, ...] = TAIL
    factor: Factor = always_one
    alias: Alias = as_is
    host_ns: PerStep = lambda step, rank: 100_000
    launch_ns: PerStep = lambda step, rank: 3_000
    transfer_ns: int = 16_000
    noise: float = 0.01
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Event:
    """One kernel of one rank, with the runtime call that launched it."""

    rank: int
    step: int
    layer: int
    key: str
    start_ns: int
    end_ns: int
    call_start_ns: int
    call_end_ns: int

    @property
    def is_meeting(self) -> bool:
        """Tell a collective from local work."""
        return self.key in MEETINGS


def attention_of(rank: int, factor: float) -> Factor:
    """Multiply one rank's attention."""
    return lambda key, step, layer, who: factor if key == "attention" and who == rank else 1.0


def play(scenario: Scenario) -> list[Event]:
    """Play all steps; events come in the order of launch."""
    draw = random.Random(scenario.seed)
    members = range(scenario.ranks)
    ready = [1_000_000] * scenario.ranks
    events: list[Event] = []
    for step in range(scenario.steps):
        host = [ready[rank] + scenario.host_ns(step, rank) for rank in members]
        for layer, key in _list_kernels(scenario):
            starts, calls = [], []
            for rank in members:
                host[rank] += scenario.launch_ns(step, rank)
                calls.append((host[rank] - 1_800, host[rank]))
                starts.append(max(ready[rank] + 500, host[rank] + 1_000))
            if key in MEETINGS:
                ready = [max(starts) + scenario.transfer_ns + draw.randrange(400) for _ in members]
            else:
                ready = [
                    starts[rank]
                    + round(LOCAL_NS[key] * scenario.factor(key, step, layer, rank) * draw.gauss(1, scenario.noise))
                    for rank in members
                ]
            names = [scenario.alias(key, step, layer, rank) for rank in members]
            events += [
                Event(rank, step, layer, names[rank], starts[rank], ready[rank], *calls[rank]) for rank in members
            ]
    return events


def _list_kernels(scenario: Scenario) -> list[tuple[int, str]]:
    return [(layer, key) for layer in range(scenario.layers) for key in scenario.layer] + [
        (-1, key) for key in scenario.tail
    ]


def share_last(events: list[Event], rank: int) -> float:
    """Compute the share of meetings at which a rank arrives last."""
    last: dict[tuple[int, int, str, int], Event] = {}
    count: dict[tuple[int, int, str, int], int] = {}
    for event in (event for event in events if event.is_meeting):
        seen = (event.step, event.layer, event.key, event.rank)
        turn = count[seen] = count.get(seen, 0) + 1
        meeting = (event.step, event.layer, event.key, turn)
        if meeting not in last or event.start_ns > last[meeting].start_ns:
            last[meeting] = event
    return sum(event.rank == rank for event in last.values()) / len(last)
