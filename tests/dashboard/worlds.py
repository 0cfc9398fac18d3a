"""A simulated deployment with a fault that comes and goes, served as a running engine would, second by second."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from dprankdiag.harness.ledger_worlds import LEDGER_WORLDS, LedgerFault, simulate_ledger

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
