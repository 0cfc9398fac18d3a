"""Addresses of what is shown: page, step, meeting and rank stand in the URL, to be sent and opened again."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode

_NUMBERS = ("group", "step", "rank", "meeting", "before", "after")


@dataclass(frozen=True, slots=True)
class Place:
    """What is looked at: a page, a lockstep group, a step of it, a rank, a meeting of the step by its position.

    Attributes:
        before, after: which of the bundles that were opened are compared.
    """

    path: str = "/"
    group: int | None = None
    step: int | None = None
    rank: int | None = None
    meeting: int | None = None
    before: int | None = None
    after: int | None = None


def read_place(path: str | None, search: str | None) -> Place:
    """Read an address; what is no number is left out."""
    told = parse_qs((search or "").removeprefix("?"))
    numbers = {name: _read_number(told.get(name, [""])[0]) for name in _NUMBERS}
    return Place(path or "/", **numbers)


def _read_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def write_address(place: Place) -> str:
    """Write the address of a place."""
    told = {name: getattr(place, name) for name in _NUMBERS if getattr(place, name) is not None}
    return f"{place.path}?{urlencode(told)}" if told else place.path
