"""Requests that come to a deployment: how many when, how long, and whose session they continue."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.events import Array
from dprankdiag.harness.ledger_world import LedgerFault, LedgerWorld

DAY_S = 86_400.0
_BUSIEST_HOUR = 15.0
_BURST_S = 30.0
_HISTORY_FACTOR = 8.0
_PROMPT_FACTOR = 6.0


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests that arrive within one slice, in order.

    Attributes:
        prompt, output: tokens.
        hits: prompt tokens that a warm cache would know.
        session: whose turn it is.
        pinned: rank asked for by the sender, -1 where the router decides.
    """

    prompt: Array
    output: Array
    hits: Array
    session: Array
    pinned: Array

    def __len__(self) -> int:
        return len(self.prompt)


class Traffic:
    """Draws arrivals; only the world's seed decides them, so that a world and its twin see the same requests."""

    def __init__(self, world: LedgerWorld) -> None:
        self._world = world
        self._random = np.random.default_rng([world.seed, 11])
        self._length_random = np.random.default_rng([world.seed, 12])
        self._burst_until_s = -1.0
        self._sessions = 0

    def rate(self, seconds: float) -> float:
        """Give the requests a second that a moment expects, without bursts."""
        hour = self._world.start_hour + seconds / 3600
        rhythm = self._world.rhythm
        swing = (1 + rhythm * math.cos(2 * math.pi * (hour - _BUSIEST_HOUR) / 24)) ** 2
        return self._world.rate_s * swing / (1 + rhythm * rhythm / 2)

    def draw(self, seconds: float, span_s: float) -> Arrivals:
        """Draw the requests of one slice."""
        world, random = self._world, self._random
        if random.random() < world.bursts_hour * span_s / 3600:
            self._burst_until_s = seconds + random.exponential(_BURST_S)
        raised = world.burst_factor if seconds < self._burst_until_s else 1.0
        count = int(random.poisson(self.rate(seconds) * raised * span_s))
        return self._draw_requests(count, seconds)

    def fill(self, count: int) -> Arrivals:
        """Draw requests that are already there when a world begins, each somewhere in its output."""
        drawn = self._draw_requests(count, 0.0)
        left = np.maximum(1, np.ceil(drawn.output * self._random.random(count)))
        return Arrivals(drawn.prompt, left, drawn.hits, drawn.session, drawn.pinned)

    def _draw_requests(self, count: int, seconds: float) -> Arrivals:
        world, random = self._world, self._random
        prompt = _draw_lengths(random, world.prompt_tokens, world.length_spread, count)
        output = _draw_lengths(random, world.output_tokens, world.length_spread, count)
        hits = np.minimum(prompt - 1, np.floor(prompt * np.minimum(0.98, 2 * world.hit_ratio * random.random(count))))
        fresh = random.random(count) * world.turns < 1
        back = np.floor(random.exponential(40.0, count))
        self._sessions += int(fresh.sum())
        session = np.maximum(0, self._sessions - back)
        arrivals = Arrivals(prompt, output, hits, session, np.full(count, -1.0))
        chance, choice = random.random(count), random.random(count)
        for fault in world.faults:
            if fault.kind in ("requests", "idle") and fault.acts(seconds):
                _pin(arrivals, fault, chance, choice)
        return arrivals

    def lengthen(self, arrivals: Arrivals, ranks: Array, seconds: float) -> None:
        """Make requests that were routed to a culprit longer, where that is the trouble."""
        for fault in self._world.faults:
            if fault.kind in ("context", "prefill") and fault.acts(seconds):
                long = np.isin(ranks, fault.ranks) & (self._length_random.random(len(ranks)) < fault.size)
                _lengthen(arrivals, fault.kind == "context", long)


def _draw_lengths(random: np.random.Generator, median: float, spread: float, count: int) -> Array:
    drawn = median * np.exp(spread * np.clip(random.standard_normal(count), -3, 3))
    return np.maximum(2, np.floor(drawn))


def _pin(arrivals: Arrivals, fault: LedgerFault, chance: Array, choice: Array) -> None:
    culprits = np.array(fault.ranks, float)
    drawn = culprits[np.minimum(len(culprits) - 1, (choice * len(culprits)).astype(int))]
    hit = chance < (1.0 if fault.kind == "idle" else fault.size)
    arrivals.pinned[hit] = drawn[hit]


def _lengthen(arrivals: Arrivals, history: bool, long: Array) -> None:
    factor = _HISTORY_FACTOR if history else _PROMPT_FACTOR
    arrivals.prompt[long] = np.floor(arrivals.prompt[long] * factor)
    if history:
        arrivals.hits[long] = np.floor(arrivals.prompt[long] * 0.98)
    else:
        arrivals.hits[long] = 0
        arrivals.output[long] = np.maximum(2, np.floor(arrivals.output[long] / 8))
