"""Small served worlds, and a clock that a test sets: one rank that holds long requests, or all alike; both engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dprankdiag.harness.served_engine import ServedEngine, describe_worker
from dprankdiag.simulate.base import Load, Part, Request, StepTime, StepWork
from dprankdiag.simulate.engine import serve
from dprankdiag.simulate.ranks import Acceptance
from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.traffic import LogNormal, come_at_random
from dprankdiag.simulate.vllm_scheduler import VllmRules
from dprankdiag.simulate.waves import WaveRules
from dprankdiag.simulate.workers import VLLM_PUBLISHING, Worker
from dprankdiag.simulate.world_tables import Outcome
from tests.simulate.worlds import RoundRobin

RANKS = 8
LONG_RANK = 5


@dataclass(frozen=True)
class Costs:
    """Steps of some twenty milliseconds; `slow` is how much longer rank 6 takes for everything of its own."""

    slow: float = 1.0

    def time_step(self, work: StepWork) -> StepTime:
        own = (
            8_000_000
            + 80_000 * work.decode_rows
            + 50 * work.decode_pairs
            + 25_000 * work.prompt_tokens
            + work.prompt_pairs // 2
        )
        factors = np.ones(len(own))
        factors[6 % len(own)] = self.slow
        return StepTime((own * factors).astype(np.int64), 1_000 * work.rows, 10_000_000)


class Turns(RoundRobin):
    """Places requests in turn and tells nobody's load."""

    def believed(self) -> Sequence[Load | None]:
        return (None,) * self.ranks


def draw_requests(seconds: float, rate_s: float = 24.0, seed: int = 1) -> list[Request]:
    return come_at_random(round(seconds * rate_s), rate_s, LogNormal(900, 0.4, 8_000), LogNormal(180, 0.4, 1_000), seed)


def hold_long(requests: Sequence[Request], every: int = RANKS) -> list[Request]:
    """Pin each eighth request to one rank, with a prompt ten times as long, and the others to the other ranks."""
    told = []
    others = [rank for rank in range(RANKS) if rank != LONG_RANK]
    for request in requests:
        is_long = request.number % every == 0
        tokens = request.prompt_tokens * (10 if is_long else 1)
        rank = LONG_RANK if is_long else others[request.number % len(others)]
        told.append(replace(request, parts=(Part(request.number + 1, tokens),), pinned_rank=rank))
    return told


def sglang_worker(**rest: object) -> Worker:
    rules = SglangRules(420_000, max_running=128)
    return Worker((rules,) * RANKS, Turns(RANKS), Costs(), **rest)  # type: ignore[arg-type]


def vllm_worker(slow: float = 1.0, **rest: object) -> Worker:
    rules = VllmRules(260_000, max_running=256)
    return Worker((rules,) * RANKS, Turns(RANKS), Costs(slow), publishing=VLLM_PUBLISHING, waves=WaveRules(), **rest)  # type: ignore[arg-type]


@lru_cache
def serve_sglang(long: bool, seconds: float = 40.0) -> tuple[Outcome, ServedEngine]:
    """Serve on SGLang: requests alike on all ranks, or long ones on one."""
    requests = draw_requests(seconds)
    worker = sglang_worker()
    return serve(hold_long(requests) if long else requests, [worker]), describe_worker(worker)


@lru_cache
def serve_vllm(slow: float = 1.0, seconds: float = 40.0) -> tuple[Outcome, ServedEngine]:
    """Serve on vLLM, with one GPU as much slower as given."""
    worker = vllm_worker(slow)
    return serve(draw_requests(seconds), [worker]), describe_worker(worker)


@lru_cache
def serve_tight() -> tuple[Outcome, ServedEngine]:
    """Serve on SGLang with pools that are too small, so that requests are retracted; prompts share a beginning."""
    requests = [replace(request, parts=(Part(-1, 200), *request.parts)) for request in draw_requests(20.0, rate_s=40.0)]
    rules = SglangRules(20_000, new_token_ratio=0.1, least_ratio=0.1, max_running=128)
    worker = Worker((rules,) * RANKS, Turns(RANKS), Costs())
    return serve(requests, [worker]), describe_worker(worker)


@lru_cache
def serve_speculating() -> tuple[Outcome, ServedEngine]:
    """Serve on SGLang with four drafts verified a step."""
    rules = SglangRules(420_000, max_running=128, acceptance=Acceptance(4, 2.5))
    worker = Worker((rules,) * RANKS, Turns(RANKS), Costs())
    return serve(draw_requests(20.0), [worker]), describe_worker(worker)


@lru_cache
def serve_tight_vllm() -> tuple[Outcome, ServedEngine]:
    """Serve on vLLM with pools that are too small, so that requests are preempted, and with prompts cut in chunks."""
    rules = VllmRules(16_000, max_running=64, budget_tokens=512)
    worker = replace(vllm_worker(), ranks=(rules,) * RANKS)
    return serve(draw_requests(10.0, rate_s=60.0), [worker]), describe_worker(worker)


@lru_cache
def serve_dense(slow: float = 1.0, seconds: float = 10.0) -> tuple[Outcome, ServedEngine]:
    """Serve a dense model on vLLM: each engine steps alone."""
    worker = replace(vllm_worker(slow), lockstep=False, waves=None)
    return serve(draw_requests(seconds), [worker]), describe_worker(worker)


@dataclass
class Clock:
    """UTC seconds that a test sets."""

    now_s: float = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now_s
