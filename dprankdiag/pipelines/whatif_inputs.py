"""Tell what the inputs of a what-if are, and make of them what can be served again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dprankdiag.collectors.http import Access, hide_credentials
from dprankdiag.errors import InputError, UsageError
from dprankdiag.model.ledgers import EngineName, Ledger, LedgerAnswer
from dprankdiag.model.recordings import RECORDING
from dprankdiag.model.request_log import RequestLog
from dprankdiag.model.whatif import WhatIf
from dprankdiag.pipelines.ledger_files import join_files
from dprankdiag.pipelines.live import join_live
from dprankdiag.pipelines.poll import Poller
from dprankdiag.pipelines.recordings import read_recorded_file
from dprankdiag.pipelines.sources import PROMETHEUS
from dprankdiag.pipelines.whatif import Note, price_policies
from dprankdiag.pipelines.whatif_ledger import make_ledger_log
from dprankdiag.pipelines.whatif_log import make_log_case
from dprankdiag.pipelines.whatif_readings import join_readings
from dprankdiag.readers.request_log import is_request_log, read_request_log
from dprankdiag.store.recording import is_recording

if TYPE_CHECKING:
    import httpx

PROMETHEUS_RANGE = "prometheus"
SINCE_S = 3600.0
STEP_S = 15.0
"""The interval at which most servers scrape; a finer step would show every sample twice."""

_EXPECTED = "a request log (lines of JSON), a recording (.dprec) or prometheus+http://HOST:PORT"
_SAID = ("engine", "version", "policy", "workers", "ranks", "gpus", "chunk_tokens", "capacity_tokens")


@dataclass(frozen=True, slots=True)
class Said:
    """What the user says of the deployment, before what the inputs say; None where nothing."""

    engine: EngineName | None = None
    version: str | None = None
    policy: str | None = None
    workers: int | None = None
    ranks: int | None = None
    gpus: int | None = None
    chunk_tokens: int | None = None
    capacity_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Reach:
    """How servers are asked.

    Attributes:
        since_s: how far back, from now.
        step_s: from one look to the next.
        transport: stands in for the network.
        clock: UTC epoch ns.
    """

    access: Access = field(default_factory=Access)
    since_s: float = SINCE_S
    step_s: float = STEP_S
    transport: httpx.BaseTransport | None = None
    clock: Callable[[], int] = time.time_ns


@dataclass(slots=True)
class _Read:
    """What was read: logs, what engines told over time, and what the latter was read from."""

    logs: list[RequestLog] = field(default_factory=list)
    ledgers: list[Ledger] = field(default_factory=list)
    kind: str = RECORDING


def ask_what_if(
    inputs: Sequence[str], said: Said, reach: Reach | None = None, note: Note = lambda policy: None
) -> WhatIf:
    """Serve what the inputs tell of a load again under each policy.

    Raises:
        UsageError: there are several logs, or a path does not exist.
        InputError: an input is of no kind that tells of requests.
    """
    read = _read_all(inputs, reach or Reach())
    if len(read.logs) > 1:
        raise UsageError(f"{len(read.logs)} request logs were given", mend="give one; join them with cat")
    if read.logs:
        log = _add_said(read.logs[0], said)
        told = price_policies(make_log_case(log, read.ledgers), note)
    else:
        told = _price_ledgers(read, ", ".join(hide_credentials(one) for one in inputs), said, note)
    paths = tuple(hide_credentials(one) for one in inputs)
    return replace(told, source=replace(told.source, paths=paths))


def _price_ledgers(read: _Read, where: str, said: Said, note: Note) -> WhatIf:
    """Price what counters tell, by both readings of it."""
    alike, one_long = (
        _add_said(make_ledger_log(read.ledgers, reading, where), said) for reading in ("alike", "one_long")
    )
    told = price_policies(make_log_case(alike, read.ledgers, read.kind), note)
    if alike.requests == one_long.requests:
        return told
    return join_readings(told, price_policies(make_log_case(one_long, read.ledgers, read.kind), note))


def _read_all(inputs: Sequence[str], reach: Reach) -> _Read:
    read = _Read()
    servers = [one for one in inputs if one.startswith(PROMETHEUS)]
    for one in inputs:
        if one in servers:
            continue
        if "://" in one:
            mend = f"record it first: dprankdiag record {hide_credentials(one)} -o run.dprec"
            raise UsageError("an engine tells only of now", where=hide_credentials(one), mend=mend)
        _read_path(Path(one), read)
    if servers:
        read.ledgers += _read_back(servers, reach)
        read.kind = PROMETHEUS_RANGE
    return read


def _read_path(path: Path, read: _Read) -> None:
    if not path.exists():
        raise UsageError("no such file", where=str(path))
    if is_recording(path):
        read.ledgers += join_files([read_recorded_file(path)], None)
    elif path.is_file() and is_request_log(path):
        read.logs.append(read_request_log(path))
    else:
        raise InputError(f"tells of no requests, expected {_EXPECTED}", where=str(path), mend="see docs/whatif.md")


def _read_back(servers: Sequence[str], reach: Reach) -> list[Ledger]:
    with closing(Poller(servers, reach.access, transport=reach.transport, clock=reach.clock)) as poller:
        told = poller.read_back(reach.since_s, reach.step_s)
    answers = [one for one in told if isinstance(one, LedgerAnswer)]
    if not answers:
        why = next((one.reason for one in told if not isinstance(one, LedgerAnswer)), "no answer")
        where = ", ".join(hide_credentials(one) for one in servers)
        raise InputError(why, where=where, mend="ask what it holds: dprankdiag doctor TARGET")
    return join_live(answers)


def _add_said(log: RequestLog, said: Said) -> RequestLog:
    """Put what the user says in place of what the log says."""
    told = {name: getattr(said, name) for name in _SAID if getattr(said, name) is not None}
    return replace(log, facts=replace(log.facts, **told))
