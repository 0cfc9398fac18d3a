"""Step ranks together, or one alone: plan, agree, ask how long it takes, write it down, commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dprankdiag.simulate.base import IntArray, Mode, StepWork
from dprankdiag.simulate.jobs import Job
from dprankdiag.simulate.lockstep import EXTENDING, Agreement
from dprankdiag.simulate.ranks import IDLE, Batch, Rank
from dprankdiag.simulate.waves import Wave
from dprankdiag.simulate.world_tables import MODES

if TYPE_CHECKING:
    from dprankdiag.simulate.workers import OpenWorker

_PLACES = {mode: place for place, mode in enumerate(MODES)}


class Group:
    """Ranks that step together.

    Attributes:
        asleep: no pass is set.
        slept_ns: since when.
        batches: of the step under way; empty if none is.
        begun: steps that have begun so far.
    """

    def __init__(self, worker: OpenWorker, first: int, size: int) -> None:
        self.worker = worker
        self.numbers = range(first, first + size)
        self.ranks: Sequence[Rank] = worker.ranks[first : first + size]
        self.asleep = True
        self.slept_ns = 0
        self.batches: list[Batch] = []
        self.begun = 0
        self._ended: list[Job] = []
        self.wave = Wave(worker.spec.waves) if worker.spec.waves is not None and worker.spec.lockstep else None
        self._planned: list[Rank] = []
        self._step = 0
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
        self.begun += 1
        worker = self.worker.number
        agreed = self.worker.spec.meeting.agree(self.batches)
        rows = np.array(
            [
                (
                    *(step, worker, number, _PLACES[batch.mode], *batch[2:7], rows),
                    *(*rank.levels(now_ns), *rank.queues(now_ns), 0, 0, 0),
                )
                for number, batch, rows, rank in zip(self.numbers, self.batches, agreed.rows, self.ranks, strict=True)
            ],
            np.int64,
        )
        return self._time_rows(now_ns, step, agreed, tuple(batch.mode for batch in self.batches), rows.T)

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
        pace = self.worker.spec.pace
        if pace is not None:
            total_ns = pace.time_step(now_ns, total_ns, self.ranks)
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
