"""Publish the engines' counts to the front ends as vLLM's coordinator does.

Every message restarts the wait: at least 50 ms in lockstep, so that all ranks' numbers of one step are in, and
100 ms after the last publication while something has changed, else 5 s. Once a new step shows that the step before is
complete, the 50 ms are over and the complete step is what is published.

Source: vllm 0.33.0, `v1/engine/coordinator.py`, as run for tests/payloads/vllm-0.33.0/coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass

CHANGED_NS = 100_000_000
HEARTBEAT_NS = 5_000_000_000
STEP_WAIT_NS = 50_000_000

Counts = tuple[int, int, float]
"""Of an engine: waiting, running, the used part of its KV pool (0 to 1)."""


@dataclass(frozen=True, slots=True)
class Published:
    """A message to all front ends.

    Attributes:
        at_ns: when it was sent.
        counts: of each engine; none in a message of a wave alone.
        stamps_ns: when each engine wrote its counts, none where it never has; likewise.
        wave: counts the spans between two idle times of all engines.
        running: the engines are in a wave.
    """

    at_ns: int
    counts: tuple[Counts, ...] | None
    stamps_ns: tuple[int | None, ...] | None
    wave: int
    running: bool


class Coordinator:
    """Collect what engines report and say when to publish what.

    Whoever drives it calls `publish` when `due_ns` has come and no message has arrived before.

    Attributes:
        wave: the present wave.
        running: engines are in it.
    """

    def __init__(self, n_engines: int, *, lockstep: bool, external: bool = False) -> None:
        """Begin at time 0 with zeros of every engine.

        Args:
            n_engines: how many report.
            lockstep: engines step together (a MoE model), in waves.
            external: a balancer outside chooses; messages of waves are sent, counts never.
        """
        self.wave = 0
        self.running = False
        self._lockstep = lockstep
        self._external = external
        self._counts: list[Counts] = [(0, 0, 0.0)] * n_engines
        self._stamps: list[int | None] = [None] * n_engines
        self._complete: tuple[tuple[Counts, ...], tuple[int | None, ...]] | None = None
        self._changed = False
        self._newest = (-1, -1)
        self._published_ns: int | None = None
        self._heard_ns = 0

    @property
    def due_ns(self) -> int | None:
        """Give when it publishes unless a message comes first; none where it never publishes counts."""
        if self._external:
            return None
        wait_ns = STEP_WAIT_NS if self._lockstep and self._complete is None else 0
        due = self._heard_ns + wait_ns
        if self._published_ns is None:
            return due
        return max(due, self._published_ns + (CHANGED_NS if self._changed else HEARTBEAT_NS))

    def report(
        self,
        now_ns: int,
        engine: int,
        counts: Counts,
        *,
        step: int = 0,
        wave: int = 0,
        stamp_ns: int | None = None,
    ) -> None:
        """Take an engine's counts before or after a step; engines report only what has changed.

        Args:
            step, wave: that the engine is in; a step or wave not heard of before completes the one before it.
            stamp_ns: when the engine wrote them, if that is not now.
        """
        self._heard_ns = now_ns
        if self._lockstep and (wave, step) > self._newest:
            if self._changed:
                self._complete = tuple(self._counts), tuple(self._stamps)
            self._newest = (wave, step)
        self._counts[engine] = counts
        self._stamps[engine] = now_ns if stamp_ns is None else stamp_ns
        self._changed = True

    def start_wave(self, now_ns: int, wave: int) -> Published | None:
        """Take that an idle engine has got a request; the message to the front ends, if there is one."""
        self._heard_ns = now_ns
        if not self._lockstep or wave < self.wave or (wave == self.wave and self.running):
            return None
        self.wave, self.running = wave, True
        return Published(now_ns, None, None, self.wave, self.running)

    def complete_wave(self, now_ns: int, wave: int) -> Published | None:
        """Take that all engines have nothing left to do; the message to the front ends, if there is one."""
        self._heard_ns = now_ns
        if not self._lockstep or wave < self.wave:
            return None
        self.wave, self.running = wave + 1, False
        return Published(now_ns, None, None, self.wave, self.running)

    def publish(self, now_ns: int) -> Published:
        """Send the last complete step if one is known, else the counts as they are."""
        if self._complete is None:
            counts, stamps = tuple(self._counts), tuple(self._stamps)
            self._changed = False
        else:
            counts, stamps = self._complete
            self._complete = None
        self._published_ns = self._heard_ns = now_ns
        return Published(now_ns, counts, stamps, self.wave, self.running)
