"""From files that engines' answers were saved in to ledgers: each is tried as what it may be."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path

from dprankdiag.analysis.ledgers import Sighting, join_sightings
from dprankdiag.collectors.base import Collector
from dprankdiag.collectors.sglang_forward_pass import SglangForwardPass
from dprankdiag.collectors.sglang_load_stat import SglangLoadStat
from dprankdiag.collectors.sglang_loads import SglangGetLoad, SglangLoads
from dprankdiag.collectors.sglang_metrics import SglangMetrics
from dprankdiag.collectors.sglang_server_info import SglangServerInfo
from dprankdiag.collectors.sglang_shm import SglangShm
from dprankdiag.collectors.vllm_info import VllmServerInfo
from dprankdiag.collectors.vllm_metrics import VllmMetrics
from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.ledgers import Ledger, LedgerAnswer, LedgerFile
from dprankdiag.model.sources import Source
from dprankdiag.readers.engine_log import is_log, parse_log

HEAD_BYTES = 4096
MOST_STDIN_BYTES = 1 << 30
"""A log of months; what goes on is no log but something that never ends."""

STDIN = Path("-")
"""Standard input, for the log of a running engine; a file of that name is given as ./-."""


def _choose_collectors(body: bytes) -> tuple[Collector, ...]:
    """List what a body may be an answer of, by its first bytes."""
    start = body.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if body.startswith(b"SLNS"):
        return (SglangShm(),)
    if b'"payload_hex"' in body[:HEAD_BYTES]:
        return (SglangLoadStat(), SglangForwardPass())
    if start in (b"{", b"["):
        return (SglangLoads(), SglangGetLoad(), SglangServerInfo(), VllmServerInfo())
    return (SglangMetrics(), VllmMetrics(), SglangLoads())


def read_ledger_file(path: Path) -> LedgerFile:
    """Read a file of answers, whichever interface they are of.

    Raises:
        InputError: no interface knows it.
        DamagedInput: the interface it is of cannot read it.
    """
    try:
        body = _read_stdin() if path == STDIN else path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(path)) from error
    text = body.decode("utf-8", "replace")
    if is_log(text):
        return _make_file(path, parse_log(text, str(path)))
    refusals: list[InputError] = []
    for collector in _choose_collectors(body):
        try:
            answers = collector.parse(body, str(path))
        except InputError as error:
            refusals.append(error)
            continue
        if answers:
            return _make_file(path, answers)
    damaged = [error for error in refusals if isinstance(error, DamagedInput)]
    if damaged and len(damaged) == len(refusals):
        raise damaged[0]
    if body.lstrip()[:6] in (b"# HELP", b"# TYPE"):
        what = "a page of metrics without a number of any rank: no data, and no sign that ranks are gone"
        raise DamagedInput(what, where=str(path), mend="scrape it again; SGLang needs --enable-metrics")
    mend = "give the answer of /metrics, /v1/loads, /get_load or /server_info as it came"
    raise InputError("holds no number that an engine tells of its ranks", where=str(path), mend=mend)


def _read_stdin() -> bytes:
    """Read standard input to its end.

    Raises:
        InputError: it does not end.
    """
    body = sys.stdin.buffer.read(MOST_STDIN_BYTES + 1)
    if len(body) > MOST_STDIN_BYTES:
        what = f"goes on after {MOST_STDIN_BYTES >> 20} MiB"
        raise InputError(what, where="standard input", mend="give a part of the log: tail -n 1000000 LOG | ...")
    return body


def _make_file(path: Path, told: tuple[LedgerAnswer, ...]) -> LedgerFile:
    first = told[0]
    source = Source(
        str(path),
        first.interface,
        "used",
        producer=" ".join(str(part) for part in (first.engine, first.facts.get("version")) if part),
        ranks=tuple(sorted({rank for answer in told for rank in answer.ranks})),
        warnings=tuple(text for answer in told for text in answer.warnings),
    )
    return LedgerFile(source, told, str(path.parent))


def _spans_time(file: LedgerFile) -> bool:
    """Tell a file that holds moments of its own (a log, frames, a recording): none of them is the user's."""
    kinds = [(answer.interface, answer.model, answer.role) for answer in file.answers]
    return len(set(kinds)) < len(kinds)


def join_files(files: Sequence[LedgerFile], interval_s: float | None) -> list[Ledger]:
    """Join files to one ledger a target.

    Raises:
        UsageError: two targets with equal labels cannot be told apart.
    """
    sightings = [
        Sighting(answer, place, file.name, None if _spans_time(file) else file.at_s)
        for file in files
        for answer, place in zip(file.answers, file.places or repeat(file.place), strict=False)
    ]
    return join_sightings(sightings, interval_s, [file.source for file in files])
