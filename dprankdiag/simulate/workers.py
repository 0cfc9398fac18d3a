"""Run the ranks of one engine: their groups, what they publish, and what their router sees of it.

Source: sgl-project/sglang@01ac0074 and release 0.5.23: a rank publishes its load with every batch that computes
prompts, on every pass without work, and otherwise with every 15th batch, idle ones of a lockstep group included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dprankdiag.simulate.base import Costs, IntArray, Load, Mode, Router, StepWork
from dprankdiag.simulate.jobs import Job
from dprankdiag.simulate.lockstep import EXTENDING, Agreement, LockstepRules, Meeting
from dprankdiag.simulate.ranks import IDLE, Batch, Levels, Rank, RankRules
from dprankdiag.simulate.waves import Wave, WaveRules
from dprankdiag.simulate.world_tables import MODES, RANK_STEPS, Ledger

FEWEST_LEAPT = 2
"""Fewer steps are as fast one by one."""
_PLACES = {mode: place for place, mode in enumerate(MODES)}


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
    """

    ranks: tuple[RankRules, ...]
    router: Router
    costs: Costs
    meeting: Meeting = SGLANG_MEETING
    lockstep: bool = True
    publishing: Publishing = SGLANG_PUBLISHING
    waves: WaveRules | None = None


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
        load = self.ranks[rank].load(now_ns)
        self._coming.append((now_ns + self.spec.publishing.delay_ns, rank, load))
        self._publishes.add((now_ns, self.number, rank, *tell_levels(load)))

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
            if group.asleep and group.slept_ns is not None and seen_ns > group.slept_ns:
                for rank in group.numbers:
                    self.visible[rank] = self.ranks[rank].load(seen_ns)


class Group:
    """Ranks that step together.

    Attributes:
        asleep: no pass is set.
        slept_ns: since when; none before the first request.
        batches: of the step under way; empty if none is.
    """

    def __init__(self, worker: OpenWorker, first: int, size: int) -> None:
        self.worker = worker
        self.numbers = range(first, first + size)
        self.ranks: Sequence[Rank] = worker.ranks[first : first + size]
        self.asleep = True
        self.slept_ns: int | None = None
        self.batches: list[Batch] = []
        self._ended: list[Job] = []
        self.wave = Wave(worker.spec.waves) if worker.spec.waves is not None and worker.spec.lockstep else None
        self._planned: list[Rank] = []
        self._step = 0
        self._last_ns = 0
        self._since = [0] * size
        self._tries = max(rules.empty_plans for rules in worker.spec.ranks) + 1

    @property
    def busy(self) -> bool:
        """Tell whether any rank has unfinished requests."""
        return any(rank.busy for rank in self.ranks)

    def plan(self, now_ns: int) -> bool:
        """Form the batches of the next step; returns whether there is one."""
        if self.wave is not None:
            return self._plan_wave(now_ns, self.wave)
        for _ in range(self._tries):
            self._step += 1
            self._planned = list(self.ranks)
            batches = [rank.plan(now_ns, self._step) for rank in self.ranks]
            if any(batch.mode != "idle" for batch in batches):
                self.batches = batches
                return True
            self._ended += [job for rank in self.ranks for job in rank.commit(now_ns)]
        return False

    def _plan_wave(self, now_ns: int, wave: Wave) -> bool:
        """Form the batches of a step of a wave: dummies where there is no work, or a pause is awaited."""
        held = [wave.holds(now_ns, number) for number in range(len(self.ranks))]
        self._planned = [rank for rank, waits in zip(self.ranks, held, strict=True) if not waits]
        batches = [
            IDLE if waits else rank.plan(now_ns, wave.step + 1) for rank, waits in zip(self.ranks, held, strict=True)
        ]
        self.batches = wave.fill(batches)
        return True

    def find_wake(self, now_ns: int) -> int:
        """Find when a group that is asleep can begin, given a request now."""
        if self.wave is None:
            return now_ns
        return max(now_ns + self.wave.rules.wake_ns, self.wave.paused_until_ns or 0)

    def goes_on(self, now_ns: int) -> bool:
        """Tell whether a group that ended a step goes on with the next; a wave may end."""
        return self.wave is None or self.wave.count_step(now_ns, self.busy)

    def time(self, now_ns: int, step: int) -> int:
        """Ask how long the step takes and write it down; returns when it ends."""
        worker = self.worker.number
        agreed = self.worker.spec.meeting.agree(self.batches)
        rows = np.array(
            [
                (step, worker, number, _PLACES[batch.mode], *batch[2:7], rows, *rank.levels(now_ns), 0, 0, 0)
                for number, batch, rows, rank in zip(self.numbers, self.batches, agreed.rows, self.ranks, strict=True)
            ],
            np.int64,
        )
        return self._time_rows(now_ns, step, agreed, tuple(batch.mode for batch in self.batches), rows.T)

    def leap(self, now_ns: int, until_ns: int, step: int, most: int) -> tuple[int, int] | None:
        """Make steps that decode the same requests, as long as they end before something else happens.

        The last one made is under way when this returns. The tables and what follows are as without leaps.

        Args:
            until_ns: when something else happens.
            step: the number of the first.
            most: steps at most.

        Returns:
            When the last step ends, and how many there are; none where a leap does not pay.
        """
        most = self._limit_leap(now_ns, until_ns, most)
        if most < FEWEST_LEAPT:
            return None
        batches = [rank.foretell_batch() for rank in self.ranks]
        if all(batch.mode == "idle" for batch in batches):
            return None
        if self.wave is not None:
            batches = self.wave.fill(batches)
        agreed = self.worker.spec.meeting.agree(batches)
        modes = tuple(batch.mode for batch in batches)
        made = 0
        for rows in self._foretell(step, most, batches, agreed):
            now_ns = self._time_rows(now_ns, step + made, agreed, modes, rows.T)
            made += 1
            if now_ns >= until_ns:
                break
        self._finish_leap(made, now_ns)
        return now_ns, made

    def _limit_leap(self, now_ns: int, until_ns: int, most: int) -> int:
        if self.wave is not None and not self.wave.can_leap:
            return 0
        every = self.worker.spec.publishing.every_batches
        if every is not None:
            most = min(most, every - max(self._since))
        most = min(most, (until_ns - now_ns) // max(self._last_ns, 1) + 1)
        for rank in self.ranks:
            if most < FEWEST_LEAPT:
                return 0
            # Requests may end with the last step, which is under way when the leap is over.
            most = min(most, rank.count_sure_steps(most) + 1)
        return most

    def _foretell(self, step: int, steps: int, batches: Sequence[Batch], agreed: Agreement) -> IntArray:
        """Foretell the rows of so many steps, `(steps, ranks, columns)`."""
        rows = np.zeros((steps, len(self.ranks), len(RANK_STEPS.columns)), np.int64)
        rows[:, :, 0] = step + np.arange(steps)[:, None]
        rows[:, :, 1] = self.worker.number
        for place, (rank, batch) in enumerate(zip(self.ranks, batches, strict=True)):
            told = np.array(rank.foretell(steps), np.int64)
            rows[:, place, 2] = self.numbers[place]
            rows[:, place, 3] = _PLACES[batch.mode]
            # A dummy batch of a wave has rows of its own.
            rows[:, place, 4:9] = batch[2:7] if batch.mode == "idle" else told[:, :5]
            rows[:, place, 9] = agreed.rows[place]
            rows[:, place, 10:15] = told[:, 5:]
        return rows

    def _finish_leap(self, made: int, now_ns: int) -> None:
        """Commit all steps of a leap but the last, and plan that one."""
        for rank in self.ranks:
            rank.leap(made - 1)
        self._since = [since + made - 1 for since in self._since]
        self._planned = list(self.ranks)
        if self.wave is None:
            self._step += made
            self.batches = [rank.plan(now_ns, self._step) for rank in self.ranks]
        else:
            self.wave.step += made - 1
            self.batches = self.wave.fill([rank.plan(now_ns, self.wave.step + 1) for rank in self.ranks])

    def _time_rows(self, now_ns: int, step: int, agreed: Agreement, modes: tuple[Mode, ...], rows: IntArray) -> int:
        """Ask how long a step of `(columns, ranks)` rows takes, complete and write them; returns when it ends."""
        work = StepWork(
            mode=modes,
            decode_rows=rows[4],
            decode_pairs=rows[5],
            kv_tokens=rows[6],
            prompt_tokens=rows[7],
            prompt_pairs=rows[8],
            rows=rows[9],
            graph=agreed.graph,
            split=agreed.split,
            padded=agreed.padded,
            low_latency=agreed.low_latency,
        )
        taken = self.worker.spec.costs.time_step(work)
        own, shared = taken.own_ns, taken.shared_ns
        rows[-3], rows[-2] = own, shared
        last_own_ns, last_shared_ns = int(own.max()), int(shared.max())
        rows[-1] = (last_own_ns + last_shared_ns) - (own + shared)
        total_ns = last_own_ns + last_shared_ns + taken.common_ns
        self._last_ns = total_ns
        self.worker.rank_steps.write(rows)
        flags = (int(agreed.graph), int(agreed.split), int(agreed.padded), int(agreed.low_latency))
        self.worker.steps.add((step, self.worker.number, self.numbers[0], now_ns, total_ns, taken.common_ns, *flags))
        return now_ns + total_ns

    def commit(self, now_ns: int) -> list[Job]:
        """Take the results of the step; returns the jobs that ended."""
        ended: list[Job] = []
        batches, self.batches = self.batches, []
        for rank in self._planned:
            ended += rank.commit(now_ns)
        publishing = self.worker.spec.publishing
        for place, batch in enumerate(batches):
            self._since[place] += 1
            due = publishing.every_batches is not None and self._since[place] >= publishing.every_batches
            if due or (publishing.prompts and batch.mode in EXTENDING):
                self._since[place] = 0
                self.worker.publish(now_ns, self.numbers[place])
            if publishing.changes:
                self.worker.note_change(now_ns, self.numbers[place])
        return ended

    def take_ended(self) -> list[Job]:
        """Give the jobs that ended in passes without a step since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def publish_idle(self, now_ns: int) -> None:
        """Let all ranks publish that there is no work."""
        self.slept_ns = now_ns
        for number in self.numbers:
            self.worker.publish(now_ns, number)


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
