"""Read logs of requests: a line of JSON for each, in columns of our own or those of published traces.

Source: Mooncake's published traces (`timestamp` in ms, `input_length`, `output_length`, `hash_ids` of blocks of 512).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.ledgers import EngineName
from dprankdiag.model.request_log import LogFacts, LoggedRequest, RequestLog
from dprankdiag.units import NS_PER_MS, NS_PER_S

REQUEST_LOG = "request-log"

ARRIVALS: dict[str, int] = {"arrival_ns": 1, "arrival_s": NS_PER_S, "timestamp": NS_PER_MS}
"""Columns that tell the arrival, and their unit in ns."""

PROMPTS = ("input_tokens", "input_length")
OUTPUTS = ("output_tokens", "output_length")
BLOCKS = ("prefix", "hash_ids")
FACTS = ("version", "policy", "gateway")
COUNTS = ("workers", "ranks", "gpus", "chunk_tokens", "capacity_tokens", "block_tokens")

HEAD_BYTES = 1 << 16
MOST = 1 << 52
"""No count of a log is meant to be larger."""

LAST_NS = 1 << 62
"""No moment of a log is meant to be later: two of them together would not fit a column."""

_MEND = "see docs/whatif.md for the columns: arrival_s, input_tokens, output_tokens, rank, ttft_s, e2e_s"


def is_request_log(path: Path) -> bool:
    """Tell by its first lines whether a file is a log of requests."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return False
    for line in head.splitlines()[:2]:
        try:
            row = json.loads(line)
        except ValueError:
            return False
        if isinstance(row, dict) and _find(row, ARRIVALS) is not None and _find(row, PROMPTS) is not None:
            return True
    return False


def read_request_log(path: Path) -> RequestLog:
    """Read a log; a line without an arrival tells of the deployment.

    Raises:
        InputError: it cannot be read, or holds no request.
        DamagedInput: a line is no JSON object, or a column holds what it cannot.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read ({getattr(error, 'strerror', None) or error})", where=str(path)) from error
    facts: dict[str, Any] = {}
    requests: list[LoggedRequest] = []
    skipped: dict[str, int] = {}
    for number, row in _read_rows(text, str(path)):
        where = f"{path}:{number}"
        if _find(row, ARRIVALS) is None:
            facts |= row
            continue
        request = _read_request(row, where)
        if request is None:
            skipped["no output tokens"] = skipped.get("no output tokens", 0) + 1
        else:
            requests.append(request)
    if not requests:
        raise InputError("holds no request with an arrival and its lengths", where=str(path), mend=_MEND)
    requests.sort(key=lambda request: request.arrival_ns)
    return RequestLog(str(path), _read_facts(facts, str(path)), tuple(requests), skipped)


def _read_rows(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            # Seconds since the epoch with their microseconds are more than a float holds.
            row = json.loads(line, parse_float=Decimal)
        except (ValueError, RecursionError) as error:
            raise DamagedInput("a line that is no JSON", where=f"{where}:{number}", mend=_MEND) from error
        if not isinstance(row, dict):
            raise DamagedInput("a line that is no JSON object", where=f"{where}:{number}", mend=_MEND)
        yield number, row


def _find(row: Mapping[str, Any], names: Any) -> str | None:
    return next((name for name in names if row.get(name) is not None), None)


def _read_request(row: Mapping[str, Any], where: str) -> LoggedRequest | None:
    """Read one request; None if it generated nothing (given up, or refused)."""
    arrival = cast(str, _find(row, ARRIVALS))
    prompt, output = _find(row, PROMPTS), _find(row, OUTPUTS)
    if prompt is None:
        raise DamagedInput("a request without input_tokens", where=where, mend=_MEND)
    output_tokens = 0 if output is None else _read_count(row, output, where)
    if output_tokens == 0:
        return None
    blocks = _find(row, BLOCKS)
    return LoggedRequest(
        arrival_ns=_read_time(row, arrival, where, ARRIVALS[arrival]),
        prompt_tokens=_read_count(row, prompt, where),
        output_tokens=output_tokens,
        cached_tokens=_read_optional(row, "cached_tokens", where),
        first_ns=_read_span(row, "ttft_s", where),
        end_ns=_read_span(row, "e2e_s", where),
        worker=_read_optional(row, "worker", where) or 0,
        rank=_read_optional(row, "rank", where),
        prefill_worker=_read_optional(row, "prefill_worker", where),
        prefill_rank=_read_optional(row, "prefill_rank", where),
        pinned=_read_flag(row, "pinned", where),
        session=None if row.get("session") is None else str(row["session"]),
        prefix=None if blocks is None else _read_blocks(row[blocks], where),
        room=_read_room(row, where),
    )


def _read_time(row: Mapping[str, Any], name: str, where: str, unit_ns: int) -> int:
    try:
        moment = Decimal(row[name]) * unit_ns
        if not isinstance(row[name], bool) and abs(moment) <= LAST_NS:
            return int(moment.to_integral_value())
    except (ArithmeticError, TypeError, ValueError):
        pass
    raise DamagedInput(f"{name} is no time: {str(row[name])[:40]}", where=where, mend=_MEND)


def _read_span(row: Mapping[str, Any], name: str, where: str) -> int | None:
    if row.get(name) is None:
        return None
    span_ns = _read_time(row, name, where, NS_PER_S)
    if span_ns < 0:
        raise DamagedInput(f"{name} is below 0", where=where, mend="it counts from the arrival")
    return span_ns


def _read_count(row: Mapping[str, Any], name: str, where: str) -> int:
    value = row[name]
    if isinstance(value, Decimal) and value.is_finite() and abs(value) <= MOST and value == value.to_integral_value():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise DamagedInput(f"{name} is no count: {str(value)[:40]}", where=where, mend=_MEND)
    return value


def _read_optional(row: Mapping[str, Any], name: str, where: str) -> int | None:
    return None if row.get(name) is None else _read_count(row, name, where)


def _read_room(row: Mapping[str, Any], where: str) -> int | None:
    room = row.get("room")
    if room is None or (isinstance(room, int) and not isinstance(room, bool) and room >= 0):
        return room
    raise DamagedInput("room is no number", where=where, mend=_MEND)


def _read_flag(row: Mapping[str, Any], name: str, where: str) -> bool | None:
    value = row.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise DamagedInput(f"{name} is neither true nor false", where=where, mend=_MEND)


def _read_blocks(value: Any, where: str) -> tuple[int | str, ...]:
    if isinstance(value, list) and all(isinstance(one, int | str) and not isinstance(one, bool) for one in value):
        return tuple(value)
    raise DamagedInput("prefix is no list of block ids", where=where, mend=_MEND)


def _read_facts(told: Mapping[str, Any], where: str) -> LogFacts:
    engine = told.get("engine")
    if engine not in (None, "sglang", "vllm"):
        raise DamagedInput(f"engine is {str(engine)[:40]}, expected sglang or vllm", where=where)
    counts: dict[str, Any] = {name: _read_count(told, name, where) for name in COUNTS if told.get(name) is not None}
    for name, count in counts.items():
        if count == 0:
            raise DamagedInput(f"{name} is 0", where=where)
    texts: dict[str, Any] = {name: str(told[name]) for name in FACTS if told.get(name) is not None}
    lockstep = _read_flag(told, "lockstep", where)
    return LogFacts(engine=cast("EngineName | None", engine), lockstep=lockstep is not False, **texts, **counts)
