"""Scenarios of whole engines behind a gateway that knows less of them than they know of themselves."""

from __future__ import annotations

import numpy as np

from dprankdiag.harness.scenario import Deployment, Figures, Label, Scenario, Window
from dprankdiag.harness.scenario_parts import MS_NS, ask, compare_steps, make_worker, mean_first_ns
from dprankdiag.harness.served_costs import ServedCosts
from dprankdiag.simulate.routers.gateway import POLL_NS, Gateway
from dprankdiag.simulate.routers.sglang import SglangController
from dprankdiag.simulate.traffic import SECOND_NS
from dprankdiag.simulate.world_tables import Outcome

_WORKERS, _RANKS = 4, 4
_GROUPS, _GROUP_REQUESTS, _GROUP_NS = 12, 48, 2 * SECOND_NS


def _deploy_polled(cured: bool) -> Deployment:
    """Let groups of requests come every 2 s to a gateway that polls every 10 s, or counts what it has sent."""
    costs = ServedCosts()
    requests = [
        ask(group * _GROUP_REQUESTS + place, group * _GROUP_NS + place * MS_NS, 3_000, 400)
        for group in range(_GROUPS)
        for place in range(_GROUP_REQUESTS)
    ]
    workers = [make_worker(SglangController(_RANKS, "total_requests"), costs, _RANKS) for _ in range(_WORKERS)]
    gateway = Gateway(_WORKERS, "power_of_two", poll_ns=None if cured else POLL_NS, seed=3)
    return Deployment(requests, workers, costs, gateway)


_BUSIEST = 3
"""The worker that was emptiest at the second poll."""
_POLLED_WINDOW = Window(16 * SECOND_NS + 500 * MS_NS, worker=_BUSIEST)


def _figure_polled(outcome: Outcome, cured: Outcome) -> Figures:
    """Count where requests went between two polls.

    Of two random workers of four the emptiest by the last poll wins whenever it is drawn: in half of all draws. The
    second gets a third, the third a sixth, the fullest none, for ten seconds whatever has come in since.
    """
    return {
        "share_of_busiest": _share_busiest(outcome),
        "share_of_busiest_cured": _share_busiest(cured),
        "first_token_ns": mean_first_ns(outcome),
        "first_token_cured_ns": mean_first_ns(cured),
        **compare_steps(outcome, cured, _POLLED_WINDOW),
    }


def _share_busiest(outcome: Outcome) -> float:
    """Give the part of the requests between the second poll and the third that one worker got."""
    requests = outcome.requests
    here = (requests["arrival_ns"] >= POLL_NS) & (requests["arrival_ns"] < 2 * POLL_NS)
    counts = np.bincount(requests["worker"][here], minlength=_WORKERS)
    return float(counts.max() / counts.sum())


POLLED = Scenario(
    name="polled",
    title="A gateway that looks at its engines every ten seconds",
    engine="sglang",
    why=(
        "A gateway takes the emptier of two random engines by the tokens it polled from them, up to ten seconds ago, "
        "and does not count what it has sent since. The engine that was emptiest at the poll gets half of all requests "
        "until the next one, and the fullest none. Inside each engine the controller deals them evenly: no rank waits "
        "for another, and yet requests of one engine take longer."
    ),
    shows={
        "loads": "even inside an engine; between engines uneven, another one every ten seconds",
        "metrics": "even ranks in each engine; requests running differ between engines",
        "trace": "nothing: the ranks of an engine are even",
        "ledger": "the gateway's up to ten seconds old and wrong by what was sent since; the controllers' right",
    },
    cure="Let the gateway count the requests it has sent and not got back.",
    deploy=_deploy_polled,
    window=_POLLED_WINDOW,
    trace=Label(None),
    metrics=None,
    metrics_lack="the ranks of each engine are even, and engines that do not step together delay nobody",
    figures=_figure_polled,
)
