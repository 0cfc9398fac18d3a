"""Ask live engines: all targets and interfaces at once, each at its own pace.

The first polls find out which engine a target is and what it offers. Numbers are asked for at every poll, configuration
every minute, and what is not offered every ten.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dprankdiag.collectors.base import Collector
from dprankdiag.collectors.http import ACCEPT_JSON, ACCEPT_TEXT, Access, Fetcher, check_target
from dprankdiag.collectors.sglang_loads import SglangLoads
from dprankdiag.collectors.sglang_metrics import SglangMetrics
from dprankdiag.collectors.vllm_metrics import VllmMetrics
from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import EngineName, LedgerAnswer, NoData

if TYPE_CHECKING:
    import httpx

MOST_AT_ONCE = 16


@dataclass(slots=True)
class _Target:
    base: str
    engine: EngineName | None = None
    collectors: list[Collector] = field(default_factory=list)


class Poller:
    """Asks targets, poll by poll.

    Args:
        targets: `http(s)://host:port`.
        transport: stands in for the network.
        clock: UTC epoch ns.
        chance: numbers from 0 to 1, for the jitter of waits after failures.
    """

    def __init__(
        self,
        targets: Iterable[str],
        access: Access | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], int] = time.time_ns,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._targets = [_Target(base) for base in dict.fromkeys(check_target(target) for target in targets)]
        self._fetcher = Fetcher(access, transport=transport, clock=clock)
        self._pool = ThreadPoolExecutor(min(MOST_AT_ONCE, max(1, len(self._targets))), "poll")
        self._sglang: list[Collector] = [SglangMetrics(), SglangLoads()]
        self._vllm: list[Collector] = [VllmMetrics()]

    def __enter__(self) -> Poller:
        """Take part in a `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close at the end of a `with`."""
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._pool.shutdown(cancel_futures=True)
        self._fetcher.close()

    def poll(self) -> list[LedgerAnswer | NoData]:
        """Ask every target once; answers come in the order of targets and interfaces."""
        return [answer for answers in self._pool.map(self._ask, self._targets) for answer in answers]

    def _ask(self, target: _Target) -> list[LedgerAnswer | NoData]:
        return [
            answer
            for collector in (target.collectors or [*self._sglang, *self._vllm])
            for answer in self._collect(target, collector)
        ]

    def _collect(self, target: _Target, collector: Collector) -> list[LedgerAnswer | NoData]:
        accept = ACCEPT_TEXT if collector.path == "/metrics" else ACCEPT_JSON
        reply = self._fetcher.fetch(collector.interface, target.base, collector.path, accept)
        if isinstance(reply, NoData):
            return [reply]
        where = f"{target.base}{collector.path}"
        try:
            answers = collector.parse(reply.body, where, reply.received_ns)
        except InputError as error:
            return [NoData(collector.interface, where, reply.received_ns, error.what)]
        if answers and target.engine is None:
            target.engine = answers[0].engine
            target.collectors = self._sglang if target.engine == "sglang" else self._vllm
        return list(answers)
