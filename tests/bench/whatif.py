"""Hold what a what-if predicts against the same requests really served by that policy in the harness's own physics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dprankdiag.harness.scenario import Scenario
from dprankdiag.harness.scenario_requests import deploy_unsteady, write_request_log
from dprankdiag.model.whatif import WhatIf
from dprankdiag.pipelines.whatif import price_policies
from dprankdiag.pipelines.whatif_log import make_log_case
from dprankdiag.readers.request_log import read_request_log
from dprankdiag.simulate.policies import PolicyOption
from dprankdiag.simulate.replay import Choosers
from dprankdiag.simulate.world_tables import Outcome

SCATTER = 0.02
"""How much the steps of the logged run scatter."""

POLICY_SCENARIOS = ("long_context", "pattern", "busy_rank", "burst", "cached", "starved", "rooms", "tail", "polled")
"""Scenarios in which another policy helps."""

RIGHT_WITHIN = 0.01
"""A first choice is right if no other option would really have saved so much more."""


@dataclass(frozen=True, slots=True)
class Held:
    """A prediction and what came of it.

    Attributes:
        gains: really saved share of the requests' time by option, of the options that have a predicted gain.
    """

    name: str
    result: WhatIf
    gains: Mapping[str, float]

    @property
    def best_gain(self) -> float:
        return max([0.0, *self.gains.values()])

    @property
    def first(self) -> str | None:
        return self.result.best[0] if self.result.best else None

    @property
    def is_right(self) -> bool:
        """The first choice saves as much as the best, or nothing is chosen where nothing can be saved."""
        chosen = 0.0 if self.first is None else self.gains[self.first]
        return self.result.verdict != "cannot_tell" and chosen >= self.best_gain - RIGHT_WITHIN

    @property
    def errors(self) -> list[float]:
        return [
            abs((option.gain_ratio.value or 0.0) - self.gains[option.key])
            for option in self.result.options
            if option.gain_ratio.value is not None
        ]

    @property
    def first_error(self) -> float:
        options = {option.key: option for option in self.result.options}
        if self.first is None:
            return max(self.errors, default=0.0)
        return abs((options[self.first].gain_ratio.value or 0.0) - self.gains[self.first])


def time_requests(outcome: Outcome) -> float:
    """Sum the time of all requests that were served, from arrival to last token."""
    served = outcome.requests
    kept = served["refused"] == 0
    return float((served["end_ns"] - served["arrival_ns"])[kept].sum())


def really_serve(scenario: Scenario, choosers: Choosers) -> Outcome:
    """Serve the requests of a scenario as it is, in the harness's own physics, with other choosers."""
    deployment = scenario.deploy(False)
    requests: Sequence = deployment.requests
    if choosers.lifts_pins:
        requests = [replace(request, pinned_rank=None) for request in requests]
    rank, gateway = choosers.rank, choosers.gateway
    workers = [
        worker if rank is None else replace(worker, router=rank(len(worker.ranks))) for worker in deployment.workers
    ]
    front = deployment.gateway if gateway is None else gateway(len(workers))
    return replace(deployment, requests=requests, workers=workers, gateway=front).serve()


def really_gain(scenario: Scenario, policy: PolicyOption, base_ns: float) -> float:
    """Give the share of the requests' time that a policy really saves."""
    spent = [time_requests(really_serve(scenario, choosers)) for choosers in policy.choosers]
    return 1 - float(np.mean(spent)) / base_ns


def hold_log(scenario: Scenario, folder: Path, *, scatter: float = SCATTER, seed: int = 1) -> Held:
    """Log the scenario as it is, ask what if, and serve every option really."""
    deployment = deploy_unsteady(scenario, scatter, seed)
    path = folder / f"{scenario.name}-{seed}.jsonl"
    path.write_text(write_request_log(deployment, deployment.serve()))
    case = make_log_case(read_request_log(path))
    policies: list[PolicyOption] = []
    result = price_policies(case, note=policies.append)
    base_ns = time_requests(scenario.serve())
    gains = {policy.key: really_gain(scenario, policy, base_ns) for policy in policies}
    return Held(scenario.name, result, gains)
