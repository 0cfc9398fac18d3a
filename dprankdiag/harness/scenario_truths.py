"""Tell what the ranks of a serving world have: the requests that were sent to them and have not ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dprankdiag.model.schema import ABSENT_ID
from dprankdiag.simulate.base import IntArray, Load
from dprankdiag.simulate.workers import Worker
from dprankdiag.simulate.world_tables import LOAD_COLUMNS, Outcome

Place = tuple[int, int]
"""A worker and a rank in it."""


class HeldRequests:
    """Count the requests that each rank has at a moment.

    A scheduler's own count, read at any moment, may leave some out: SGLang's those whose prompts the step under way
    computes, which join the running batch as it ends. Of ranks that compute prompts for others the tables do not tell
    when a request leaves them, and nothing is counted.
    """

    def __init__(self, outcome: Outcome) -> None:
        requests, decisions = outcome.requests, outcome.decisions
        refused = requests["request"][requests["refused"] == 1]
        chosen = (decisions["rank"] != ABSENT_ID) & ~np.isin(decisions["request"], refused)
        served = requests["refused"] == 0
        places = set(zip(requests["worker"][served].tolist(), requests["rank"][served].tolist(), strict=True))
        self._sent: dict[Place, tuple[IntArray, IntArray]] = {}
        self._ended: dict[Place, IntArray] = {}
        self._served = set(requests["worker"].tolist())
        for worker, rank in places:
            sent = chosen & (decisions["worker"] == worker) & (decisions["rank"] == rank)
            gone = served & (requests["worker"] == worker) & (requests["rank"] == rank)
            self._sent[worker, rank] = decisions["decision"][sent], decisions["time_ns"][sent]
            self._ended[worker, rank] = np.sort(requests["end_ns"][gone])

    def count(self, place: Place, decision: int, now_ns: int) -> int | None:
        """Count the requests of a rank just before a decision; none where untold.

        What ends at that moment is still there: arrivals come first.
        """
        if place[0] not in self._served:
            return None
        if place not in self._sent:
            return 0
        sent, _ = self._sent[place]
        return int(np.searchsorted(sent, decision)) - int(np.searchsorted(self._ended[place], now_ns))

    def list_changes(self, places: Sequence[Place]) -> list[tuple[int, int]] | None:
        """List moments and how many requests some ranks together have from then on; none where untold."""
        if any(worker not in self._served for worker, _ in places):
            return None
        known = [place for place in places if place in self._sent]
        sent = np.concatenate([np.empty(0, np.int64), *(self._sent[place][1] for place in known)])
        ended = np.concatenate([np.empty(0, np.int64), *(self._ended[place] for place in known)])
        moments = np.unique(np.concatenate([sent, ended]))
        after = [np.searchsorted(np.sort(each), moments, side="right") for each in (sent, ended)]
        return list(zip(moments.tolist(), (after[0] - after[1]).tolist(), strict=True))


def list_capacities(worker: Worker) -> list[int]:
    """List the KV tokens that the pool of each rank holds."""
    return [rules.open().load(0).capacity_tokens for rules in worker.ranks]


def take_levels(outcome: Outcome, numbers: IntArray, capacities: Sequence[int]) -> list[list[Load]]:
    """Take the load of all choices at each decision, as schedulers count.

    Args:
        numbers: of the decisions.
        capacities: of the pool of each choice.
    """
    beliefs = outcome.beliefs
    starts = np.searchsorted(beliefs["decision"], numbers).tolist()
    columns = {name: beliefs[f"true_{name}"].tolist() for name in LOAD_COLUMNS}

    def take(row: int, size: int) -> Load:
        return Load(stamp_ns=0, capacity_tokens=size, **{name: column[row] for name, column in columns.items()})

    return [[take(start + choice, size) for choice, size in enumerate(capacities)] for start in starts]
