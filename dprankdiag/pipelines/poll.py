"""Ask live engines: all targets and interfaces at once, each at its own pace.

The first question to a target finds out which engine it is. Numbers are asked for at every poll, configuration every
minute, and what is not offered every two. An interface that fails is left alone for a while, longer each time, and
meanwhile the target is not said to be anything: no data is no verdict.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from dprankdiag.collectors.base import Collector
from dprankdiag.collectors.exposition import EOF
from dprankdiag.collectors.http import ACCEPT_JSON, ACCEPT_TEXT, Access, Fetcher, Pace, hide_credentials
from dprankdiag.collectors.prometheus_select import Matcher
from dprankdiag.collectors.sglang_loads import SglangGetLoad, SglangLoads
from dprankdiag.collectors.sglang_metrics import SglangMetrics
from dprankdiag.collectors.sglang_server_info import SglangServerInfo
from dprankdiag.collectors.vllm_info import VllmLoad, VllmServerInfo, VllmVersion
from dprankdiag.collectors.vllm_metrics import VllmMetrics
from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import EngineName, LedgerAnswer, NoData
from dprankdiag.pipelines.doubts import Doubts
from dprankdiag.pipelines.sources import Answers, Stream, read_memory, read_targets
from dprankdiag.pipelines.stored import StoredEngines

if TYPE_CHECKING:
    import httpx

MOST_AT_ONCE = 64
TIDY_POLLS = 30
"""Polls after which free memory is given back; that takes some milliseconds."""

EVERY_TICK_S = 0.0
RARELY_S = 60.0

COLLECTORS: dict[EngineName, tuple[tuple[type[Collector], float], ...]] = {
    "sglang": (
        (SglangMetrics, EVERY_TICK_S),
        (SglangLoads, EVERY_TICK_S),
        (SglangGetLoad, EVERY_TICK_S),
        (SglangServerInfo, RARELY_S),
    ),
    "vllm": (
        (VllmMetrics, EVERY_TICK_S),
        (VllmVersion, RARELY_S),
        (VllmLoad, RARELY_S),
        (VllmServerInfo, RARELY_S),
    ),
}
"""Interfaces of each engine, with the period at which they are asked."""

SIGNS: tuple[tuple[str, tuple[type[Collector], ...]], ...] = (
    ("/metrics", (SglangMetrics, VllmMetrics)),
    ("/v1/loads", (SglangLoads,)),
    ("/server_info", (SglangServerInfo,)),
    ("/get_load", (SglangGetLoad,)),
    ("/version", (VllmVersion,)),
)
"""Paths by which an engine is known, in the order in which they are asked, and who can read the answer."""

INSTEAD = {"sglang-get-load": "sglang-loads"}
"""Interface → the newer one that it stands in for where that is absent."""


@dataclass(slots=True)
class _Interface:
    """One interface of one target."""

    collector: Collector
    pace: Pace
    is_rare: bool
    doubts: Doubts = field(default_factory=Doubts)
    is_absent: bool = False
    is_asked: bool = False


@dataclass(slots=True)
class _Target:
    """One address; its interfaces are known once its engine is."""

    base: str
    pace: Pace
    interfaces: dict[str, _Interface] = field(default_factory=dict)


def give_back_memory() -> None:
    """Give memory that is free back to the system, where the C library would rather keep it (glibc does).

    Each thread that read a page leaves the holes of it behind, which only grow if pages of other threads land there.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Poller:
    """Asks targets, poll by poll.

    Args:
        targets: see `read_targets`.
        transport: stands in for the network.
        clock: UTC epoch ns.
        chance: numbers from 0 to 1, for the jitter of waits after failures.
        matchers: choose series by their labels, where a target is a Prometheus server.
        patience_s: how long numbers wait for configuration, which a stuck engine may never tell; what comes later is
            told at the next poll.

    Raises:
        UsageError: a target is no address, or holds credentials; or pyzmq is missing and publishers are asked for.
    """

    def __init__(
        self,
        targets: Iterable[str],
        access: Access | None = None,
        *,
        matchers: tuple[Matcher, ...] = (),
        transport: httpx.BaseTransport | None = None,
        clock: Callable[[], int] = time.time_ns,
        chance: Callable[[], float] = random.random,
        patience_s: float = 1.0,
    ) -> None:
        sources = read_targets(targets)
        self._targets = [_Target(base, Pace(EVERY_TICK_S, chance)) for base in sources.engines]
        self._memory = sources.memory
        self._streams: list[Stream] = [open_stream() for open_stream in sources.streams]
        self._collectors: dict[type[Collector], Collector] = {}
        self._fetcher = Fetcher(access, transport=transport, clock=clock)
        self._clock = clock
        self._chance = chance
        self._patience_s = patience_s
        readers = {
            "sglang": self._get(SglangMetrics),
            "sglang-loads": self._get(SglangLoads),
            "vllm": self._get(VllmMetrics),
        }
        self._servers = [
            (StoredEngines(base, self._fetcher, readers, matchers, clock=clock), Pace(EVERY_TICK_S, chance))
            for base in sources.servers
        ]
        self._late: list[Future[Answers]] = []
        self._polls = 0
        self._pool = ThreadPoolExecutor(min(MOST_AT_ONCE, 4 * len(self._targets) + len(self._servers) + 1), "poll")
        # Pages are taken apart one after the other, in one thread: the interpreter does no two at once, and each thread
        # would keep memory for the largest page it has seen.
        self._parsing = ThreadPoolExecutor(1, "parse")

    def __enter__(self) -> Poller:
        """Take part in a `with`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close at the end of a `with`."""
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._pool.shutdown(cancel_futures=True)
        self._parsing.shutdown()
        self._fetcher.close()
        for stream in self._streams:
            stream.close()

    def poll(self) -> Answers:
        """Ask once all that is due; numbers come in the order of targets and interfaces, then configuration."""
        now_ns = self._clock()
        strangers = [target for target in self._targets if not target.interfaces and target.pace.is_due(now_ns)]
        unknown = [answer for answers in self._pool.map(self._meet, strangers) for answer in answers]
        often: list[Callable[[], Answers]] = []
        rarely: list[Callable[[], Answers]] = []
        for target in self._targets:
            for interface in target.interfaces.values():
                if interface.pace.is_due(now_ns) and not interface.is_asked and not _is_replaced(target, interface):
                    interface.is_asked = True
                    (rarely if interface.is_rare else often).append(partial(self._ask, target, interface))
        often += [partial(self._ask_server, server, pace) for server, pace in self._servers if pace.is_due(now_ns)]
        answers = [*unknown, *self._run(often, rarely), *self._look_around(now_ns)]
        self._polls += 1
        if self._polls % TIDY_POLLS == 0:
            give_back_memory()
        return answers

    def _look_around(self, now_ns: int) -> Answers:
        """Take what needs no question: messages of publishers, and this machine's shared memory."""
        heard = [answer for stream in self._streams if (answer := stream.poll(now_ns)) is not None]
        return [*heard, *(read_memory(now_ns) if self._memory else [])]

    def _ask_server(self, server: StoredEngines, pace: Pace) -> Answers:
        answers = server.poll()
        pace.note(self._clock(), next((answer for answer in answers if isinstance(answer, NoData)), None))
        return answers

    def _run(self, jobs: Sequence[Callable[[], Answers]], rare: Sequence[Callable[[], Answers]]) -> Answers:
        """Run jobs to their end, and rare ones as far as patience goes."""
        futures = [self._pool.submit(job) for job in jobs]
        late = [*self._late, *(self._pool.submit(job) for job in rare)]
        wait(futures)
        done, _ = wait(late, timeout=self._patience_s if rare else 0)
        self._late = [future for future in late if future not in done]
        return [answer for future in (*futures, *(one for one in late if one in done)) for answer in future.result()]

    def _meet(self, target: _Target) -> Answers:
        """Find out which engine a target is; tell why not where it does not say."""
        reasons: list[NoData] = []
        for path, readers in SIGNS:
            reply = self._fetcher.fetch("metrics", target.base, path)
            if isinstance(reply, NoData):
                reasons.append(reply)
                if reply.absent:
                    continue
                break
            for reader in readers:
                try:
                    (answer, *_) = self._get(reader).parse(reply.body, target.base)
                except (InputError, ValueError):
                    continue
                self._set_up(target, answer.engine)
                return []
            where = hide_credentials(f"{target.base}{path}")
            reasons.append(NoData("metrics", where, reply.received_ns, "shows no engine that is known"))
        telling = next((one for one in reasons if not one.absent), reasons[0])
        target.pace.note(self._clock(), replace(telling, absent=False))
        return [telling]

    def _set_up(self, target: _Target, engine: EngineName) -> None:
        for kind, period_s in COLLECTORS[engine]:
            collector = self._get(kind)
            target.interfaces[collector.interface] = _Interface(
                collector, Pace(period_s, self._chance), is_rare=period_s > EVERY_TICK_S
            )

    def _get(self, kind: type[Collector]) -> Collector:
        """Get the one collector of a kind: what it learnt of a page's series holds for all targets."""
        return self._collectors.setdefault(kind, kind())

    def _ask(self, target: _Target, interface: _Interface) -> Answers:
        try:
            answers = self._collect(target, interface)
            failure = answers if isinstance(answers, NoData) else None
            interface.is_absent = failure is not None and failure.absent
            interface.pace.note(self._clock(), failure)
        finally:
            interface.is_asked = False
        if isinstance(answers, NoData):
            return [answers]
        doubt = interface.doubts.judge(answers)
        if doubt:
            (first, *_) = answers
            return [NoData(first.interface, first.where, first.taken_ns or self._clock(), doubt)]
        return list(answers)

    def _collect(self, target: _Target, interface: _Interface) -> tuple[LedgerAnswer, ...] | NoData:
        collector = interface.collector
        accept = ACCEPT_TEXT if collector.path == "/metrics" else ACCEPT_JSON
        reply = self._fetcher.fetch(collector.interface, target.base, collector.path, accept)
        if isinstance(reply, NoData):
            return reply
        where = hide_credentials(f"{target.base}{collector.path}")
        try:
            body = _mark_end(collector, reply.body)
            answers = self._parsing.submit(collector.parse, body, where, reply.received_ns).result()
        except InputError as error:
            return NoData(collector.interface, where, reply.received_ns, error.what)
        # One clock for all interfaces and targets: stamps in the bodies are of the engines' hosts.
        return tuple(replace(answer, taken_ns=reply.received_ns) for answer in answers)


def _mark_end(collector: Collector, body: bytes) -> bytes:
    """Mark the end of a page: HTTP tells that none of it was lost, which the page alone cannot."""
    return body + f"{EOF}\n".encode() if collector.path == "/metrics" and body.endswith(b"\n") else body


def _is_replaced(target: _Target, interface: _Interface) -> bool:
    """Tell whether a newer interface answers in its place; until that is known to be absent it is taken to."""
    newer = target.interfaces.get(INSTEAD.get(interface.collector.interface, ""))
    return newer is not None and not newer.is_absent
