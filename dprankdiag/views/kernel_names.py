"""Kernel names in short, so that those which begin alike can still be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from dprankdiag.views.printable import make_printable

MOST_CHARACTERS = 64
_HEAD, _LEAST_TOLD = 40, 8
"""Names whose first characters are equal are told apart; so many stand before the place at which they differ."""


def shorten_names(names: Sequence[str]) -> dict[str, str]:
    """Shorten kernel names to what a line has room for; of those that begin alike the part in which they differ."""
    full = {name: make_printable(name).removeprefix("void ") for name in names}
    alike: dict[str, list[str]] = {}
    for text in full.values():
        alike.setdefault(text[:_HEAD], []).append(text)
    return {name: _cut(text, _count_alike(alike[text[:_HEAD]])) for name, text in full.items()}


def _count_alike(texts: Sequence[str]) -> int:
    """Count the characters with which all begin; between the first and the last in order lie all others."""
    pairs = zip(min(texts), max(texts), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _cut(text: str, differs_at: int) -> str:
    """Cut a text, so that what stands at a place can be read if others begin alike."""
    if len(text) <= MOST_CHARACTERS:
        return text
    if differs_at >= len(text) or differs_at < MOST_CHARACTERS - _LEAST_TOLD:
        return f"{text[: MOST_CHARACTERS - 1]}…"
    head = f"{text[: MOST_CHARACTERS // 2 - 1]}…"
    rest = text[differs_at - _LEAST_TOLD :]
    room = MOST_CHARACTERS - len(head)
    return head + (rest if len(rest) <= room else f"{rest[: room - 1]}…")
