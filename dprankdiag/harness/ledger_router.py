"""The router of a simulated deployment, which knows the ranks by counts of some age."""

from __future__ import annotations

import numpy as np

from dprankdiag.harness.events import Array
from dprankdiag.harness.ledger_traffic import Arrivals
from dprankdiag.harness.ledger_world import LedgerWorld

_SPREAD = 2_654_435_761
"""Multiplier that scatters session numbers over the ranks."""


class Router:
    """Places requests; keeps the counts it last saw and what it has sent since."""

    def __init__(self, world: LedgerWorld, ranks: int) -> None:
        self._world = world
        self._ranks = ranks
        self._turn = 0
        self._requests = np.zeros(ranks)
        self._tokens = np.zeros(ranks)
        self._seen_s = -np.inf

    def see(self, seconds: float, requests: Array, tokens: Array) -> None:
        """Take the ranks' counts, if the last ones are old enough to be published anew."""
        if seconds - self._seen_s >= self._world.publish_s:
            self._requests, self._tokens, self._seen_s = requests.copy(), tokens.copy(), seconds

    def place(self, arrivals: Arrivals) -> Array:
        """Give the rank of each request."""
        placed = np.empty(len(arrivals))
        for position in range(len(arrivals)):
            pinned = int(arrivals.pinned[position])
            rank = pinned if 0 <= pinned < self._ranks else self._choose(arrivals.session[position])
            self._requests[rank] += 1
            self._tokens[rank] += arrivals.prompt[position]
            placed[position] = rank
        return placed

    def _choose(self, session: float) -> int:
        match self._world.policy:
            case "round_robin":
                self._turn = (self._turn + 1) % self._ranks
                return self._turn
            case "least_requests":
                return int(self._requests.argmin())
            case "least_tokens":
                return int(self._tokens.argmin())
            case "sticky":
                return int(session) * _SPREAD % 2**32 % self._ranks
