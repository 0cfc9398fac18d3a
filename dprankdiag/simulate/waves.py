"""Start and end the waves of a vLLM lockstep group, and pause it by consensus.

A wave begins with a request on any rank and ends at the first check that finds no work anywhere. Until then ranks
without work compute dummy batches.

Source: vllm 0.33.0, `vllm/v1/engine/core.py` (`DPEngineCoreProc`) and `coordinator.py`: the check comes after step 1
and every 16 steps; a pause takes effect at a check where every rank has asked for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dprankdiag.simulate.ranks import Batch

CHECK_STEPS = 16
"""Steps between checks. Source: vllm 0.33.0, `--dp-sync-interval`."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause that a client asks of each rank.

    Attributes:
        asked_ns: when each rank was asked, `(ranks,)`.
        resumed_ns: when all may go on.
    """

    asked_ns: tuple[int, ...]
    resumed_ns: int


@dataclass(frozen=True, slots=True)
class WaveRules:
    """How waves run.

    Attributes:
        check_steps: steps between checks.
        wake_ns: from a request on an idle rank until the coordinator has woken the others.
        dummy_rows: of a dummy batch: 1, and the drafts under speculative decoding.
        pauses: in order of time.
    """

    check_steps: int = CHECK_STEPS
    wake_ns: int = 0
    dummy_rows: int = 1
    pauses: tuple[Pause, ...] = ()


@dataclass(slots=True)
class Wave:
    """Where a group is in its waves.

    Attributes:
        number: waves that ended.
        step: steps of this wave.
        paused_until_ns: no wave begins before; none where not paused.
    """

    rules: WaveRules
    number: int = 0
    step: int = 0
    paused_until_ns: int | None = None
    _next_pause: int = field(default=0, repr=False)

    def fill(self, batches: Sequence[Batch]) -> list[Batch]:
        """Give ranks without work a dummy batch."""
        dummy = Batch("idle", 0, self.rules.dummy_rows, self.rules.dummy_rows, self.rules.dummy_rows, 0, 0)
        return [dummy if batch.mode == "idle" else batch for batch in batches]

    def count_step(self, now_ns: int, busy: bool) -> bool:
        """Count a step that ended; returns whether the group goes on.

        Args:
            busy: any rank has unfinished requests.
        """
        self.step += 1
        if self.step != 1 and self.step % self.rules.check_steps:
            return True
        if self._agree_pause(now_ns):
            return False
        if busy or self._awaits_pause(now_ns):
            return True
        self.number += 1
        self.step = 0
        return False

    def holds(self, now_ns: int, rank: int) -> bool:
        """Tell whether a rank that was asked to pause brings dummies until all agree."""
        pause = self._pause()
        return pause is not None and pause.asked_ns[rank] <= now_ns

    def _pause(self) -> Pause | None:
        pauses = self.rules.pauses
        return pauses[self._next_pause] if self._next_pause < len(pauses) else None

    def _awaits_pause(self, now_ns: int) -> bool:
        pause = self._pause()
        return pause is not None and min(pause.asked_ns) <= now_ns

    def _agree_pause(self, now_ns: int) -> bool:
        pause = self._pause()
        if pause is None or max(pause.asked_ns) > now_ns:
            return False
        self.paused_until_ns = max(pause.resumed_ns, now_ns)
        self._next_pause += 1
        self.step = 0
        return True
