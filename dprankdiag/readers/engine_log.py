"""Read what engines log of their load: SGLang's prefill and decode lines, vLLM's statistics and iteration lines.

Lines are read key by key, for their order changed between releases. A log tells no counter, so tokens are added up
from its first line on; gauges hold until the rank logs again. Step times derived from throughput are not used: idle
stretches and prefills of other ranks lie in them.

Source: sglang 0.4.0 to 0.5.23 (prefill and decode batch lines), vLLM 0.11.2 to 0.33.0 (statistics of the front end).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import EngineName, FloatArray, LedgerAnswer
from dprankdiag.units import NS_PER_S

MOST = 1e15
"""No number of a log is meant to be larger."""

LAST_S = 4.1e9
"""A moment beyond (the year 2100), or before 1970, is damage: nanoseconds of it may not fit a column."""

MOST_MOMENTS = 600
LEAST_BIN_S = 1.0
"""A log is told as the state at up to so many moments, at least so far apart."""

_SGLANG = re.compile(
    r"\[(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)(?P<ranks>(?: [A-Z_]+\d+)*)\]\s+"
    r"(?P<kind>Decode|Prefill) batch\b(?P<rest>.*)"
)
_VLLM = re.compile(
    r"(?:\(EngineCore_DP(?P<core>\d{1,5})\b[^)]*\) )?INFO (?P<at>\d\d-\d\d \d\d:\d\d:\d\d) .*?"
    r"(?:\bEngine (?P<rank>\d{1,5}): )?(?P<kind>Avg prompt throughput|Iteration\(\d+\)):(?P<rest>.*)"
)
"""Up to vLLM 0.22 the engine's own process logs its iterations, and only its name tells which one it is."""

_PAIR = re.compile(r"(?P<key>#?[A-Za-z][\w/+() -]*?): ?(?P<value>-?[\d.]+)")
_TORN = re.compile(r"\0|\ufffd")
"""Zeros that a bad sector or a full disk leaves, or bytes that are no text: two lines may be joined there."""

_DP = re.compile(r"\bDP(\d{1,5})\b")
_AGGREGATED = re.compile(r"\b\d+ Engines Aggregated: Avg prompt")

_SGLANG_GAUGES = {
    "#running-req": "running_requests",
    "#queue-req": "waiting_requests",
    "#token": "used_tokens",
    "token usage": "kv_usage_ratio",
    "accept len": "accept_length",
    "#retracted-req": "load_retracted_requests",
    "#prealloc-req": "decode_prealloc_requests",
    "#transfer-req": "decode_transfer_requests",
    "#bootstrap-req": "prefill_bootstrap_requests",
    "#inflight-req": "prefill_inflight_requests",
}
_SGLANG_SUMS = {"#new-token": "prefill_tokens", "#cached-token": "cached_tokens", "#new-seq": "admitted_requests"}
_VLLM_GAUGES = {"Running": "running_requests", "Waiting": "waiting_requests", "Deferred": "deferred_requests"}
_ANY_YEAR = 2000
"""vLLM logs no year; moments are only held against each other."""


@dataclass(frozen=True, slots=True)
class _Line:
    """What a line tells of a rank."""

    at_s: float
    rank: int | None
    gauges: dict[str, float]
    sums: dict[str, float]


@dataclass(slots=True)
class _State:
    """What is known of all ranks so far."""

    gauges: dict[int, dict[str, float]] = field(default_factory=dict)
    sums: dict[int, dict[str, float]] = field(default_factory=dict)

    def take(self, line: _Line) -> None:
        rank = line.rank or 0
        self.gauges.setdefault(rank, {}).update(line.gauges)
        sums = self.sums.setdefault(rank, {})
        for name, value in line.sums.items():
            sums[name] = sums.get(name, 0.0) + value


def is_log(text: str) -> bool:
    """Tell a log with lines about load."""
    return any(mark.search(text) for mark in (_SGLANG, _VLLM, _AGGREGATED))


def parse_log(text: str, where: str) -> tuple[LedgerAnswer, ...]:
    """Turn a log into the answers it stands for, at moments of its own clock.

    Raises:
        InputError: no line tells the load of a rank.
    """
    engine: EngineName = "sglang"
    lines = list(_read_sglang(text.splitlines()))
    if not lines:
        engine, lines = "vllm", list(_read_vllm(text.splitlines()))
    if not lines:
        if _AGGREGATED.search(text):
            mend = "start the engine without --aggregate-engine-logging"
            raise InputError("a log that adds all engines up: ranks cannot be told apart", where=where, mend=mend)
        raise InputError("holds no line that tells the load of a rank", where=where)
    return tuple(_make_answers(lines, engine, where))


def _read_sglang(lines: Iterable[str]) -> Iterator[_Line]:
    for line in lines:
        match = _SGLANG.search(line) if _TORN.search(line) is None else None
        stamp = None if match is None else _read_stamp(match["at"])
        if match is None or stamp is None:
            continue
        told = _find_pairs(match["rest"])
        rank = _DP.search(match["ranks"])
        gauges = {field: told[key] for key, field in _SGLANG_GAUGES.items() if key in told}
        sums = {field: told[key] for key, field in _SGLANG_SUMS.items() if key in told}
        yield _Line(stamp, None if rank is None else int(rank[1]), gauges, sums)


def _read_stamp(text: str) -> float | None:
    """Return epoch seconds; None for a date that is none, or that no engine runs at."""
    try:
        stamp = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return stamp if 0 <= stamp < LAST_S else None


def _find_pairs(rest: str) -> dict[str, float]:
    """Find ``key: value`` pairs; a number that is no number, or one too large to be meant, is passed over."""
    found: dict[str, float] = {}
    for match in _PAIR.finditer(rest.removeprefix(".").replace(", ", "\n")):
        value = _read_number(match["value"])
        if value is not None:
            found[match["key"].strip()] = value
    return found


def _read_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < MOST else None


def _read_vllm(lines: Iterable[str]) -> Iterator[_Line]:
    year, before = _ANY_YEAR, None
    for line in lines:
        match = _VLLM.search(line) if _TORN.search(line) is None else None
        number = None if match is None else match["rank"] or match["core"]
        if match is None or number is None:
            continue
        if before is not None and before.startswith("12-") and match["at"].startswith("01-"):
            year += 1
        before = match["at"]
        stamp = _read_stamp(f"{year}-{before}")
        if stamp is None:
            continue
        rank, rest = int(number), match["rest"]
        if match["kind"].startswith("Iteration"):
            yield _Line(stamp, rank, _read_usage(rest), _read_iteration(rest))
            continue
        told = _find_pairs(rest)
        gauges = {field: told[key] for key, field in _VLLM_GAUGES.items() if key in told}
        yield _Line(stamp, rank, gauges | _read_usage(rest), {})


_USAGE = re.compile(r"KV cache usage: ([\d.]+)%")
_ITERATION = re.compile(
    r"(\d+) context requests, (\d+) context tokens, (\d+) generation requests, (\d+) generation tokens"
)


def _read_usage(rest: str) -> dict[str, float]:
    match = _USAGE.search(rest)
    percent = None if match is None else _read_number(match[1])
    return {} if percent is None else {"kv_usage_ratio": percent / 100.0}


def _read_iteration(rest: str) -> dict[str, float]:
    match = _ITERATION.search(rest)
    if match is None:
        return {}
    requests, tokens, _, generated = (float(part) for part in match.groups())
    return {"admitted_requests": requests, "prefill_tokens": tokens, "decode_tokens": generated, "iterations": 1.0}


def _make_answers(lines: list[_Line], engine: EngineName, where: str) -> Iterator[LedgerAnswer]:
    """Tell the state at the end of each of many equal parts of the log, and at its very beginning."""
    lines.sort(key=lambda line: line.at_s)
    start, end = lines[0].at_s, lines[-1].at_s
    step_s = max(LEAST_BIN_S, (end - start) / MOST_MOMENTS)
    names = sorted({name for line in lines for name in line.sums})
    ranks = tuple(sorted({line.rank or 0 for line in lines}))
    unlabelled = all(line.rank is None for line in lines)
    state = _State({}, {rank: dict.fromkeys(names, 0.0) for rank in ranks})
    yield _make_answer(state, ranks, engine, where, start, unlabelled)
    border = start + step_s
    for line in lines:
        while line.at_s > border:
            yield _make_answer(state, ranks, engine, where, border, unlabelled)
            border += step_s
        state.take(line)
    yield _make_answer(state, ranks, engine, where, max(end, border), unlabelled)


def _make_answer(
    state: _State, ranks: tuple[int, ...], engine: EngineName, where: str, at_s: float, unlabelled: bool
) -> LedgerAnswer:
    values: dict[str, FloatArray] = {}
    for table in (state.gauges, state.sums):
        for name in sorted({name for told in table.values() for name in told}):
            values[name] = np.array([table.get(rank, {}).get(name, np.nan) for rank in ranks])
    return LedgerAnswer(
        interface=f"{engine}-log",
        where=where,
        engine=engine,
        taken_ns=round(at_s * NS_PER_S),
        ranks=() if unlabelled else ranks,
        values={} if unlabelled else values,
        unlabelled=unlabelled,
    )
