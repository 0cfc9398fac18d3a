"""Tell what the inputs of a what-if are, and make of them what can be served again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dprankdiag.collectors.http import hide_credentials
from dprankdiag.errors import InputError, UsageError
from dprankdiag.model.ledgers import EngineName, Ledger, LedgerFile
from dprankdiag.model.recordings import RECORDING
from dprankdiag.model.request_log import RequestLog
from dprankdiag.model.whatif import WhatIf
from dprankdiag.pipelines.ledger_files import join_files
from dprankdiag.pipelines.recordings import read_recorded_file
from dprankdiag.pipelines.whatif import Note, price_policies
from dprankdiag.pipelines.whatif_ledger import make_ledger_log, read_log_facts
from dprankdiag.pipelines.whatif_log import make_log_case
from dprankdiag.pipelines.whatif_readings import join_readings
from dprankdiag.readers.request_log import is_request_log, read_request_log
from dprankdiag.store.recording import is_recording

PROMETHEUS_RANGE = "prometheus"

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


@dataclass(slots=True)
class _Read:
    """What was read: logs, and files of what engines told over time."""

    logs: list[RequestLog] = field(default_factory=list)
    told: list[LedgerFile] = field(default_factory=list)


def ask_what_if(
    inputs: Sequence[str], said: Said, stored: Sequence[LedgerFile] = (), note: Note = lambda policy: None
) -> WhatIf:
    """Serve what the inputs tell of a load again under each policy.

    Args:
        inputs: paths, and addresses of engines, which are refused with what to do instead.
        said: what the user says.
        stored: what Prometheus servers hold of engines, as read before.
        note: told each policy as it is served.

    Raises:
        UsageError: there are several logs, or a path does not exist.
        InputError: an input is of no kind that tells of requests.
    """
    read = _read_all(inputs)
    if len(read.logs) > 1:
        raise UsageError(f"{len(read.logs)} request logs were given", mend="give one; join them with cat")
    ledgers = join_files([*read.told, *stored], None)
    paths = (*(hide_credentials(one) for one in inputs), *(one.source.path for one in stored))
    kind = PROMETHEUS_RANGE if stored else RECORDING
    if read.logs:
        log = _add_said(_add_told(read.logs[0], ledgers), said)
        told = price_policies(make_log_case(log, ledgers), note)
    else:
        told = _price_ledgers(ledgers, kind, ", ".join(paths), said, note)
    return replace(told, source=replace(told.source, paths=paths))


def _price_ledgers(ledgers: list[Ledger], kind: str, where: str, said: Said, note: Note) -> WhatIf:
    """Price what counters tell, by both readings of it."""
    alike, one_long = (_add_said(make_ledger_log(ledgers, reading, where), said) for reading in ("alike", "one_long"))
    told = price_policies(make_log_case(alike, ledgers, kind), note)
    if alike.requests == one_long.requests:
        return told
    return join_readings(told, price_policies(make_log_case(one_long, ledgers, kind), note))


def _read_all(inputs: Sequence[str]) -> _Read:
    read = _Read()
    for one in inputs:
        if "://" in one:
            mend = f"record it first: dprankdiag record {hide_credentials(one)} -o run.dprec"
            raise UsageError("an engine tells only of now", where=hide_credentials(one), mend=mend)
        _read_path(Path(one), read)
    return read


def _read_path(path: Path, read: _Read) -> None:
    if not path.exists():
        raise UsageError("no such file", where=str(path))
    if is_recording(path):
        read.told.append(read_recorded_file(path))
    elif path.is_file() and is_request_log(path):
        read.logs.append(read_request_log(path))
    else:
        raise InputError(f"tells of no requests, expected {_EXPECTED}", where=str(path), mend="see docs/whatif.md")


def _add_told(log: RequestLog, ledgers: Sequence[Ledger]) -> RequestLog:
    """Put what the engines beside a log tell of themselves where the log says nothing."""
    if not ledgers or any(ledger.role in ("prefill", "decode") for ledger in ledgers):
        return log
    told = read_log_facts(ledgers)
    missing = {name: getattr(told, name) for name in _SAID if getattr(log.facts, name) is None}
    return replace(log, facts=replace(log.facts, **missing))


def _add_said(log: RequestLog, said: Said) -> RequestLog:
    """Put what the user says in place of what the log says."""
    told = {name: getattr(said, name) for name in _SAID if getattr(said, name) is not None}
    return replace(log, facts=replace(log.facts, **told))
