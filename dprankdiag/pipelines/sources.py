"""Tell what a target's name asks for: an engine's port, a Prometheus server, publishers, or this machine's memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from glob import glob
from typing import Protocol

from dprankdiag.collectors.http import check_target
from dprankdiag.collectors.sglang_forward_pass import ForwardPassStream
from dprankdiag.collectors.sglang_load_stat import LoadStatStream
from dprankdiag.collectors.sglang_shm import read_all
from dprankdiag.errors import UsageError
from dprankdiag.model.ledgers import LedgerAnswer, NoData

PROMETHEUS = "prometheus+"
ZMQ = "zmq+"
SHARED_MEMORY = "shm:"
_PORTS = re.compile(r"tcp://(?P<host>[^/]+):(?P<first>\d{1,5})(?:-(?P<last>\d{1,5}))?/?")
_PAGE = re.compile(r"/(?:graph|query|alerts|targets|rules|status|api/v1(?:/query(?:_range)?)?)\Z")
"""Ends of addresses that are copied from a browser."""

Answers = list[LedgerAnswer | NoData]


class Stream(Protocol):
    """Publishers that are listened to."""

    def poll(self, taken_ns: int) -> LedgerAnswer | None:
        """Tell what has come; None while nothing has."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


@dataclass(frozen=True, slots=True)
class Sources:
    """What targets ask for.

    Attributes:
        engines: addresses of engines.
        servers: addresses of Prometheus servers.
        streams: open each publisher that is named; nothing is opened before.
        memory: read the loads that engines of this machine leave in shared memory.
    """

    engines: tuple[str, ...]
    servers: tuple[str, ...]
    streams: tuple[Callable[[], Stream], ...]
    memory: bool


def read_targets(targets: Iterable[str]) -> Sources:
    """Sort targets by what they ask for.

    `http(s)://HOST:PORT` an engine; `prometheus+http(s)://HOST:PORT` a server; `zmq+tcp://HOST:PORT[-PORT]` the ports
    on which ranks publish their load; `zmq+ipc://PATH` the sockets PATH.RANK on which they publish forward passes;
    `shm:` this machine's shared memory.

    Raises:
        UsageError: a target is none of these, or holds credentials.
    """
    engines, servers = dict[str, None](), dict[str, None]()
    streams: list[Callable[[], Stream]] = []
    memory = False
    for target in targets:
        if target.rstrip("/") == SHARED_MEMORY:
            memory = True
        elif target.startswith(PROMETHEUS):
            servers[check_server(target)] = None
        elif target.startswith(ZMQ):
            streams.append(_read_publishers(target.removeprefix(ZMQ)))
        else:
            engines[check_target(target)] = None
    return Sources(tuple(engines), tuple(servers), tuple(streams), memory)


def check_server(target: str) -> str:
    """Check the address of a Prometheus server; return it without the page that a browser was at.

    Raises:
        UsageError: it is no HTTP address, or holds credentials.
    """
    try:
        base = check_target(target.removeprefix(PROMETHEUS))
    except UsageError as error:
        if error.mend:
            raise
        raise UsageError("expected prometheus+http://HOST:PORT", where=error.where) from error
    return _PAGE.sub("", base)


def read_memory(now_ns: int) -> Answers:
    """Read the loads that engines of this machine leave in shared memory."""
    answers = read_all(now_ns)
    return answers or [NoData("sglang-shm", "/dev/shm", now_ns, "no SGLang engine leaves its loads here", absent=True)]


def _read_publishers(endpoint: str) -> Callable[[], Stream]:
    if endpoint.startswith("ipc://"):
        path = endpoint.removeprefix("ipc://")
        return lambda: ForwardPassStream([f"ipc://{found}" for found in sorted(glob(f"{path}.[0-9]*"))])
    found = _PORTS.fullmatch(endpoint)
    if found is None:
        raise UsageError("expected zmq+tcp://HOST:PORT-PORT or zmq+ipc://PATH", where=f"{ZMQ}{endpoint}")
    first, last = int(found["first"]), int(found["last"] or found["first"])
    if not 0 < first <= last < 65536 or last - first >= 4096:
        raise UsageError("expected ports from 1 to 65535, ascending", where=f"{ZMQ}{endpoint}")
    return lambda: LoadStatStream([f"tcp://{found['host']}:{port}" for port in range(first, last + 1)])
