"""A scenario: a deployment whose ranks become uneven for a reason that is known, and the same with its cure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dprankdiag.harness.faults import Fault
from dprankdiag.harness.served_costs import ServedCosts
from dprankdiag.harness.world import Chip, Model
from dprankdiag.simulate.base import IntArray, Request, Router
from dprankdiag.simulate.engine import serve
from dprankdiag.simulate.workers import Worker
from dprankdiag.simulate.world_tables import Outcome

EngineName = Literal["sglang", "vllm"]
View = Literal["loads", "metrics", "trace", "ledger"]
Figures = Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is served by whom; routers carry what they have seen, so that each run needs a deployment of its own.

    Attributes:
        requests: by time of arrival.
        workers, gateway, decoders, decode_gateway: as `simulate.engine.serve` takes them.
        costs: of the workers whose trace is taken.
    """

    requests: Sequence[Request]
    workers: Sequence[Worker]
    costs: ServedCosts
    gateway: Router | None = None
    decoders: Sequence[Worker] = ()
    decode_gateway: Router | None = None

    def serve(self) -> Outcome:
        """Serve all requests."""
        return serve(self.requests, self.workers, self.gateway, self.decoders, self.decode_gateway)


@dataclass(frozen=True, slots=True)
class Label:
    """What a perfect diagnosis says of one kind of input.

    Attributes:
        cause: by its key; none where nothing is wrong that the input can carry.
        ranks: the culprits; empty where nobody is to blame.
        who: one, group, rotating or all; none without a cause.
    """

    cause: str | None
    ranks: tuple[int, ...] = ()
    who: str | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """Steps of one worker that a trace holds: the first that fit.

    Attributes:
        start_ns: the first step begins then or later.
        steps: how many.
        worker: its number.
        decodes: no rank computes a prompt in any of them.
    """

    start_ns: int = 0
    steps: int = 60
    worker: int = 0
    decodes: bool = True

    def find(self, outcome: Outcome) -> IntArray:
        """Find the numbers of these steps, `(steps,)`.

        Raises:
            ValueError: the worker ran no such steps.
        """
        steps, ranks = outcome.steps, outcome.rank_steps
        numbers = steps["step"][(steps["worker"] == self.worker) & (steps["start_ns"] >= self.start_ns)]
        unfit = np.unique(ranks["step"][ranks["prompt_tokens"] > 0]) if self.decodes else numbers[:0]
        fits = ~np.isin(numbers, unfit)
        runs = np.convolve(fits, np.ones(self.steps, np.int64), "valid") if len(fits) >= self.steps else numbers[:0]
        found = np.flatnonzero(runs == self.steps)
        if not len(found):
            raise ValueError(f"worker {self.worker} runs no {self.steps} such steps after {self.start_ns} ns")
        chosen: IntArray = numbers[found[0] : found[0] + self.steps]
        return chosen


@dataclass(frozen=True, slots=True)
class Scenario:
    """A reason, what it does, and what cures it.

    Attributes:
        name, title: for the command line, for people.
        engine: whose rules its ranks follow.
        why: from the routing decision to the waiting.
        shows: what each view shows of it.
        cure: what helps, in words.
        deploy: the deployment as it is, or with the cure.
        window: what a trace of it holds.
        trace: what is to be found in that trace.
        metrics: what is to be found by metrics; none where they cannot carry it.
        metrics_lack: why they cannot.
        watch_from_s: whoever watches from that second on, for ten seconds, sees it in the metrics.
        figures: numbers worked out from the run as it is and the cured one.
        model, chip: whose kernels a trace shows.
        faults: of the trace, beside the batches; the world of a kernel has experts, that of a request has none.
    """

    name: str
    title: str
    engine: EngineName
    why: str
    shows: Mapping[View, str]
    cure: str
    deploy: Callable[[bool], Deployment]
    window: Window
    trace: Label
    metrics: Label | None
    figures: Callable[[Outcome, Outcome], Figures]
    metrics_lack: str = ""
    watch_from_s: float = 0.0
    model: Model = "deepseek-v3"
    chip: Chip = "h200"
    faults: tuple[Fault, ...] = ()

    def serve(self, *, cured: bool = False) -> Outcome:
        """Serve the requests, with the cure or without."""
        return self.deploy(cured).serve()
