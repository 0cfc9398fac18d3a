"""A simulated deployment with a fault that comes and goes, served as a running engine would, second by second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

from dprankdiag.dashboard.provider import LiveProvider, Snapshot
from dprankdiag.harness.fake_engine import FakeEngine
from dprankdiag.harness.ledger_worlds import LEDGER_WORLDS, LedgerFault, simulate_ledger
from dprankdiag.pipelines.poll import Poller
from dprankdiag.pipelines.watch import Watcher
from dprankdiag.units import NS_PER_S

BEGINS_S, ENDS_S, SECONDS = 20, 45, 90
LATE_RANK = 6
PATHS = {"metrics": "/metrics", "loads": "/v1/loads"}


@cache
def list_bodies() -> dict[str, list[bytes]]:
    """List what each interface answers, one body a second: even, then rank 6 launches late, then even again."""
    fault = LedgerFault("host", (LATE_RANK,), 0.008, float(BEGINS_S), float(ENDS_S))
    world = replace(LEDGER_WORLDS["host"], faults=(fault,), seconds=float(SECONDS), interval_s=1.0)
    bodies: dict[str, list[bytes]] = {path: [] for path in PATHS.values()}
    for tick in simulate_ledger(world):
        for name, body in tick.pages.items():
            bodies[PATHS[name]].append(body)
    return bodies


@dataclass
class Stage:
    """A running engine whose seconds pass one by one, as whoever looks at it says."""

    engine: FakeEngine
    provider: LiveProvider
    seconds: int = 0

    def pass_until(self, is_reached: Callable[[Snapshot], bool], *, most_s: int) -> Snapshot:
        """Let seconds pass until what is shown is so; fails after so many."""
        for _ in range(most_s):
            self.seconds += 1
            self.provider.tick()
            last = self.provider.latest()
            assert last is not None
            if is_reached(last):
                return last
        raise AssertionError(f"not after {most_s} s")


@contextmanager
def set_stage() -> Iterator[Stage]:
    """Run an engine of which no second has passed."""
    start_ns = time.time_ns()

    def moment() -> int:
        return start_ns + stage.seconds * NS_PER_S

    bodies = {path: list(texts) for path, texts in list_bodies().items()}
    with FakeEngine(bodies) as engine, Poller([engine.url], clock=moment) as poller:
        provider = LiveProvider(engine.url, poller, Watcher(), interval_s=1.0, moment=moment)
        stage = Stage(engine, provider)
        yield stage


def names_cause(snapshot: Snapshot) -> bool:
    """Tell whether the late host is found."""
    return any(finding.cause == "single_point.host" for finding in snapshot.diagnosis.findings)
