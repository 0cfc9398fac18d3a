"""Poll as `record` does, and tell what one tick costs: run as a program, so that only its own CPU time counts.

python -m tests.bench.ticks poll URL ENGINES TICKS
python -m tests.bench.ticks parse FOLDER TICKS
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

RANKS = 8
"""Ranks of an engine's page."""


def relabel(page: bytes, node: int) -> bytes:
    """Make the page of another node: its ranks follow those of the nodes before."""
    for label in (b"dp_rank", b"tp_rank", b"moe_ep_rank"):
        for rank in reversed(range(RANKS)):
            page = page.replace(b'%s="%d"' % (label, rank), b'%s="@%d"' % (label, rank + RANKS * node))
    return page.replace(b'="@', b'="')


def _weigh(tick: Callable[[], int], ticks: int) -> dict[str, float]:
    """Give the median CPU seconds of a tick after the first, and what it told."""
    told, spent = tick(), []
    for _ in range(ticks):
        began = time.process_time()
        tick()
        spent.append(time.process_time() - began)
    return {"cpu_s": statistics.median(spent), "told": told}


def _poll(url: str, engines: int, ticks: int) -> dict[str, float]:
    from dprankdiag.collectors.http import Access
    from dprankdiag.model.ledgers import LedgerAnswer
    from dprankdiag.pipelines.poll import Poller

    with Poller([f"{url}/engine-{number}" for number in range(engines)], Access(reply_s=60)) as poller:
        return _weigh(lambda: sum(len(one.ranks) for one in poller.poll() if isinstance(one, LedgerAnswer)), ticks)


def _parse(folder: str, ticks: int) -> dict[str, float]:
    from prometheus_client.parser import text_string_to_metric_families

    pages = [path.read_text() for path in sorted(Path(folder).glob("*.prom"))]
    return _weigh(lambda: sum(len(list(text_string_to_metric_families(page))) for page in pages), ticks)


if __name__ == "__main__":
    verb, where, *numbers = sys.argv[1:]
    counts = [int(number) for number in numbers]
    print(json.dumps(_poll(where, *counts) if verb == "poll" else _parse(where, *counts)))
