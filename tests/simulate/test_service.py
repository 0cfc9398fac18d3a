from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.simulate.scheduler import SglangRules
from dprankdiag.simulate.service import measure_service, summarize
from tests.simulate.worlds import ROOMY, ask, run_one


def test_the_times_of_a_lone_request_follow_from_its_steps() -> None:
    outcome = run_one([ask(0, 100, 3, at_ns=7)], [ROOMY])
    service, total = measure_service(outcome), outcome.steps["total_ns"]
    assert service["first_token_ns"].tolist() == [total[0]]
    assert service["token_ns"].tolist() == [(total[1] + total[2]) / 2]
    assert service["whole_ns"].tolist() == [total.sum()]
    told = summarize(outcome)
    assert told is not None
    assert told.generation_tok_s == pytest.approx(3 / (total.sum() / 1e9))
    assert told.waiting_ratio == 0.0


def test_a_lone_token_has_no_time_to_the_next() -> None:
    service = measure_service(run_one([ask(0, 100, 1)], [ROOMY]))
    assert np.isnan(service["token_ns"]).tolist() == [True]


def test_refused_requests_are_left_out_and_nothing_served_is_no_summary() -> None:
    assert summarize(run_one([ask(0, 5_000, 3)], [SglangRules(1_000)])) is None


def test_a_rank_that_waits_half_the_time_shows_in_the_ratio() -> None:
    told = summarize(run_one([ask(0, 100_000, 2, rank=0)], [SglangRules(200_000)] * 2))
    assert told is not None
    assert 0.4 < told.waiting_ratio < 0.5
