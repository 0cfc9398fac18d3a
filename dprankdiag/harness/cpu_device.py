"""A rank that computes nothing and sleeps for as long as its work would take, but meets the others for real.

So a host waits for its GPU, and ranks do not fight for the cores of a small machine. Only what is slow about the
machine itself, waking up late, is noise.
"""

from __future__ import annotations

import numpy as np

from dprankdiag.harness.cpu_collectives import Collectives
from dprankdiag.harness.events import Array
from dprankdiag.harness.run_steps import pause

HELD_TOKEN_NS, PROMPT_TOKEN_NS = 560, 800_000
"""What a token takes in a layer: 18 ms for sixteen requests of 2,000 tokens each, 38 ms more for 48 of a prompt."""

ROUTER_NS, EXPERTS_NS, ROW_NS = 4_000_000, 2_000_000, 750_000
"""What a layer takes on every rank alike, for the experts' weights, and for each row at the rank's experts."""

MESSAGE_NS = 8_000_000
"""What a message takes that is sent once more."""

_HIDDEN = 256


class CpuDevice:
    """Work asleep, collectives over sockets or gloo."""

    def __init__(self, group: Collectives, rank: int) -> None:
        self._group = group
        self._own: Array = np.full(_HIDDEN, float(rank))
        self._gathered: Array = self._own

    def announce(self, rows: int) -> int:
        """Gather the rows of all ranks."""
        return int(self._group.all_gather(np.array([rows], float)).sum())

    def dally(self, duration_ns: int) -> None:
        """Sleep."""
        pause(duration_ns)

    def attend(self, requests: int, held_tokens: int, prompt_tokens: int, slowness: float) -> None:
        """Sleep by the tokens; how many requests they are of makes no difference."""
        pause(round(slowness * (held_tokens * HELD_TOKEN_NS + prompt_tokens * PROMPT_TOKEN_NS)))

    def gather(self, messages: int) -> None:
        """Gather a row of each rank, then sleep for what is sent once more."""
        self._gathered = self._group.all_gather(self._own)
        pause((messages - 1) * MESSAGE_NS)

    def route(self, rows: int, slowness: float) -> None:
        """Sleep for as long as any rank."""
        pause(round(slowness * ROUTER_NS))

    def compute_experts(self, rows: float, slowness: float) -> None:
        """Sleep by the rows."""
        pause(round(slowness * (EXPERTS_NS + rows * ROW_NS)))

    def scatter(self, messages: int) -> None:
        """Add up the rows of each rank, then sleep for what is sent once more."""
        self._group.reduce_scatter(self._gathered)
        pause((messages - 1) * MESSAGE_NS)

    def finish(self, requests: int) -> None:
        """Do nothing: whoever sleeps has done the work."""
