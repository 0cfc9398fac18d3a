"""What the mocks of all engines share: a served world, a clock, a server and a profiler."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Self

from dprankdiag.harness.fake_engine import Asked, Body, FakeEngine, Fault, Reply
from dprankdiag.harness.ledger_engine import LedgerState
from dprankdiag.harness.mock_profile import Profiler, WriteTrace
from dprankdiag.harness.served_clock import WorldClock
from dprankdiag.harness.served_engine import ServedEngine
from dprankdiag.harness.served_ledger import ServedLedger
from dprankdiag.simulate.world_tables import Outcome

FAILED = Reply(b"Internal Server Error", 500)
"""What an engine answers that raised."""


class MockEngine(ABC):
    """An engine on a port of this machine; an engine's own class says what it answers.

    The world begins when the mock is made, runs `speed` times as fast as it was served, and ends idle: counters stand
    still, gauges stay as they were last written, load snapshots keep being renewed. Or it begins anew, again and again.

    Args:
        speed: seconds of the world in one second of the clock; the engine shows itself as that much faster.
        start_at_s: second of the world at which serving begins; what came before is counted.
        loop: begin anew a second of the world after its end; counters go on.
        port: to listen at; 0 takes a free one.
        clock: UTC seconds.
        token: wanted as `Authorization: Bearer TOKEN`.
        faults: path → what goes wrong there.
        profile: writes the traces of steps of the world; without it there is no profiler.
        beside: another port of the same engine, whose time and numbers this one shares.
    """

    def __init__(
        self,
        outcome: Outcome,
        engine: ServedEngine,
        *,
        speed: float = 1.0,
        start_at_s: float = 0.0,
        loop: bool = False,
        port: int = 0,
        clock: Callable[[], float] = time.time,
        token: str | None = None,
        faults: Mapping[str, Fault] | None = None,
        profile: WriteTrace | None = None,
        beside: MockEngine | None = None,
    ) -> None:
        self.engine = engine
        self.clock: WorldClock = beside.clock if beside else WorldClock(clock, speed, start_at_s)
        self.ledger: ServedLedger = (
            ServedLedger(outcome, engine, speed, self.clock.epoch_s, loop) if beside is None else beside.ledger
        )
        self.profiler = Profiler(_count_within(self.ledger, profile), engine.engines) if profile else None
        self._server = FakeEngine(self.list_bodies(), faults=faults, token=token, clock=clock, port=port)

    @property
    def url(self) -> str:
        """Tell the address."""
        return self._server.url

    @property
    def port(self) -> int:
        """Tell the port."""
        return self._server.port

    def __enter__(self) -> Self:
        """Start to serve."""
        self._server.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        """Stop to serve."""
        self._server.__exit__(*problem)

    @abstractmethod
    def list_bodies(self) -> dict[str, Body]:
        """List what is served, by path."""

    def look(self) -> LedgerState:
        """Tell what there is to see now."""
        return self.ledger.advance(self.clock.now_ns())

    def find_next_step(self) -> int:
        """Find the next step to begin, counted within the engine."""
        return self.ledger.count_begun(self.clock.now_ns())


def fail_if_refused(answer: Callable[[Asked], Reply]) -> Callable[[Asked], Reply]:
    """Let what cannot be done be answered as an engine answers that raised."""

    def answered(asked: Asked) -> Reply:
        try:
            return answer(asked)
        except ValueError:
            return FAILED

    return answered


def _count_within(ledger: ServedLedger, profile: WriteTrace) -> WriteTrace:
    """Let the writer, which knows steps by their number in the world, be told steps by their place in the engine."""
    return lambda first, count, folder: profile(ledger.tell_number(first), count, folder)
