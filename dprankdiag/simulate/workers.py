"""Run the ranks of one engine: their groups, what they publish, and what their router sees of it.

Source: sgl-project/sglang@01ac0074 and release 0.5.23: a rank publishes its load with every batch that computes
prompts, on every pass without work, and otherwise with every 15th batch, idle ones of a lockstep group included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dprankdiag.simulate.base import Costs, Load, Router
from dprankdiag.simulate.groups import Group
from dprankdiag.simulate.lockstep import LockstepRules, Meeting
from dprankdiag.simulate.ranks import Levels, Pace, Rank, RankRules
from dprankdiag.simulate.waves import WaveRules
from dprankdiag.simulate.world_tables import Ledger


@dataclass(frozen=True, slots=True)
class Publishing:
    """When ranks publish their load.

    Attributes:
        every_batches: a batch of this number since the last, whatever it holds; none for never.
        prompts: each batch that computes prompts.
        changes: whenever the number of running or waiting requests changed (vLLM).
        delay_ns: until the router can see it.
    """

    every_batches: int | None = 15
    prompts: bool = True
    changes: bool = False
    delay_ns: int = 0


SGLANG_PUBLISHING = Publishing()
VLLM_PUBLISHING = Publishing(every_batches=None, prompts=False, changes=True)
SGLANG_MEETING = LockstepRules()


@dataclass(frozen=True, slots=True)
class Worker:
    """An engine.

    Attributes:
        ranks: how each schedules.
        router: chooses the rank.
        costs: says how long steps take.
        meeting: how ranks agree on a step.
        lockstep: all ranks step together; else each for itself.
        publishing: when ranks tell their loads.
        waves: how a lockstep group begins and ends (vLLM); none where it runs whenever a rank has work.
        pace: says instead how long steps take, given what costs say; none where costs decide.
    """

    ranks: tuple[RankRules, ...]
    router: Router
    costs: Costs
    meeting: Meeting = SGLANG_MEETING
    lockstep: bool = True
    publishing: Publishing = SGLANG_PUBLISHING
    waves: WaveRules | None = None
    pace: Pace | None = None


@dataclass(frozen=True, slots=True)
class StepLedgers:
    """The ledgers that workers write."""

    steps: Ledger
    rank_steps: Ledger
    publishes: Ledger


class OpenWorker:
    """A worker at work.

    Attributes:
        groups_of_ranks: the group of each rank.
        visible: what the router can see of each rank.
    """

    def __init__(self, spec: Worker, number: int, tables: StepLedgers) -> None:
        self.spec = spec
        self.number = number
        self.ranks: list[Rank] = [rules.open() for rules in spec.ranks]
        size = len(self.ranks) if spec.lockstep else 1
        self.groups = [Group(self, first, size) for first in range(0, len(self.ranks), size)]
        self.groups_of_ranks = [group for group in self.groups for _ in range(size)]
        self.visible: list[Load | None] = [None] * len(self.ranks)
        self._coming: deque[tuple[int, int, Load]] = deque()
        self.steps, self.rank_steps, self._publishes = tables.steps, tables.rank_steps, tables.publishes
        self._told = [(-1, -1)] * len(self.ranks)

    def publish(self, now_ns: int, rank: int) -> None:
        """Let a rank publish its load."""
        load = replace(self.ranks[rank].load(now_ns), step=self.groups_of_ranks[rank].begun)
        self._coming.append((now_ns + self.spec.publishing.delay_ns, rank, load))
        self._publishes.add((now_ns, self.number, rank, *tell_levels(load), *self.ranks[rank].queues(now_ns)))

    def note_change(self, now_ns: int, rank: int) -> None:
        """Publish the load of a rank whose counts of requests changed, where ranks do so."""
        if not self.spec.publishing.changes:
            return
        counts = self.ranks[rank].levels(now_ns)[:2]
        if counts != self._told[rank]:
            self._told[rank] = counts
            self.publish(now_ns, rank)

    def tell_router(self, now_ns: int) -> None:
        """Show the router what is visible now."""
        self.catch_up(now_ns)
        self.spec.router.observe(now_ns, tuple(self.visible))

    def catch_up(self, now_ns: int) -> None:
        """Show the router everything that became visible since it last looked, in order."""
        coming = self._coming
        while coming and coming[0][0] <= now_ns:
            seen_ns = coming[0][0]
            while coming and coming[0][0] == seen_ns:
                _, rank, load = coming.popleft()
                self.visible[rank] = load
            self.spec.router.observe(seen_ns, tuple(self.visible))
        self._refresh_idle(now_ns)

    def sum_visible(self, now_ns: int) -> Load | None:
        """Give what has been published of all ranks as one load, as old as its oldest part; none if of no rank."""
        self.catch_up(now_ns)
        loads = [load for load in self.visible if load is not None]
        return _sum_loads(loads) if loads else None

    def sum_true(self, now_ns: int) -> Levels:
        """Give the levels of all ranks together as they are."""
        return Levels(*(sum(column) for column in zip(*(rank.levels(now_ns) for rank in self.ranks), strict=True)))

    def _refresh_idle(self, now_ns: int) -> None:
        """Renew the stamps of ranks whose loop spins without work: they publish in every pass."""
        if self.spec.publishing.changes:
            return
        seen_ns = now_ns - self.spec.publishing.delay_ns
        for group in self.groups:
            if group.asleep and seen_ns > group.slept_ns:
                for rank in group.numbers:
                    self.visible[rank] = self.ranks[rank].load(seen_ns)


def tell_levels(load: Load) -> Levels:
    """Give the columns of a load."""
    return Levels(load.running, load.waiting, load.waiting_uncached_tokens, load.used_tokens, load.total_tokens)


def _sum_loads(loads: Sequence[Load]) -> Load:
    return Load(
        min(load.stamp_ns for load in loads),
        sum(load.running for load in loads),
        sum(load.waiting for load in loads),
        sum(load.waiting_uncached_tokens for load in loads),
        sum(load.used_tokens for load in loads),
        sum(load.total_tokens for load in loads),
        sum(load.capacity_tokens for load in loads),
    )
