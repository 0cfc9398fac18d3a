"""The requests of a simulated deployment: who waits, who is computed, who decodes, and what room they take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.events import Array
from dprankdiag.harness.ledger_traffic import Arrivals

RANK, PROMPT, HELD, TODO, LEFT, PHASE, BORN, HITS, MADE = range(9)
WAITING, COMPUTING, DECODING = 0.0, 1.0, 2.0

_ADMIT_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class Admitted:
    """Requests that got room: `(requests,)` each.

    Attributes:
        rank, looked_up, found: their rank, prompt tokens, and how many of these the cache knew.
        born_s: when they came.
        again: taken back after a retraction.
    """

    rank: Array
    looked_up: Array
    found: Array
    born_s: Array
    again: Array


class Requests:
    """All requests of the deployment, one column each, in the order in which they came."""

    def __init__(self) -> None:
        self.table = np.zeros((9, 0))

    def __len__(self) -> int:
        return self.table.shape[1]

    def add(self, arrivals: Arrivals, ranks: Array, seconds: float, decoding: bool = False) -> None:
        """Let requests come in; of those that decode already, some of the output is done."""
        if not len(arrivals):
            return
        columns = np.zeros((9, len(arrivals)))
        columns[RANK], columns[PROMPT], columns[LEFT] = ranks, arrivals.prompt, arrivals.output
        columns[HITS], columns[BORN] = arrivals.hits, seconds
        if decoding:
            columns[PHASE], columns[HELD] = DECODING, arrivals.prompt
        self.table = np.concatenate((self.table, columns), axis=1)

    def drop(self, gone: Array) -> None:
        """Remove requests."""
        if gone.any():
            self.table = self.table[:, ~gone]

    def count(self, ranks: int, phase: float) -> Array:
        """Count the requests of a phase by rank."""
        here = self.table[RANK][self.table[PHASE] == phase].astype(np.int64)
        return np.bincount(here, minlength=ranks).astype(float)

    def sum(self, ranks: int, column: int, where: Array) -> Array:
        """Sum a column by rank."""
        here = self.table[RANK][where].astype(np.int64)
        return np.bincount(here, weights=self.table[column][where], minlength=ranks)

    def used(self, ranks: int) -> Array:
        """Count the KV tokens in use by rank."""
        return self.sum(ranks, HELD, self.table[PHASE] > WAITING)

    def admit(self, capacity: Array, limit: int, warmth: Array) -> Admitted | None:
        """Give room to waiting requests in their order; the first that does not fit blocks those behind it."""
        waiting = np.flatnonzero(self.table[PHASE] == WAITING)
        if not waiting.size:
            return None
        ranks = len(capacity)
        order = waiting[np.argsort(self.table[RANK][waiting], kind="stable")]
        rank = self.table[RANK][order].astype(np.int64)
        need = self.table[PROMPT][order] + self.table[MADE][order]
        busy = self.count(ranks, COMPUTING) + self.count(ranks, DECODING)
        room = np.maximum(_ADMIT_SHARE * capacity - self.used(ranks), 0)
        room = np.where(busy == 0, np.maximum(room, capacity), room)
        fits = (_sum_within(need, rank) <= room[rank]) & (_sum_within(np.ones(len(rank)), rank) <= (limit - busy)[rank])
        taken, rank = order[fits], rank[fits]
        if not taken.size:
            return None
        again = self.table[MADE][taken] > 0
        found = np.where(again, 0.0, np.floor(self.table[HITS][taken] * np.minimum(1.0, warmth[rank])))
        self.table[PHASE, taken] = COMPUTING
        self.table[HELD, taken] = need[fits]
        self.table[HITS, taken] = found
        self.table[TODO, taken] = np.maximum(1.0, need[fits] - found)
        return Admitted(rank, need[fits], found, self.table[BORN][taken], again)

    def plan_prefill(self, steps: int, ranks: int, chunk: int, late: Array, random: np.random.Generator) -> Array:
        """Lay prompt tokens over the steps of a slice: old ones at once, those admitted now as they come.

        Args:
            late: requests that were admitted in this slice.
        """
        plan = np.zeros((steps, ranks))
        todo = np.flatnonzero(self.table[PHASE] == COMPUTING)
        if not todo.size:
            return plan
        places = np.where(late[todo], random.integers(0, steps, todo.size), 0)
        np.add.at(plan, (places, self.table[RANK][todo].astype(np.int64)), self.table[TODO][todo])
        for step in range(steps):
            over = plan[step] - chunk
            if not (over > 0).any():
                if step and not (plan > chunk).any():
                    break
                continue
            moved = np.maximum(over, 0)
            plan[step] -= moved
            if step + 1 < steps:
                plan[step + 1] += moved
        return plan

    def compute(self, tokens: Array) -> Array:
        """Compute prompt tokens, `(ranks,)`, in the order of the requests; mark those that are complete."""
        todo = np.flatnonzero(self.table[PHASE] == COMPUTING)
        first = np.zeros(len(self), bool)
        if not todo.size:
            return first
        order = todo[np.argsort(self.table[RANK][todo], kind="stable")]
        rank, rest = self.table[RANK][order].astype(np.int64), self.table[TODO][order]
        done = np.clip(tokens[rank] - (_sum_within(rest, rank) - rest), 0, rest)
        self.table[TODO, order] = rest - done
        complete = order[rest - done < 0.5]
        self.table[PHASE, complete] = DECODING
        first[complete] = True
        return first

    def decode(self, steps: Array, accept: Array, decoding: Array) -> Array:
        """Let the decoding requests gain tokens; give the tokens of each."""
        rank = self.table[RANK][decoding].astype(np.int64)
        gained: Array = np.minimum(self.table[LEFT][decoding], np.floor(steps[rank] * accept[rank]))
        self.table[LEFT, decoding] -= gained
        self.table[HELD, decoding] += gained
        self.table[MADE, decoding] += gained
        return gained

    def retract(self, capacity: Array) -> Array:
        """Send the newest decoding requests back to the queue where the pool has overflown; give their columns."""
        ranks = len(capacity)
        over = self.used(ranks) - capacity
        victims: list[int] = []
        for rank in np.flatnonzero(over > 0):
            mine = np.flatnonzero((self.table[RANK] == rank) & (self.table[PHASE] == DECODING))[::-1]
            freed = np.cumsum(self.table[HELD][mine])
            count = min(int(np.searchsorted(freed, over[rank])) + 1, len(mine) - 1)
            victims.extend(mine[: max(count, 0)].tolist())
        self.table[PHASE, victims] = WAITING
        self.table[HELD, victims] = 0
        back: Array = self.table[:, victims]
        return back


def _sum_within(values: Array, group: Array) -> Array:
    """Sum up values within groups, which are numbered upwards and lie together."""
    through = np.cumsum(np.bincount(group, weights=values))
    before = np.concatenate((np.zeros(1), through[:-1]))
    within: Array = np.cumsum(values) - before[group]
    return within
