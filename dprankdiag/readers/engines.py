"""Part the recordings of one time into engines: deployments whose ranks have nothing to do with each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dprankdiag.model.ranks import RankClaim
from dprankdiag.model.sources import Reading

DEFAULT = "default"

_NUMBERS = re.compile(r"\d+")
_AXES = re.compile(r"(?i)(?<![a-z])(?:dp|tp|pp|ep|dcp|rank)[-_]?\d+[-_]?")
_SUFFIXES = re.compile(r"(?i)(?:\.(?:pt|trace|json|gz|sqlite))+$")
_ROLES = re.compile(r"(?i)(?<![a-z])(prefill|extend|decode)(?![a-z])")
_EXTEND = "extend"
"""What SGLang calls a prefill in the names of its traces."""


def part_engines(
    readings: Sequence[Reading], numbers: Sequence[int], otherwise: str = DEFAULT
) -> list[tuple[str, list[int]]]:
    """Part recordings that claim the same ranks, by what else tells them apart: folder, kind of file, name of file.

    Recordings whose ranks differ stay together, wherever they lie.

    Args:
        numbers: positions in `readings` of the recordings of one time.
        otherwise: name of the engine where there is one only.

    Returns:
        Engine name and the recordings of each; one engine where nothing parts them cleanly.
    """
    whole = list(numbers)
    if not _collide(readings, whole):
        return [(otherwise, whole)]
    for tell in (_name_folder, _name_kind, _name_pattern):
        parts = _part(readings, whole, tell)
        if len(parts) > 1 and all(_is_engine(readings, part) for part in parts.values()):
            return [(name or otherwise, part) for name, part in parts.items()]
    return [(otherwise, whole)]


def name_times(readings: Sequence[Reading], groups: Sequence[Sequence[int]]) -> list[str]:
    """Name what was recorded at different times by its folders or by the names of its files, where these differ."""
    for tell in (_name_folder, _name_pattern):
        told = [{tell(readings[number]) for number in group} for group in groups]
        if all(len(names) == 1 for names in told) and len(set().union(*told)) == len(groups) > 1:
            return [names.pop() or DEFAULT for names in told]
    return [DEFAULT] * len(groups)


def find_role(engine: str) -> str:
    """Read the role of an engine out of its name: "prefill", "decode", or "unified" where it names neither or both."""
    roles = {"prefill" if role.lower() == _EXTEND else role.lower() for role in _ROLES.findall(engine)}
    return roles.pop() if len(roles) == 1 else "unified"


def _part(
    readings: Sequence[Reading], numbers: Sequence[int], tell: Callable[[Reading], str]
) -> Mapping[str, list[int]]:
    parts: dict[str, list[int]] = {}
    for number in numbers:
        parts.setdefault(tell(readings[number]), []).append(number)
    return parts


def _is_engine(readings: Sequence[Reading], numbers: Sequence[int]) -> bool:
    """Tell whether recordings may be an engine of their own: several ranks, each once."""
    return sum(len(readings[number].actors) for number in numbers) > 1 and not _collide(readings, numbers)


def _collide(readings: Sequence[Reading], numbers: Sequence[int]) -> bool:
    """Tell whether two recordings surely claim one rank, of more than one."""
    owners: dict[object, int] = {}
    for number in numbers:
        for actor in readings[number].actors:
            claim = next((claim for claim in actor.claims if _is_sure(claim)), None)
            if claim is not None and owners.setdefault(_identity(claim), number) != number:
                return True
    return False


def _is_sure(claim: RankClaim) -> bool:
    """Leave out what cannot tell ranks apart; the name of a file counts, where it names the axes."""
    told = claim.rank is not None or claim.dp_rank is not None or claim.tp_rank is not None
    return told and claim.grade != "assumed" and claim.world != 1


def _identity(claim: RankClaim) -> object:
    return claim.rank if claim.rank is not None else (claim.dp_rank, claim.pp_rank, claim.tp_rank)


def _name_folder(reading: Reading) -> str:
    return Path(reading.source.path).resolve().parent.name


def _name_kind(reading: Reading) -> str:
    return reading.source.kind


def _name_pattern(reading: Reading) -> str:
    """Return a file's name without what differs from rank to rank."""
    # SGLang's names hold a point before what tells the stage: 1780999997.65-TP-0-DECODE.trace.json.gz.
    stem = _SUFFIXES.sub("", Path(reading.source.path).name)
    return _NUMBERS.sub("", _AXES.sub("", stem)).strip("-_.")
