"""A simulated deployment: requests come, are routed, computed and counted, slice by slice.

Nothing of it is shared with the code that judges: the physics, the counters and their names are the harness's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dprankdiag.harness.events import Array
from dprankdiag.harness.ledger_counts import Counts, Shown
from dprankdiag.harness.ledger_requests import (
    BORN,
    COMPUTING,
    DECODING,
    HELD,
    HITS,
    LEFT,
    MADE,
    PHASE,
    PROMPT,
    RANK,
    WAITING,
    Admitted,
    Requests,
)
from dprankdiag.harness.ledger_router import Router
from dprankdiag.harness.ledger_steps import Load, Slice, run_slice
from dprankdiag.harness.ledger_traffic import Traffic
from dprankdiag.harness.ledger_world import LedgerWorld

EPOCH_S = 1_785_000_000.0
"""UTC of a simulated world's beginning."""

REPORT_STEPS = 40
PUBLISH_BATCHES = 15
LAYERS = 4

_WARM_S = 600.0
_IDLE_REPORT_S = 30.0
_PROBE_STEPS = 8


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What the engine has counted and shows at a moment.

    Attributes:
        seconds: after the world's beginning.
        ranks: DP ranks at the moment.
        running, waiting, used: `(ranks,)` as they are.
        counts, shown: as the engine tells them.
        accept: `(ranks,)` tokens gained a step and request.
        capacity: `(ranks,)` KV tokens that a rank's pool holds.
        epoch_s: UTC of the world's beginning.
        queues: by name of QUEUES, `(ranks,)` as they are; without a name, that queue is empty.
    """

    seconds: float
    ranks: int
    running: Array
    waiting: Array
    used: Array
    counts: Counts
    shown: Shown
    accept: Array
    capacity: Array
    epoch_s: float = EPOCH_S
    queues: Mapping[str, Array] = field(default_factory=dict)


class Deployment:
    """All ranks, from one start of their processes to the next."""

    def __init__(self, world: LedgerWorld, traffic: Traffic, ranks: int, begin_s: float, warm: bool) -> None:
        self.world, self.ranks = world, ranks
        self._traffic = traffic
        self._random = np.random.default_rng([world.seed, 21, int(begin_s)])
        self._router = Router(world, ranks)
        self._requests = Requests()
        self._begin_s = begin_s - (2 * _WARM_S if warm else 0.0)
        self._debt_s = np.zeros(ranks)
        self._probe_s = begin_s
        self.counts = Counts.start(ranks, LAYERS)
        self.shown = Shown.start(ranks)
        self.steps = 0.0
        if warm:
            self._fill(begin_s)

    def _fill(self, seconds: float) -> None:
        world = self.world
        step_s = world.base_s * 1.4
        length = world.output_tokens * float(np.exp(world.length_spread**2 / 2))
        count = self._traffic.rate(seconds) * length / max(world.accept_tokens, 1.0) * step_s
        count = min(count, 0.8 * world.running_limit * self.ranks)
        there = self._traffic.fill(self._random.poisson(count))
        self._requests.add(there, np.arange(len(there)) % self.ranks, seconds, decoding=True)

    def advance(self, seconds: float, span_s: float) -> None:
        """Run one slice that begins at a moment."""
        requests, ranks = self._requests, self.ranks
        self._receive(seconds, span_s)
        known = len(requests)
        before = requests.table[PHASE].copy()
        capacity = self._capacity(seconds)
        admitted = requests.admit(capacity, self.world.running_limit, self._warmth(seconds))
        if admitted is not None:
            self._count_admitted(admitted, seconds)
        if not len(requests) or not (requests.table[PHASE] > WAITING).any():
            self._rest(seconds, span_s)
            return
        accept = self.accept(seconds)
        late = np.zeros(known, bool)
        late[:] = (before == WAITING) & (requests.table[PHASE] == COMPUTING)
        wanted = int(np.ceil(span_s / self.world.base_s)) + 2
        plan = requests.plan_prefill(wanted, ranks, self.world.chunk_tokens, late, self._random)
        ran = run_slice(self.world, self._load(seconds, plan, accept), span_s, self._random)
        self._debt_s = ran.debt_s
        self.steps += float(ran.ran.any(axis=1).sum())
        self.counts.add_slice(ran, accept)
        self._count_experts(ran, seconds)
        self._settle(ran, accept, seconds, span_s)
        self._retract(capacity)
        self._show(ran, seconds, span_s)

    def state(self, seconds: float) -> LedgerState:
        """Copy what there is to see."""
        requests = self._requests
        running = requests.count(self.ranks, DECODING) + requests.count(self.ranks, COMPUTING)
        return LedgerState(
            seconds=seconds,
            ranks=self.ranks,
            running=running,
            waiting=requests.count(self.ranks, WAITING),
            used=requests.used(self.ranks),
            counts=self.counts.copy(),
            shown=self.shown.copy(),
            accept=self.accept(seconds),
            capacity=self._capacity(seconds),
        )

    def accept(self, seconds: float) -> Array:
        """Give the tokens that a request gains a step, by rank."""
        accept = np.full(self.ranks, self.world.accept_tokens)
        if fault := self.world.acting("speculation", seconds):
            accept[list(fault.ranks)] = fault.size
        return accept

    def _capacity(self, seconds: float) -> Array:
        capacity = np.full(self.ranks, float(self.world.capacity_tokens))
        if fault := self.world.acting("kv_pressure", seconds):
            capacity[list(fault.ranks)] *= fault.size
        return capacity

    def _warmth(self, seconds: float) -> Array:
        warmth = np.full(self.ranks, min(1.0, (seconds - self._begin_s) / _WARM_S))
        if fault := self.world.acting("cache", seconds):
            warmth[list(fault.ranks)] *= fault.size / self.world.hit_ratio
        return warmth

    def _receive(self, seconds: float, span_s: float) -> None:
        requests = self._requests
        arrivals = self._traffic.draw(seconds, span_s)
        if not len(arrivals):
            return
        total = requests.table[HELD] + np.where(requests.table[PHASE] == WAITING, requests.table[PROMPT], 0.0)
        held = np.bincount(requests.table[RANK].astype(np.int64), weights=total, minlength=self.ranks)
        number = np.bincount(requests.table[RANK].astype(np.int64), minlength=self.ranks).astype(float)
        self._router.see(seconds, number, held)
        placed = self._router.place(arrivals)
        self._traffic.lengthen(arrivals, placed, seconds)
        full = requests.count(self.ranks, WAITING) >= self.world.queue_limit
        requests.add(arrivals, placed, seconds)
        if full.any():
            turned_away = (requests.table[BORN] == seconds) & full[requests.table[RANK].astype(np.int64)]
            requests.drop(turned_away & (requests.table[PHASE] == WAITING))

    def _count_admitted(self, admitted: Admitted, seconds: float) -> None:
        new = ~admitted.again

        def by_rank(values: Array, where: Array) -> Array:
            return np.bincount(admitted.rank[where], weights=values[where], minlength=self.ranks)

        self.counts.add(
            cached=by_rank(admitted.found, new),
            looked_up=by_rank(admitted.looked_up, new),
            found=by_rank(admitted.found, new),
            admitted=by_rank(new.astype(float), new),
            queued_s=by_rank(np.maximum(0.002, seconds - admitted.born_s), new),
        )
        self.counts.together[1, 1] += by_rank(admitted.found, new)
        looked = by_rank(admitted.looked_up, new)
        rates = np.divide(by_rank(admitted.found, new), looked, out=np.zeros(self.ranks), where=looked > 0)
        self.shown.gauges["hit_rate"] = np.where(looked > 0, rates, self.shown.gauges["hit_rate"])

    def _load(self, seconds: float, plan: Array, accept: Array) -> Load:
        table, ranks, world = self._requests.table, self.ranks, self.world
        decoding, computing = table[PHASE] == DECODING, table[PHASE] == COMPUTING
        number = np.bincount(table[RANK][computing].astype(np.int64), minlength=ranks)
        prefix = self._requests.sum(ranks, HITS, computing) / np.maximum(number, 1)
        gpu, late_s = np.ones(ranks), np.zeros(ranks)
        if fault := world.acting("gpu", seconds):
            gpu[list(fault.ranks)] *= fault.size
        if fault := world.acting("uniform", seconds):
            gpu *= fault.size
        if fault := world.acting("host", seconds):
            late_s[list(fault.ranks)] = fault.size
        expert = world.acting("expert", seconds)
        return Load(
            rank=table[RANK][decoding],
            held=table[HELD][decoding],
            decodes=np.ceil(table[LEFT][decoding] / accept[table[RANK][decoding].astype(np.int64)]),
            prefill=plan,
            prefix=prefix,
            accept=accept,
            gpu=gpu,
            late_s=late_s,
            expert=expert.size if expert else 1.0,
            debt_s=self._debt_s,
        )

    def _settle(self, ran: Slice, accept: Array, seconds: float, span_s: float) -> None:
        """Move the requests on by what ran, and count what they tell when they get somewhere."""
        requests, ranks = self._requests, self.ranks
        table = requests.table
        steps = (ran.rows > 0).sum(axis=0).astype(float)
        decoding = np.flatnonzero(table[PHASE] == DECODING)
        gained = requests.decode(steps, accept, decoding)
        rank = table[RANK][decoding].astype(np.int64)
        self.counts.add(generated=np.bincount(rank, weights=gained, minlength=ranks))
        first = requests.compute(ran.prefill.sum(axis=0))
        fresh = first & (table[MADE] == 0)
        waited = np.maximum(0.02, seconds + span_s / 2 - table[BORN])
        here = table[RANK][fresh].astype(np.int64)

        def by_rank(values: Array) -> Array:
            return np.bincount(here, weights=values[fresh], minlength=ranks)

        computed = by_rank(table[PROMPT] - table[HITS])
        self.counts.add(
            first_s=by_rank(waited),
            firsts=by_rank(np.ones(len(fresh))),
            prompt_seen=by_rank(table[PROMPT]),
            prompt_found=by_rank(table[HITS]),
            iteration_tokens=computed,
        )
        ended = (table[PHASE] == DECODING) & (table[LEFT] < 0.5)
        over = table[RANK][ended].astype(np.int64)
        self.counts.add(done=np.bincount(over, minlength=ranks))
        requests.drop(ended)

    def _retract(self, capacity: Array) -> None:
        back = self._requests.retract(capacity)
        if not back.shape[1]:
            return
        rank = back[RANK].astype(np.int64)
        self.counts.add(
            retracted=np.bincount(rank, minlength=self.ranks),
            retracted_prompt=np.bincount(rank, weights=back[PROMPT], minlength=self.ranks),
            retracted_output=np.bincount(rank, weights=back[MADE], minlength=self.ranks),
        )

    def _count_experts(self, ran: Slice, seconds: float) -> None:
        if not self.world.expert_counts:
            return
        routed = ran.tokens.sum()
        share = np.full((LAYERS, self.ranks), 1.0)
        if fault := self.world.acting("expert", seconds):
            share[: LAYERS - 1, list(fault.ranks)] = fault.size
        share *= 1 + 0.02 * self._random.standard_normal(share.shape)
        self.counts.experts += np.floor(8 * routed * share / share.sum(axis=1, keepdims=True))

    def _rest(self, seconds: float, span_s: float) -> None:
        """Let a slice without work pass, but for health probes."""
        self._debt_s = np.zeros(self.ranks)
        self.counts.add(idle_s=np.full(self.ranks, span_s), cpu_s=np.full(self.ranks, span_s))
        if self.world.probes_s and seconds - self._probe_s >= self.world.probes_s:
            self._probe_s = seconds
            self._probe(int(self._random.integers(self.ranks)))
        if self.shown.idle_since_s < 0:
            self.shown.idle_since_s = seconds
        now = self._look()
        if seconds - self.shown.idle_since_s >= _IDLE_REPORT_S:
            self._write_gauges(now, ~np.isnan(self.shown.gauges["running"]), seconds)
        self._publish(now, np.ones(self.ranks, bool), seconds + span_s)

    def _probe(self, rank: int) -> None:
        """Answer a health probe: a token or a few, which no step of the load's own records."""
        idle = np.arange(self.ranks) != rank
        time_s = _PROBE_STEPS * self.world.base_s
        self.counts.by_rank["generated"][rank] += _PROBE_STEPS
        self.counts.by_rank["graph_decodes"][rank] += _PROBE_STEPS
        self.counts.by_rank["decode_forward_s"][rank] += time_s
        self.counts.by_rank["idle_forward_s"][idle] += time_s
        self.counts.together[2, 0, rank] += _PROBE_STEPS

    def _show(self, ran: Slice, seconds: float, span_s: float) -> None:
        shown, counts = self.shown, self.counts
        shown.idle_since_s = -1.0
        now = self._look()
        prefilled = (ran.prefill > 0).any(axis=0)
        decoded = counts.by_rank["decode_steps"]
        self._write_gauges(now, prefilled | (decoded - shown.told_steps >= REPORT_STEPS), seconds + span_s)
        batches = counts.by_rank["batches"]
        resting = ~ran.ran.any(axis=0) & (not self.world.lockstep)
        due = prefilled | (batches - shown.published >= PUBLISH_BATCHES) | resting
        since = np.where(due, batches % PUBLISH_BATCHES, 0)
        step_s = ran.step_s.sum(axis=0) / np.maximum(1, ran.ran.sum(axis=0))
        self._publish(now, due, seconds + span_s - np.minimum(since * step_s, span_s))

    def _look(self) -> dict[str, Array]:
        """Look at the queues and the pool as they are."""
        requests, ranks, phase = self._requests, self.ranks, self._requests.table[PHASE]
        waiting = phase == WAITING
        return {
            "running": requests.count(ranks, DECODING) + requests.count(ranks, COMPUTING),
            "waiting": requests.count(ranks, WAITING),
            "queued_tokens": requests.sum(ranks, PROMPT, waiting),
            "known_tokens": requests.sum(ranks, HITS, waiting),
            "used": requests.used(ranks),
            "context": requests.sum(ranks, HELD, phase == DECODING),
        }

    def _write_gauges(self, look: dict[str, Array], where: Array, seconds: float) -> None:
        if not where.any():
            return
        shown, ranks = self.shown, self.ranks
        generated = self.counts.by_rank["generated"]
        spent_s = np.maximum(seconds - shown.told_s, 1e-3)
        now = {
            "running": look["running"],
            "queued": look["waiting"],
            "used": look["used"],
            "context": look["context"],
            "throughput": (generated - shown.told_tokens) / spent_s,
            "accept": self.accept(seconds) if self.world.accept_tokens > 1 else np.zeros(ranks),
        }
        for name, values in now.items():
            shown.gauges[name] = np.where(where, values, shown.gauges[name])
        shown.gauges["hit_rate"] = np.where(where, np.nan_to_num(shown.gauges["hit_rate"]), shown.gauges["hit_rate"])
        shown.told_steps = np.where(where, self.counts.by_rank["decode_steps"], shown.told_steps)
        shown.told_tokens = np.where(where, generated, shown.told_tokens)
        shown.told_s = np.where(where, seconds, shown.told_s)

    def _publish(self, look: dict[str, Array], where: Array, stamp_s: Array | float) -> None:
        if fault := self.world.acting("stale", float(np.max(stamp_s))):
            where = where & ~np.isin(np.arange(self.ranks), fault.ranks)
        now = {
            "stamp_s": np.broadcast_to(np.asarray(stamp_s, float), (self.ranks,)),
            "running": look["running"],
            "waiting": look["waiting"],
            "waiting_tokens": look["queued_tokens"] - look["known_tokens"],
            "used": look["used"],
            "total": look["used"] + look["queued_tokens"],
            "computed": self.counts.by_rank["computed"],
            "prefill_busy_s": self.counts.by_rank["prefill_busy_s"],
        }
        for name, values in now.items():
            self.shown.snapshot[name] = np.where(where, values, self.shown.snapshot[name])
        self.shown.moments = np.where(where[:, None], self.counts.moments, self.shown.moments)
        self.shown.published = np.where(where, self.counts.by_rank["batches"], self.shown.published)
