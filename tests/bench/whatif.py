"""Hold what a what-if predicts against the same requests really served by that policy in the harness's own physics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dprankdiag.harness.mock_scenario import serve_scenario
from dprankdiag.harness.scenario import Scenario
from dprankdiag.harness.scenario_requests import deploy_unsteady, write_request_log
from dprankdiag.model.whatif import WhatIf
from dprankdiag.pipelines.poll import Poller
from dprankdiag.pipelines.whatif_inputs import Said, ask_what_if
from dprankdiag.simulate.policies import PolicyOption
from dprankdiag.simulate.replay import Choosers
from dprankdiag.simulate.world_tables import Outcome
from dprankdiag.store.recorder import Recorder
from dprankdiag.units import NS_PER_S
from tests.harness.served_worlds import Clock

SCATTER = 0.02
"""How much the steps of the logged run scatter."""

POLICY_SCENARIOS = (
    *("long_context", "pattern", "busy_rank", "burst", "cached", "starved", "rooms", "tail", "polled"),
    "even",
)
"""Scenarios in which another policy helps, and one in which none does."""

COUNTED_SCENARIOS = ("long_context", "pattern", "busy_rank", "burst", "starved", "tail", "even")
"""Those of one engine, whose counters tell of its requests."""

RECORDED_SCENARIOS = (*COUNTED_SCENARIOS, "cached", "polled")
"""Those that are asked of by counters alone: where these do not tell, nothing is to be said."""

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

    @property
    def holds(self) -> bool:
        """The interval of the first choice's gain, or of every option's where none is chosen, holds what came."""
        asked = [one for one in self.result.options if self.first in (None, one.key) and not one.is_current]
        return all(
            low <= self.gains[one.key] <= high
            for one in asked
            for low, high in [one.gain_ratio.interval or (-np.inf, np.inf)]
        )


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


def really_gain(scenario: Scenario, policy: PolicyOption, base_ns: float, lifts_pins: bool) -> float:
    """Give the share of the requests' time that a policy really saves."""
    those = [replace(choosers, lifts_pins=choosers.lifts_pins or lifts_pins) for choosers in policy.choosers]
    spent = [time_requests(really_serve(scenario, choosers)) for choosers in those]
    return 1 - float(np.mean(spent)) / base_ns


def log_scenario(scenario: Scenario, folder: Path, *, scatter: float = SCATTER, seed: int = 1) -> Path:
    """Write the log of requests of a scenario as it is."""
    deployment = deploy_unsteady(scenario, scatter, seed)
    path = folder / f"{scenario.name}.jsonl"
    path.write_text(write_request_log(deployment, deployment.serve()))
    return path


def record_scenario(scenario: Scenario, folder: Path, *, scatter: float = SCATTER, seed: int = 1) -> Path:
    """Record what the engines of a scenario as it is tell, once a second until all is over."""
    clock = Clock()
    path = folder / f"{scenario.name}.dprec"
    path.unlink(missing_ok=True)
    unsteady = replace(scenario, deploy=lambda cured: deploy_unsteady(scenario, scatter, seed))
    with serve_scenario(unsteady, clock=clock) as mocks:
        seconds = max(mock.ledger.last_ns for mock in mocks) // NS_PER_S + 2
        moment = lambda: round(clock() * NS_PER_S)  # noqa: E731
        urls = [mock.url for mock in mocks]
        with closing(Poller(urls, clock=moment, patience_s=30.0)) as poller, Recorder(path) as recorder:
            for _ in range(seconds):
                recorder.write(poller.poll(), moment())
                clock.now_s += 1.0
    return path


def hold(scenario: Scenario, paths: Sequence[Path]) -> Held:
    """Ask what if of the inputs, and serve every option really.

    Counters do not tell who demanded a rank, so that all policies are taken to choose for every request.
    """
    policies: dict[str, PolicyOption] = {}

    def note(policy: PolicyOption) -> None:
        policies[policy.key] = policy

    result = ask_what_if([str(path) for path in paths], Said(), note=note)
    lifts = not any(path.suffix == ".jsonl" for path in paths)
    base_ns = time_requests(scenario.serve())
    gains = {key: really_gain(scenario, policy, base_ns, lifts) for key, policy in policies.items()}
    return Held(scenario.name, result, gains)


PAGE = Path(__file__).resolve().parents[2] / "docs" / "whatif.md"
_MARK = "## How right it is"
_HEAD = f"""{_MARK}

This part is written by `./dev bench tests/bench/test_whatif.py`; do not edit it. Each scenario of the harness is
served as it is, with steps that scatter by {SCATTER:.0%}. Its log of requests, or a recording of it (a look a second),
is all that a what-if sees. Then the same requests are really served under every option, in the harness's own physics.
A first choice is right if no option would really have saved {100 * RIGHT_WITHIN:.0f} point more; where nothing would
save as much, none is to be chosen. The error is that of the first choice's gain, or the largest of any option where
none is chosen.
"""


def tabulate(held: Mapping[str, Sequence[Held]]) -> str:
    """Write the part of the page that tells how right what-ifs are, by input."""
    lines = [_HEAD, "| input | scenario | answer | first choice | predicted | interval | really | right |"]
    lines.append("|---|---|---|---|---:|---|---:|---|")
    for kind, runs in held.items():
        lines += [f"| {kind} | `{one.name}` | {_write_answer(one)} |" for one in runs]
    lines += ["", *(_sum_up(kind, runs) for kind, runs in held.items())]
    return "\n".join(lines) + "\n"


def _write_answer(one: Held) -> str:
    if one.first is None:
        right = "no answer" if one.result.verdict == "cannot_tell" else "yes" if one.is_right else "no"
        best = f"{one.best_gain:.1%}" if one.gains else "–"
        return f"{one.result.verdict.replace('_', ' ')} | – | – | – | {best} | {right}"
    option = next(option for option in one.result.options if option.key == one.first)
    low, high = option.gain_ratio.interval or (0.0, 0.0)
    gain = option.gain_ratio.value or 0.0
    told = f"{one.result.verdict} | `{one.first}` | {gain:.1%} | {low:.1%} to {high:.1%}"
    return f"{told} | {one.gains[one.first]:.1%} | {'yes' if one.is_right else 'no'}"


def _sum_up(kind: str, runs: Sequence[Held]) -> str:
    told = [one for one in runs if one.result.verdict != "cannot_tell"]
    right = sum(one.is_right for one in told)
    line = f"- {kind}: {len(told)} of {len(runs)} scenarios are answered, {right} with a right first choice"
    if told:
        median = 100 * float(np.median([one.first_error for one in told]))
        line += f"; the median error of the gain is {median:.1f} points, and {sum(one.holds for one in told)} intervals"
        line += " hold what came"
    names = {one.name for one in runs}
    left = [f"`{name}`" for name in POLICY_SCENARIOS if name not in names]
    return f"{line}." + (f" Not measured: {', '.join(left)}." if left else "")


def write_page(text: str, page: Path = PAGE) -> None:
    """Put the measured part in its place at the end of the page."""
    before = page.read_text("utf-8").partition(_MARK)[0]
    page.write_text(before + text, "utf-8")
