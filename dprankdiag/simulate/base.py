"""State what the parts of the serving world tell each other: requests, what a rank shows, what a step holds.

Time is integer nanoseconds since the world's beginning; every count is an integer. The engine knows no physics: how
long a step takes is asked of the `Costs` it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]

Mode = Literal["idle", "decode", "extend", "mixed", "verify"]


@dataclass(frozen=True, slots=True)
class Part:
    """A run of a prompt's tokens that other prompts may share.

    Attributes:
        key: names the tokens; equal keys after equal parts are equal tokens.
        tokens: how many.
    """

    key: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for.

    Attributes:
        number: counts requests in order of arrival.
        arrival_ns: when it reaches the gateway.
        parts: the prompt, in order; a prefix cache finds leading parts.
        output_tokens: generated before it ends.
        session: of the same client; 0 for none.
        pinned_rank: the rank it demands (`routed_dp_rank`, `X-data-parallel-rank`), or none.
        bootstrap_room: the room of a prefill and its decode, or none.
        probe: a health check.
        output_key: names the output's tokens but the last, whose KV no step computes; a later prompt may hold them as a
            part. None if no prompt ever will.
        follows: the request whose end its client awaits, or none.
        think_ns: from that end to its arrival, which then is not before `arrival_ns`.
    """

    number: int
    arrival_ns: int
    parts: tuple[Part, ...]
    output_tokens: int
    session: int = 0
    pinned_rank: int | None = None
    bootstrap_room: int | None = None
    probe: bool = False
    output_key: int | None = None
    follows: int | None = None
    think_ns: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Count the prompt's tokens."""
        return sum(part.tokens for part in self.parts)


@dataclass(frozen=True, slots=True)
class Load:
    """What a rank shows of itself at a moment, as it is or as it was published.

    Attributes:
        stamp_ns: when the rank wrote it.
        running, waiting: requests.
        waiting_uncached_tokens: prompt tokens still to compute.
        used_tokens: KV tokens held.
        total_tokens: used tokens, and those of queued requests as far as the engine counts them.
        capacity_tokens: KV tokens that the pool holds.
        step: the step, counted by its group, that the rank had begun last when it wrote this; none where nobody counts.
    """

    stamp_ns: int
    running: int
    waiting: int
    waiting_uncached_tokens: int
    used_tokens: int
    total_tokens: int
    capacity_tokens: int
    step: int | None = None


class Router(Protocol):
    """Chooses ranks by the ledger it believes."""

    def observe(self, now_ns: int, loads: Sequence[Load | None]) -> None:
        """Take what the ranks have published by now, none where a rank has published nothing."""

    def place(self, now_ns: int, request: Request) -> int:
        """Choose the rank of a request and count it in the ledger."""

    def release(self, now_ns: int, request: Request, rank: int) -> None:
        """Take that a request has left its rank: done, or given up."""

    def believed(self) -> Sequence[Load | None]:
        """Give the ledger as the router holds it, its own increments included."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """The batches of one step of a lockstep group: `(ranks,)` each.

    Attributes:
        mode: of each rank.
        decode_rows: rows of requests that decode, drafts included.
        decode_pairs: KV tokens that these rows attend to, each request's counted once a row.
        kv_tokens: KV tokens that decoding requests read, each request's counted once.
        prompt_tokens: prompt tokens computed.
        prompt_pairs: pairs of a computed prompt token and one before or at it.
        rows: after padding, as the part behind the gather computes them.
        graph: all ranks replay a captured graph.
        split: two halves of the batch overlap on all ranks.
        padded: every rank computes the rows of the busiest behind the gather.
        low_latency: tokens go to the experts by the exchange made for few rows.
    """

    mode: tuple[Mode, ...]
    decode_rows: IntArray
    decode_pairs: IntArray
    kv_tokens: IntArray
    prompt_tokens: IntArray
    prompt_pairs: IntArray
    rows: IntArray
    graph: bool
    split: bool
    padded: bool = False
    low_latency: bool = False


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long the parts of a step take: before and behind the gather `(ranks,)`, summed over the layers.

    Attributes:
        own_ns: work of each rank before the gather.
        shared_ns: work of each rank behind the gather.
        common_ns: transfers, launches and the hosts' meeting, alike for all.
    """

    own_ns: IntArray
    shared_ns: IntArray
    common_ns: int

    @property
    def total_ns(self) -> int:
        """Give the time from step to step: each part lasts as long as on its slowest rank."""
        return int(self.own_ns.max()) + int(self.shared_ns.max()) + self.common_ns


class Costs(Protocol):
    """Says how long a step takes."""

    def time_step(self, work: StepWork) -> StepTime:
        """Give the time of each part, for `(ranks,)` arrays of work."""
