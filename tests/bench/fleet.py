"""Serve a deployment of many ranks as it runs, a page a node, in a process of its own until its input ends.

python -m tests.bench.fleet NODES SECONDS

The first line it prints is its address (`ADDRESS/node-0` is the first target). To each line it reads it answers how
often the first node was asked for its numbers.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from itertools import islice
from threading import Event, Thread

from dprankdiag.harness.fake_engine import FakeEngine
from dprankdiag.harness.ledger_worlds import LEDGER_WORLDS, LedgerFault, LedgerWorld, Tick, simulate_ledger

RANKS_A_NODE = 8
BEFORE_S = 900
"""Seconds for which the deployment has run before anybody asks: by then nearly all series exist that it ever makes."""

LATE_RANK = 6
EVERY_S, LASTS_S, LATE_S = 60, 25, 0.008
"""A rank launches each step late for so many seconds, again and again."""


def make_world(nodes: int, seconds: int) -> LedgerWorld:
    """Describe the deployment: as much to do for each rank as in the world that it is made of."""
    usual = LEDGER_WORLDS["host"]
    ranks = nodes * RANKS_A_NODE
    starts = range(EVERY_S // 2, seconds, EVERY_S)
    faults = tuple(LedgerFault("host", (LATE_RANK,), LATE_S, float(at), float(at + LASTS_S)) for at in starts)
    rate_s = usual.rate_s * ranks / usual.ranks
    return replace(
        usual, ranks=ranks, nodes=nodes, rate_s=rate_s, faults=faults, seconds=float(seconds), interval_s=1.0
    )


def name_paths(tick: Tick) -> dict[str, bytes]:
    """Name the pages of a moment by the path at which they are served; the first node tells the loads of all."""
    pages = tick.pages
    loads = pages.pop("loads")
    paths = {f"/node-{name.removeprefix('node')}/metrics": body for name, body in pages.items()}
    return {**paths, "/node-0/v1/loads": loads}


def serve(nodes: int, seconds: int) -> None:
    """Serve a moment a second until the input ends."""
    ticks = islice(simulate_ledger(make_world(nodes, BEFORE_S + seconds)), BEFORE_S, None)
    ended = Event()
    with FakeEngine(name_paths(next(ticks))) as engine:
        print(engine.url, flush=True)
        Thread(target=_answer, args=(engine, ended), daemon=True).start()
        start_s = time.monotonic()
        for number, tick in enumerate(ticks, 1):
            bodies = name_paths(tick)
            if ended.wait(max(start_s + number - time.monotonic(), 0.0)):
                break
            engine.bodies = dict(bodies)
        ended.wait()


def _answer(engine: FakeEngine, ended: Event) -> None:
    for _ in sys.stdin:
        print(engine.requests["/node-0/metrics"], flush=True)
    ended.set()


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
