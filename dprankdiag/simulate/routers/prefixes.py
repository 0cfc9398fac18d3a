"""Remember which prompts were sent to a worker, as a guess of what its prefix cache holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from dprankdiag.simulate.base import Request

MAX_TOKENS = 2**24

Prefixes = Sequence[tuple[int, int]]
"""Of a prompt: a name for each prefix that ends with a part, and the tokens of that part."""


class PrefixMemory:
    """The prompts sent to one worker, as a tree of their parts; the least recently used leaves go first.

    It is a guess: the worker may have thrown away what is remembered here, and keeps outputs that are not.

    Attributes:
        tokens: remembered now.
    """

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self.tokens = 0
        self._max_tokens = max_tokens
        self._parts: OrderedDict[int, int] = OrderedDict()

    def match(self, prefixes: Prefixes) -> int:
        """Count the leading tokens of the prompt that were sent before."""
        matched = 0
        for place, tokens in prefixes:
            if place not in self._parts:
                break
            matched += tokens
        return matched

    def insert(self, prefixes: Prefixes) -> None:
        """Remember a prompt; a root counts as used later than its leaves, so that leaves go before it."""
        for place, tokens in reversed(prefixes):
            if place in self._parts:
                self._parts.move_to_end(place)
            else:
                self._parts[place] = tokens
                self.tokens += tokens
        while self.tokens > self._max_tokens:
            self.tokens -= self._parts.popitem(last=False)[1]


def name_prefixes(request: Request) -> Prefixes:
    """Name the prefixes of a prompt; equal names are equal tokens."""
    place, named = 0, []
    for part in request.parts:
        place = hash((place, part.key, part.tokens))
        named.append((place, part.tokens))
    return named


def name_beginning(request: Request, n_tokens: int) -> int:
    """Name the first tokens of a prompt; prompts that begin alike have equal names."""
    place, left = 0, n_tokens
    for part in request.parts:
        place = hash((place, part.key, min(part.tokens, left)))
        left -= part.tokens
        if left <= 0:
            break
    return place
