"""Read a rank map, by which the user says who is which rank, and find the processes that its keys mean."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from dprankdiag.errors import InputError, UsageError
from dprankdiag.model.ranks import LARGEST_RANK
from dprankdiag.model.sources import Reading

Seat = tuple[int, int]
"""(position of the reading, position of the actor in it)."""

_LINE = re.compile(r"(?P<key>.+?)\s*[=,]\s*(?P<rank>\d+)")
_FORMS = "a key is pid:PID, FILE, FILE:PID or FILE:PID:DEVICE"


def parse_rank_map(path: Path) -> dict[str, int]:
    """Read lines ``KEY = RANK`` or ``KEY,RANK`` (# starts a comment), or one JSON object.

    Raises:
        UsageError: there is no such file.
        InputError: a line or entry is no such pair, or a key or rank comes twice; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError("no such file", where=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"a rank map that cannot be read ({error})", where=str(path)) from error
    pairs = _parse_json(text, path) if text.lstrip().startswith("{") else _parse_lines(text, path)
    ranks: dict[str, int] = {}
    for place, key, rank in pairs:
        if key in ranks or rank in ranks.values():
            raise InputError(f"{'key' if key in ranks else 'rank'} given twice in {key} = {rank}", where=place)
        if rank > LARGEST_RANK:
            raise InputError(f"no rank has the number {rank}", where=place, mend=f"ranks go up to {LARGEST_RANK}")
        ranks[key] = rank
    if not ranks:
        raise InputError("a rank map without entries", where=str(path), mend=f"write KEY = RANK; {_FORMS}")
    return ranks


def find_seats(rank_map: Mapping[str, int], readings: Sequence[Reading]) -> dict[Seat, int]:
    """Return the rank of every process and device that the map names.

    Raises:
        UsageError: a key means none or several of them, or two keys mean the same one.
    """
    ranks: dict[Seat, int] = {}
    for key, rank in rank_map.items():
        seats = _match(key, readings)
        if len(seats) != 1:
            found = "no process" if not seats else f"{len(seats)} processes or devices"
            raise UsageError(f"rank map key {key} means {found} of the files given", mend=_FORMS)
        if seats[0] in ranks:
            raise UsageError(f"rank map key {key} means a process that another key names already")
        ranks[seats[0]] = rank
    return ranks


def _match(key: str, readings: Sequence[Reading]) -> list[Seat]:
    every = [(number, actor) for number, reading in enumerate(readings) for actor in range(len(reading.actors))]
    if match := re.fullmatch(r"pid:(\d+)", key):
        return [seat for seat in every if _actor_ids(readings, seat)[0] == int(match[1])]
    for name, wanted in _split_key(key):
        files = {number for number, reading in enumerate(readings) if name in _file_names(reading)}
        if files:
            return [seat for seat in every if seat[0] in files and _actor_ids(readings, seat)[: len(wanted)] == wanted]
    return []


def _split_key(key: str) -> list[tuple[str, tuple[int, ...]]]:
    """Split off up to two trailing numbers; the whole key may be a file name that holds colons."""
    forms: list[tuple[str, tuple[int, ...]]] = [(key, ())]
    for count in (1, 2):
        parts = key.rsplit(":", count)
        if len(parts) == count + 1 and all(part.isdecimal() for part in parts[1:]):
            forms.append((parts[0], tuple(int(part) for part in parts[1:])))
    return forms


def _actor_ids(readings: Sequence[Reading], seat: Seat) -> tuple[int, ...]:
    actor = readings[seat[0]].actors[seat[1]]
    return (actor.pid,) if actor.device is None else (actor.pid, actor.device)


def _file_names(reading: Reading) -> tuple[str, str, str]:
    path = Path(reading.source.path)
    return reading.source.path, path.name, path.stem


def _parse_lines(text: str, path: Path) -> list[tuple[str, str, int]]:
    pairs = []
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        match = _LINE.fullmatch(content)
        if not match:
            raise InputError(f"expected KEY = RANK, found {content!r}", where=f"{path} line {number}", mend=_FORMS)
        pairs.append((f"{path} line {number}", match["key"], int(match["rank"])))
    return pairs


def _parse_json(text: str, path: Path) -> list[tuple[str, str, int]]:
    try:
        entries = json.loads(text, object_pairs_hook=list)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise InputError(f"a rank map that is no JSON ({error})", where=f"{path} line {line}") from error
    for key, rank in entries:
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
            raise InputError(f"expected a rank for {key!r}, found {rank!r}", where=str(path), mend=_FORMS)
    return [(f"{path} entry {key}", key, rank) for key, rank in entries]
