"""Write the log of requests that a served scenario leaves behind, as a gateway or a client would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dprankdiag.harness.scenario import Deployment, Scenario
from dprankdiag.simulate.base import Costs, Request, StepTime, StepWork
from dprankdiag.simulate.disaggregation import DecodeRules, PrefillRules
from dprankdiag.simulate.routers.sglang import SINCE_0_5_13, SglangController
from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.vllm_scheduler import VllmRules
from dprankdiag.simulate.workers import Worker
from dprankdiag.simulate.world_tables import Outcome

BLOCK_TOKENS = 256
EPOCH_S = 1_790_000_000
"""When the logged worlds began."""

_US_NS = 1_000


class UnsteadyCosts:
    """Let every step take a little longer or shorter than the laws of another; a `Costs`.

    Args:
        spread: standard deviation of the logarithm of a step's time.
    """

    def __init__(self, costs: Costs, spread: float, seed: int) -> None:
        self._costs, self._spread = costs, spread
        self._generator = np.random.default_rng(seed)

    def time_step(self, work: StepWork) -> StepTime:
        """Give the time of each part, for `(ranks,)` arrays of work."""
        taken = self._costs.time_step(work)
        factor = float(np.exp(self._spread * self._generator.standard_normal()))
        own, shared = (np.rint(part * factor).astype(np.int64) for part in (taken.own_ns, taken.shared_ns))
        return StepTime(own, shared, round(taken.common_ns * factor))


def deploy_unsteady(scenario: Scenario, spread: float, seed: int = 0) -> Deployment:
    """Deploy a scenario as it is, with steps that scatter."""
    deployment = scenario.deploy(False)

    def make(worker: Worker, number: int) -> Worker:
        return replace(worker, costs=UnsteadyCosts(worker.costs, spread, seed + number)) if spread else worker

    workers = [make(worker, number) for number, worker in enumerate(deployment.workers)]
    decoders = [make(worker, len(workers) + number) for number, worker in enumerate(deployment.decoders)]
    return replace(deployment, workers=workers, decoders=decoders)


def write_request_log(deployment: Deployment, outcome: Outcome) -> str:
    """Write a line of JSON for the deployment, and one for each request in order of arrival.

    Raises:
        ValueError: the deployment has no engine.
    """
    lines = [_describe(deployment), *_list_requests(deployment, outcome)]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def _describe(deployment: Deployment) -> dict[str, Any]:
    front = deployment.workers[0]
    rules = front.ranks[0]
    base = rules.base if isinstance(rules, PrefillRules | DecodeRules) else rules
    told: dict[str, Any] = {
        "engine": "vllm" if isinstance(base, VllmRules) else "sglang",
        "workers": len(deployment.workers),
        "ranks": len(front.ranks),
        "block_tokens": BLOCK_TOKENS,
    }
    if isinstance(front.router, SglangController) and front.router.budget == SINCE_0_5_13:
        # A rule that no release has goes by no name.
        told["policy"] = front.router.policy
    if isinstance(base, SglangRules | VllmRules):
        told["capacity_tokens"] = base.capacity_tokens
    return told


def _list_requests(deployment: Deployment, outcome: Outcome) -> Iterator[dict[str, Any]]:
    asked = {request.number: request for request in deployment.requests}
    clients = _name_sessions(deployment.requests)
    served = outcome.requests
    for row in np.argsort(served["arrival_ns"], kind="stable"):
        number = int(served["request"][row])
        told: dict[str, Any] = {
            "arrival_s": _write_s(int(served["arrival_ns"][row]), EPOCH_S),
            "input_tokens": int(served["prompt_tokens"][row]),
            "cached_tokens": max(int(served["cached_tokens"][row]), 0),
            "output_tokens": int(served["output_tokens"][row]),
            "worker": int(served["worker"][row]),
            "rank": int(served["rank"][row]),
            "pinned": asked[number].pinned_rank is not None,
            "prefix": list(_list_blocks(asked[number])),
        }
        if served["prefill_worker"][row] != served["worker"][row]:
            told["prefill_worker"] = int(served["prefill_worker"][row])
            told["prefill_rank"] = int(served["prefill_rank"][row])
            told["room"] = asked[number].bootstrap_room
        if number in clients:
            told["session"] = clients[number]
        if not served["refused"][row]:
            arrival_ns = int(served["arrival_ns"][row])
            told["ttft_s"] = _write_s(int(served["first_ns"][row]) - arrival_ns)
            told["e2e_s"] = _write_s(int(served["end_ns"][row]) - arrival_ns)
        yield told


def _write_s(time_ns: int, epoch_s: int = 0) -> float:
    """Write seconds as a clock with microseconds would."""
    return (time_ns // _US_NS + epoch_s * 1_000_000) / 1e6


def _list_blocks(request: Request) -> Iterator[int]:
    """Number the full blocks of a prompt by all tokens until their end; a prompt's own part shares none."""
    named, inside = 1, 0
    for part in request.parts:
        left = part.tokens
        named = (named * 1_000_003 + part.key) % (2**52 - 47)
        while inside + left >= BLOCK_TOKENS:
            left -= BLOCK_TOKENS - inside
            inside = 0
            named = (named * 1_000_003 + 1) % (2**52 - 47)
            yield named
        inside += left


def _name_sessions(requests: Any) -> dict[int, str]:
    """Name the client of each request that follows another, or is followed."""
    names: dict[int, str] = {}
    for request in requests:
        if request.follows is not None:
            names.setdefault(request.follows, f"client-{request.follows}")
            names[request.number] = names[request.follows]
    return names
