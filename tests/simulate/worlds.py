"""Small serving worlds: plain costs, a router of five lines, and tables in hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dprankdiag.simulate.base import Load, Part, Request, StepTime, StepWork
from dprankdiag.simulate.engine import serve
from dprankdiag.simulate.ranks import RankRules
from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.workers import Worker
from dprankdiag.simulate.world_tables import Outcome

ROOMY = SglangRules(1_000_000)


class RoundRobin:
    def __init__(self, ranks: int) -> None:
        self.ranks, self.turn, self.loads = ranks, 0, (None,) * ranks

    def observe(self, now_ns: int, loads: Sequence[Load | None]) -> None:
        self.loads = tuple(loads)

    def place(self, now_ns: int, request: Request) -> int:
        if request.pinned_rank is not None:
            return request.pinned_rank
        self.turn += 1
        return (self.turn - 1) % self.ranks

    def release(self, now_ns: int, request: Request, rank: int) -> None:
        pass

    def believed(self) -> Sequence[Load | None]:
        return self.loads


class PlainCosts:
    """A microsecond for a row, a nanosecond for a pair, and a millisecond for all."""

    def time_step(self, work: StepWork) -> StepTime:
        own = 1_000 * (work.decode_rows + work.prompt_tokens) + work.decode_pairs + work.prompt_pairs
        return StepTime(own, 1_000 * work.rows, 1_000_000)


def ask(
    number: int, prompt: int, output: int, at_ns: int = 0, rank: int | None = None, parts: tuple[Part, ...] = ()
) -> Request:
    return Request(number, at_ns, parts or (Part(number + 1, prompt),), output, pinned_rank=rank)


def run_one(requests: Sequence[Request], ranks: Sequence[RankRules], **rest: object) -> Outcome:
    worker = Worker(tuple(ranks), RoundRobin(len(ranks)), PlainCosts(), **rest)  # type: ignore[arg-type]
    return serve(requests, [worker])


def by_rank(outcome: Outcome, column: str, ranks: int) -> np.ndarray:
    """Give a column of rank steps as `(steps, ranks)` of a world of one lockstep group."""
    return outcome.rank_steps[column].reshape(-1, ranks)


def same_bytes(one: Outcome, other: Outcome) -> bool:
    tables = ("steps", "rank_steps", "requests", "decisions", "beliefs", "publishes")
    return all(
        left.tobytes() == right.tobytes()
        for name in tables
        for left, right in zip(getattr(one, name).values(), getattr(other, name).values(), strict=True)
    )
