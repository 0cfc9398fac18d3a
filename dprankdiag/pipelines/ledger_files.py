"""From files that engines' answers were saved in to ledgers: each is tried as what it may be."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dprankdiag.analysis.ledgers import Sighting, join_sightings
from dprankdiag.collectors.base import Collector
from dprankdiag.collectors.sglang_loads import SglangLoads
from dprankdiag.collectors.sglang_metrics import SglangMetrics
from dprankdiag.collectors.vllm_metrics import VllmMetrics
from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.ledgers import Ledger, LedgerAnswer, LedgerFile
from dprankdiag.model.sources import Source
from dprankdiag.readers.engine_log import is_log, parse_log

STDIN = Path("-")
"""Standard input, for the log of a running engine; a file of that name is given as ./-."""


def _list_collectors() -> tuple[Collector, ...]:
    return (SglangMetrics(), SglangLoads(), VllmMetrics())


def read_ledger_file(path: Path) -> LedgerFile:
    """Read a file of answers, whichever interface they are of.

    Raises:
        InputError: no interface knows it.
        DamagedInput: the interface it is of cannot read it.
    """
    try:
        body = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(path)) from error
    refusals: list[InputError] = []
    for collector in _list_collectors():
        try:
            answers = collector.parse(body, str(path))
        except DamagedInput:
            raise
        except InputError as error:
            refusals.append(error)
            continue
        if answers:
            return _make_file(path, answers)
    text = body.decode("utf-8", "replace")
    if is_log(text):
        return _make_file(path, parse_log(text, str(path)))
    mend = "give the answer of /metrics, /v1/loads, /get_load or /server_info as it came"
    raise InputError(refusals[0].what if refusals else "holds no answer of an engine", where=str(path), mend=mend)


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


def join_files(files: Sequence[LedgerFile], interval_s: float | None) -> list[Ledger]:
    """Join files to one ledger a target.

    Raises:
        UsageError: two targets with equal labels cannot be told apart.
    """
    sightings = [Sighting(answer, file.place, file.name, file.at_s) for file in files for answer in file.answers]
    return join_sightings(sightings, interval_s, [file.source for file in files])
