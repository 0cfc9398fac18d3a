"""Make lists of requests: when they come, how long they are, what their prompts share.

Every list follows from its seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from dprankdiag.simulate.base import FloatArray, IntArray, Part, Request

SECOND_NS = 1_000_000_000


class Lengths(Protocol):
    """Draws lengths in tokens."""

    def draw(self, generator: np.random.Generator, count: int) -> IntArray:
        """Draw `(count,)` lengths, each at least 1."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Lengths whose logarithm is normal.

    Attributes:
        spread: standard deviation of the logarithm.
        most_tokens: longer ones are cut.
    """

    median_tokens: float
    spread: float
    most_tokens: int

    def draw(self, generator: np.random.Generator, count: int) -> IntArray:
        """Draw `(count,)` lengths, each at least 1."""
        drawn = self.median_tokens * np.exp(self.spread * generator.standard_normal(count))
        return _round(drawn, self.most_tokens)


@dataclass(frozen=True, slots=True)
class Pareto:
    """Lengths with a heavy tail: twice as long is 2^-`shape` times as likely.

    Attributes:
        most_tokens: longer ones are cut.
    """

    least_tokens: float
    shape: float
    most_tokens: int

    def draw(self, generator: np.random.Generator, count: int) -> IntArray:
        """Draw `(count,)` lengths, each at least 1."""
        return _round(self.least_tokens * (1.0 + generator.pareto(self.shape, count)), self.most_tokens)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Lengths all alike."""

    tokens: int

    def draw(self, generator: np.random.Generator, count: int) -> IntArray:
        """Give `(count,)` equal lengths."""
        return np.full(count, self.tokens, np.int64)


def _round(drawn: FloatArray, most: int) -> IntArray:
    return np.clip(np.rint(drawn), 1, most).astype(np.int64)


def come_at_random(count: int, per_second: float, prompts: Lengths, outputs: Lengths, seed: int) -> list[Request]:
    """Let requests arrive independently of each other (a Poisson process)."""
    generator = np.random.default_rng(seed)
    gaps = generator.exponential(SECOND_NS / per_second, count)
    return _list_single(np.cumsum(np.rint(gaps).astype(np.int64)), prompts, outputs, generator)


def come_in_bursts(
    bursts: int, size: int, span_ns: int, every_ns: int, prompts: Lengths, outputs: Lengths, seed: int
) -> list[Request]:
    """Let `size` requests arrive within `span_ns`, again and again after `every_ns`."""
    generator = np.random.default_rng(seed)
    starts = np.repeat(np.arange(bursts, dtype=np.int64) * every_ns, size)
    offsets = generator.integers(0, max(span_ns, 1), bursts * size)
    return _list_single(np.sort(starts + offsets), prompts, outputs, generator)


def _list_single(times: IntArray, prompts: Lengths, outputs: Lengths, generator: np.random.Generator) -> list[Request]:
    prompt, output = prompts.draw(generator, len(times)), outputs.draw(generator, len(times))
    rows = zip(times.tolist(), prompt.tolist(), output.tolist(), strict=True)
    return [Request(number, at, (Part(number + 1, tokens),), out) for number, (at, tokens, out) in enumerate(rows)]


@dataclass(frozen=True, slots=True)
class Agents:
    """Sessions whose every prompt repeats what was said before.

    Attributes:
        sessions, turns: how many, and requests of each.
        per_second: sessions that begin.
        think_ns: mean time from a request to the next of its session.
        system_tokens: of the prompt that all share.
        new: what a turn adds.
        await_answers: a client thinks from the end of an answer, not from its question.
    """

    sessions: int
    turns: int
    per_second: float
    think_ns: int
    system_tokens: int
    new: Lengths
    outputs: Lengths
    await_answers: bool = False

    def list_requests(self, seed: int) -> list[Request]:
        """List the requests of all sessions by time."""
        generator = np.random.default_rng(seed)
        count = self.sessions * self.turns
        starts = np.cumsum(np.rint(generator.exponential(SECOND_NS / self.per_second, self.sessions)).astype(np.int64))
        pauses = np.rint(generator.exponential(self.think_ns, (self.sessions, self.turns))).astype(np.int64)
        times = starts[:, None] + np.cumsum(pauses, axis=1)
        new = self.new.draw(generator, count).reshape(times.shape)
        outputs = self.outputs.draw(generator, count).reshape(times.shape)
        if self.await_answers:
            times = np.repeat(times[:, :1], self.turns, axis=1)
        told: list[Request] = []
        for session in range(self.sessions):
            told += self._talk(session, times[session].tolist(), new[session].tolist(), outputs[session].tolist())
        told.sort(key=lambda request: (request.arrival_ns, request.session))
        numbered = [replace(request, number=number) for number, request in enumerate(told)]
        return _chain(numbered, pauses) if self.await_answers else numbered

    def _talk(self, session: int, times: list[int], new: list[int], outputs: list[int]) -> list[Request]:
        """List one session; the last token of an answer, whose KV nobody computed, opens the next turn's part."""
        parts: tuple[Part, ...] = (Part(1, self.system_tokens),)
        requests = []
        left = 0
        for turn, (at, tokens, output) in enumerate(zip(times, new, outputs, strict=True)):
            key = 2 + 2 * (session * self.turns + turn)
            parts = (*parts, Part(key, tokens + left))
            request = Request(0, at, parts, output, session=session + 1, output_key=key + 1)
            requests.append(request)
            parts, left = (*parts, Part(key + 1, output - 1)), 1
        return requests


def _chain(requests: list[Request], pauses: IntArray) -> list[Request]:
    """Let each request of a session follow the one before, after its pause of `(sessions, turns)`."""
    before: dict[int, Request] = {}
    turns: dict[int, int] = {}
    chained = []
    for request in requests:
        turn = turns[request.session] = turns.get(request.session, -1) + 1
        if turn:
            think_ns = int(pauses[request.session - 1, turn])
            chained.append(replace(request, follows=before[request.session].number, think_ns=think_ns))
        else:
            chained.append(request)
        before[request.session] = request
    return chained


@dataclass(frozen=True, slots=True)
class Recorded:
    """A row of a recorded log.

    Attributes:
        prefix: ids of the prompt's leading blocks, equal where tokens are equal.
        block_tokens: of each block.
    """

    at_ns: int
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    block_tokens: int = 512


def repeat_log(rows: Sequence[Recorded]) -> list[Request]:
    """Make requests of a recorded log; without prefix ids no prompt shares anything."""
    ordered = sorted(rows, key=lambda row: row.at_ns)
    begin_ns = ordered[0].at_ns if ordered else 0
    return [
        Request(number, row.at_ns - begin_ns, _split(row, number), max(row.output_tokens, 1))
        for number, row in enumerate(ordered)
    ]


def _split(row: Recorded, number: int) -> tuple[Part, ...]:
    """Cut a prompt into its known blocks and a rest of its own; the last block may be short."""
    parts, left = [], row.prompt_tokens
    for block in row.prefix:
        tokens = min(row.block_tokens, left)
        if tokens:
            # Of two prompts that end within one block, only equal lengths are known to hold equal tokens.
            parts.append(Part(hash((block, tokens)), tokens))
        left -= tokens
    if left or not parts:
        parts.append(Part(-number - 1, max(left, 1)))
    return tuple(parts)
