"""Choose engines as vLLM's front ends do: by counts of requests, each front end for itself.

Source: vllm 0.33.0, `v1/engine/core_client.py`, as run for tests/payloads/vllm-0.33.0/lb-score; the scores before it as
read in 0.11.2 and 0.22.1 and in PRs 30739, 47420 and 49204.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from dprankdiag.errors import UsageError
from dprankdiag.simulate.base import Load, Request
from dprankdiag.simulate.decisions import Decision, DecisionLog, Measure, Reason
from dprankdiag.simulate.routers.vllm_coordinator import Coordinator, Counts, Published

Score = Literal["kv", "four_waiting", "four_waiting_fixed"]
"""`kv`: since PR 49204, so 0.33.0. `four_waiting`: PR 47420 until then. `four_waiting_fixed`: 0.11.2 and 0.22.1."""

WAITING_WEIGHT = 4
KV_WEIGHT = 6
KV_FREE = 0.5


def score_kv(waiting: int, running: int, kv_ratio: float, inflight: int) -> float:
    """Score an engine as 0.33.0 does; the least wins.

    Args:
        waiting, running: requests, as last published and counted since.
        kv_ratio: used part of the KV pool, 0 to 1; up to one half, or with nobody waiting, it costs nothing.
        inflight: the client's own requests on the engine, times the number of clients: a floor under stale counts.
    """
    load = waiting + running if waiting + running > inflight else inflight
    if waiting == 0 or kv_ratio <= KV_FREE:
        return load
    return load + KV_WEIGHT * waiting * (kv_ratio - KV_FREE)


def score_four_waiting(waiting: int, running: int, kv_ratio: float, inflight: int) -> float:
    """Score an engine as 0.11.2 and 0.22.1 do: a waiting request weighs four running ones."""
    return WAITING_WEIGHT * waiting + running


def measure_kv(load: Load) -> tuple[float, ...]:
    """Give the score of 0.33.0 for an engine's true load, where nothing is stale and so no floor is needed."""
    return (score_kv(load.waiting, load.running, share_kv(load), 0),)


def measure_four_waiting(load: Load) -> tuple[float, ...]:
    """Give the score of 0.11.2 and 0.22.1 for an engine's true load."""
    return (score_four_waiting(load.waiting, load.running, 0.0, 0),)


def share_kv(load: Load) -> float:
    """Give the used part of the KV pool, 0 to 1."""
    return load.used_tokens / load.capacity_tokens if load.capacity_tokens else 0.0


class VllmFrontEnd:
    """Choose engines as one API server does: one client of the engines that it sees; engines count from 0 within it.

    Attributes:
        start: where the next scan begins.
        counts: of each engine, as last published, waiting raised by its own choices since.
        inflight: of its own requests, on each engine.
    """

    def __init__(self, n_engines: int, *, clients: int = 1, client: int = 0, score: Score = "kv") -> None:
        self.start = n_engines * client // clients
        self.counts: list[Counts] = [(0, 0, 0.0)] * n_engines
        self.inflight = [0] * n_engines
        self._clients = clients
        self._rotates = score != "four_waiting_fixed"
        self._score = score_kv if score == "kv" else score_four_waiting
        self._scores = [0.0] * n_engines

    def take(self, counts: Sequence[Counts]) -> None:
        """Take published counts; what it counted itself since the last ones is forgotten."""
        self.counts = list(counts)
        for engine in range(len(counts)):
            self._rate(engine)

    def choose(self) -> int:
        """Choose an engine: the scan begins one further at each choice, and the first of equals wins."""
        scores = self._scores
        least = min(scores)
        best = scores.index(least, self.start) if least in scores[self.start :] else scores.index(least)
        waiting, running, kv_ratio = self.counts[best]
        self.counts[best] = (waiting + self._clients, running, kv_ratio)
        self.inflight[best] += 1
        self._rate(best)
        if self._rotates:
            self.start = (self.start + 1) % len(scores)
        return best

    def pin(self, engine: int) -> int:
        """Take the engine that a request demands: it is in flight there, but nothing else is counted.

        Raises:
            UsageError: there is no such engine behind this port.
        """
        if not 0 <= engine < len(self.counts):
            raise UsageError(f"engine {engine} is demanded of a front end that sees {len(self.counts)}")
        self.inflight[engine] += 1
        self._rate(engine)
        return engine

    def finish(self, engine: int) -> None:
        """Take that one of its requests has ended on an engine."""
        self.inflight[engine] -= 1
        self._rate(engine)

    def _rate(self, engine: int) -> None:
        waiting, running, kv_ratio = self.counts[engine]
        self._scores[engine] = self._score(waiting, running, kv_ratio, self._clients * self.inflight[engine])


@dataclass(frozen=True, slots=True)
class Layout:
    """Who sees which engines.

    Attributes:
        n_engines: of the deployment, over all nodes.
        nodes: that balance for themselves: 1 for the internal balancer, the nodes of hybrid, the ranks of external.
        clients: front ends of a node, each a client of the engines of its node alone.
        lockstep: a MoE model.
        score: the release's.
        silent: engines report no counts (dense models from PR 30739 to PR 49204), so that heartbeats carry zeros.
    """

    n_engines: int
    nodes: int = 1
    clients: int = 1
    lockstep: bool = True
    score: Score = "kv"
    silent: bool = False

    @property
    def is_external(self) -> bool:
        """Say whether each engine has a port of its own, and the balancer is outside."""
        return self.nodes == self.n_engines and self.n_engines > 1


Door = Callable[[Request], int]
"""Says which front end a request reaches: a number that is taken modulo all front ends."""


class VllmRouter:
    """Choose engines as the front ends and the coordinator of a deployment do; a `Router`.

    A request reaches front end `door(request)`, by default in turn: a kernel that spreads connections, or a balancer
    outside that knows nothing. A demanded rank counts within the node.

    Attributes:
        coordinator: of all engines.
        front_ends: of all nodes, node by node.
        published: what the coordinator sent, in order, unless not kept.
    """

    def __init__(self, layout: Layout, *, door: Door | None = None, keep: bool = True) -> None:
        if layout.n_engines % layout.nodes:
            raise UsageError(f"{layout.n_engines} engines do not divide by {layout.nodes} nodes")
        self._local = layout.n_engines // layout.nodes
        self.coordinator = Coordinator(layout.n_engines, lockstep=layout.lockstep, external=layout.is_external)
        self.front_ends = [
            VllmFrontEnd(self._local, clients=layout.clients, client=client, score=layout.score)
            for _ in range(layout.nodes)
            for client in range(layout.clients)
        ]
        self._log = DecisionLog(keep)
        self.published: list[Published] = []
        self._layout = layout
        self._door = door or (lambda request: request.number)
        self._reported: list[Load | None] = [None] * layout.n_engines
        self._stamps: tuple[int | None, ...] = (None,) * layout.n_engines
        self._took: dict[int, int] = {}
        self._last = 0

    @property
    def decisions(self) -> list[Decision]:
        """Give the decisions in order; none are there unless they are kept."""
        return self._log.read()

    @property
    def measure(self) -> Measure:
        """Give what the score compares."""
        return measure_kv if self._layout.score == "kv" else measure_four_waiting

    def observe(self, now_ns: int, loads: Sequence[Load | None]) -> None:
        """Take what the engines show; they report it only where running or waiting has changed.

        So the KV use that front ends know of an engine stands still while its counts do. Loads that name no step are
        taken to be of one step where their stamps are equal.
        """
        self._advance(now_ns)
        if self._layout.silent or self._layout.is_external:
            return
        for engine, load in enumerate(loads):
            old = self._reported[engine]
            if load is None or (old is not None and (old.waiting, old.running) == (load.waiting, load.running)):
                continue
            self._reported[engine] = load
            counts = (load.waiting, load.running, share_kv(load))
            step = load.stamp_ns if load.step is None else load.step
            self.coordinator.report(now_ns, engine, counts, step=step, stamp_ns=load.stamp_ns)

    def place(self, now_ns: int, request: Request) -> int:
        """Choose the engine of a request, at the front end that it reaches.

        Raises:
            UsageError: it demands an engine that its node does not have.
        """
        self._advance(now_ns)
        door = self._door(request) % len(self.front_ends)
        front_end = self.front_ends[door]
        first = door // self._layout.clients * self._local
        believed = [waiting + running for waiting, running, _ in front_end.counts] if self._log.keeps else []
        engine = first + (front_end.choose() if request.pinned_rank is None else front_end.pin(request.pinned_rank))
        self._took[request.number] = self._last = door
        if self._log.keeps:
            self._note(now_ns, request, engine, first, believed)
        return engine

    def release(self, now_ns: int, request: Request, rank: int) -> None:
        """Take that a request has ended: its front end has one less in flight there."""
        door = self._took.pop(request.number, None)
        if door is not None:
            self.front_ends[door].finish(rank % self._local)

    def believed(self) -> list[Load | None]:
        """Give what the front end that chose last believes; none of engines it does not see or that never reported.

        It is not told of tokens, but of the used part of the pool: `total_tokens` are the used ones, and none wait.
        """
        front_end = self.front_ends[self._last]
        first = self._last // self._layout.clients * self._local
        ledger: list[Load | None] = [None] * self._layout.n_engines
        for engine, (waiting, running, kv_ratio) in enumerate(front_end.counts, start=first):
            load, stamp = self._reported[engine], self._stamps[engine]
            if load is not None and stamp is not None:
                used = round(kv_ratio * load.capacity_tokens)
                ledger[engine] = Load(stamp, running, waiting, 0, used, used, load.capacity_tokens)
        return ledger

    def _note(self, now_ns: int, request: Request, engine: int, first: int, believed: Sequence[int]) -> None:
        reason: Reason = "policy" if request.pinned_rank is None else "pinned"
        requests: tuple[int | None, ...] = tuple(believed)
        stamps = self._stamps
        if self._local < self._layout.n_engines:
            before, stop = (None,) * first, first + self._local
            after = (None,) * (self._layout.n_engines - stop)
            requests, stamps = (*before, *requests, *after), (*before, *stamps[first:stop], *after)
        self._log.note(now_ns, request, engine, reason, requests, None, stamps)

    def _advance(self, now_ns: int) -> None:
        """Publish what was due until now."""
        due = self.coordinator.due_ns
        while due is not None and due <= now_ns:
            self._deliver(self.coordinator.publish(due))
            due = self.coordinator.due_ns

    def _deliver(self, message: Published) -> None:
        if self._log.keeps:
            self.published.append(message)
        if message.counts is None or message.stamps_ns is None:
            return
        self._stamps = message.stamps_ns
        for door, front_end in enumerate(self.front_ends):
            first = door // self._layout.clients * self._local
            front_end.take(message.counts[first : first + self._local])
