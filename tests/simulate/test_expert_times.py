"""How long experts take for their tokens: fitted to made-up layers whose law is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.simulate.base import FloatArray, IntArray
from dprankdiag.simulate.expert_times import (
    SURELY,
    ExpertWork,
    RecordedExperts,
    fit_expert_times,
    save_time,
    spread_work,
    wait_for_last,
)
from dprankdiag.simulate.experts import Placement, place_experts, place_in_order

LAYERS, EXPERTS, GPUS, PASSES = 6, 32, 4, 40
BY_SHARE_NS, BY_SLOT_NS, REST_NS = 80_000.0, 2_000.0, 20_000.0


def draw_tokens(seed: int = 0, mean: int = 200) -> IntArray:
    random = np.random.default_rng(seed)
    popular = np.exp(0.8 * random.standard_normal((LAYERS, EXPERTS)))
    return random.poisson(mean * popular, (PASSES, LAYERS, EXPERTS)).astype(np.int64)


def record(work: ExpertWork, noise: float = 0.02, slowness: FloatArray | float = 1.0) -> RecordedExperts:
    """Record layers that take by tokens and by slots, with noise in every segment."""
    random = np.random.default_rng(1)
    times = (BY_SHARE_NS * work.share + BY_SLOT_NS * work.touched) * slowness
    segment = (times + REST_NS) * (1 + noise * random.standard_normal(times.shape))
    expert = times.mean(axis=0)
    last = np.broadcast_to(segment.max(axis=2).mean(axis=0)[:, None], expert.shape)
    return RecordedExperts(expert, segment.mean(axis=0) - expert, last)


CURRENT = place_in_order(LAYERS, EXPERTS, EXPERTS, GPUS)
TOKENS = draw_tokens()


def test_a_slope_over_tokens_is_found_and_the_rest_is_taken_for_fixed() -> None:
    work = spread_work(CURRENT, TOKENS)
    fit = fit_expert_times(record(work), work)
    assert fit.terms[1] == pytest.approx(BY_SHARE_NS, rel=0.01)
    assert fit.terms[0] == pytest.approx(BY_SLOT_NS * EXPERTS / GPUS, rel=0.1)
    assert not fit.tells_touched
    assert fit.certainty > SURELY
    assert fit.error_ratio < 0.01


def test_a_slow_rank_is_not_taken_for_one_with_more_tokens() -> None:
    slowness = np.array([1.0, 1.0, 1.2, 1.0])
    work = spread_work(CURRENT, TOKENS)
    fit = fit_expert_times(record(work, slowness=slowness), work)
    np.testing.assert_allclose(fit.slowness, slowness, rtol=0.02)
    assert fit.terms[1] == pytest.approx(BY_SHARE_NS, rel=0.05)


def test_where_experts_often_have_no_token_touched_ones_get_a_price_of_their_own() -> None:
    tokens = draw_tokens(mean=1)
    work = spread_work(CURRENT, tokens)
    fit = fit_expert_times(record(work), work)
    assert fit.tells_touched
    assert fit.terms[2] == pytest.approx(BY_SLOT_NS, rel=0.3)


def test_times_that_do_not_follow_the_tokens_are_not_certain() -> None:
    work = spread_work(CURRENT, TOKENS)
    other = spread_work(CURRENT, draw_tokens(seed=3))
    assert fit_expert_times(record(work), other).certainty < SURELY


@pytest.mark.parametrize("redundant", [0, 8, 16])
def test_the_time_saved_is_what_the_law_saves(redundant: int) -> None:
    work = spread_work(CURRENT, TOKENS)
    recorded = record(work)
    after = spread_work(place_experts(TOKENS.sum(axis=0), EXPERTS + redundant, GPUS), TOKENS)
    true = float((record(work).until_last_ns - record(after).until_last_ns)[:, 0].sum())
    saved, low, high = save_time(fit_expert_times(recorded, work), recorded, work, after)
    assert saved == pytest.approx(true, rel=0.1)
    assert low <= true <= high


def test_the_same_placement_saves_nothing() -> None:
    work = spread_work(CURRENT, TOKENS)
    recorded = record(work)
    saved, low, high = save_time(fit_expert_times(recorded, work), recorded, work, work)
    assert saved == pytest.approx(0.0, abs=1e-6)
    assert low <= 0 <= high


def test_noise_is_fitted_until_layers_wait_for_the_last_as_long_as_recorded() -> None:
    work = spread_work(CURRENT, TOKENS)
    recorded = record(work, noise=0.05)
    fit = fit_expert_times(recorded, work)
    assert fit.noise == pytest.approx(0.05, abs=0.02)
    waited = float(wait_for_last(fit, recorded, work).sum())
    assert waited == pytest.approx(float(recorded.until_last_ns.mean(axis=1).sum()), rel=0.01)
    assert float(wait_for_last(replace(fit, noise=0.0), recorded, work).sum()) < waited


def test_tokens_are_shared_among_copies_and_conserved() -> None:
    placement = Placement(np.array([[0, 1, 0, 2]]), 3, 2)
    tokens = np.array([[[10, 4, 6]]])
    work = spread_work(placement, tokens)
    np.testing.assert_allclose(work.share[0, 0], [0.9, 1.1])
    assert work.share.mean() == pytest.approx(1.0)
    np.testing.assert_allclose(work.touched[0, 0], 2 - np.array([0.5**10, 0.5**10]))
