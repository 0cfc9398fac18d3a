"""What a serving world costs: requests served a minute, on one core."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dprankdiag.simulate.base import StepTime, StepWork
from dprankdiag.simulate.engine import serve
from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.traffic import LogNormal, come_at_random
from dprankdiag.simulate.workers import Worker
from tests.bench.table import Figure
from tests.simulate.worlds import RoundRobin

pytestmark = pytest.mark.bench

REQUESTS, RANKS = 10_000, 8
PER_SECOND = 30.0
"""So many that some forty requests run on each rank; a world with fewer makes more steps for each request."""


class _Costs:
    """Steps of some 20 to 60 ms, by rows, pairs and prompts."""

    def time_step(self, work: StepWork) -> StepTime:
        own = 40_000 * work.decode_rows + 2 * work.kv_tokens + 15_000 * work.prompt_tokens + work.prompt_pairs // 200
        return StepTime(own, 25_000 * work.rows, 8_000_000 if work.graph else 12_000_000)


def test_a_hundred_thousand_requests_a_minute_are_served(figures: list[Figure]) -> None:
    requests = come_at_random(REQUESTS, PER_SECOND, LogNormal(500, 1.0, 20_000), LogNormal(250, 0.6, 2_000), 1)
    worker = Worker((SglangRules(400_000, page_tokens=16),) * RANKS, RoundRobin(RANKS), _Costs())
    began_s = time.process_time()
    outcome = serve(requests, [worker])
    spent_s = time.process_time() - began_s
    assert (outcome.requests["end_ns"] > 0).all()
    running = float(np.mean(outcome.rank_steps["running"]))
    how = (
        f"`serve` of {REQUESTS:,} requests on {RANKS} lockstep ranks, {len(outcome.steps['step']):,} steps with "
        f"{running:.0f} requests a rank running, mean output {outcome.requests['output_tokens'].mean():.0f} tokens"
    )
    figure = Figure(
        "CPU, requests of a serving world", REQUESTS / spent_s * 60, 100_000, how, unit="/min", at_least=True
    )
    figures.append(figure)
    assert figure.holds, figure.row()
