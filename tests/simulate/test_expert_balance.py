"""The numbers that engines log about experts, and what they say."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.simulate.expert_balance import (
    average_windows,
    balance_sglang,
    balance_vllm,
    balance_vllm_by_layers,
    measure_excess,
    needs_rearrangement,
    sum_by_expert,
)
from dprankdiag.simulate.experts import Placement

# One of eight GPUs has twice the tokens in five of six layers.
SKEWED = np.array([[400.0] * 5 + [800.0] + [400.0] * 2] * 5 + [[450.0] * 8])


def test_one_gpu_at_twice_the_tokens_in_five_of_six_layers_is_0_635_for_sglang() -> None:
    # (5 × 450 / 800 + 1) / 6
    assert balance_sglang(SKEWED) == pytest.approx((5 * 0.5625 + 1) / 6, abs=1e-7)


def test_vllm_weighs_layers_by_their_tokens() -> None:
    # (5 × 450 + 450) / (5 × 800 + 450)
    assert balance_vllm(SKEWED) == pytest.approx(2_700 / 4_450)
    # A layer ten times as full and even hides the skew of the other; SGLang's mean does not.
    mixed = np.array([[100.0, 300.0], [2_000.0, 2_000.0]])
    assert balance_vllm(mixed) == pytest.approx(2_200 / 2_300)
    assert balance_sglang(mixed) == pytest.approx((200 / 300 + 1) / 2, abs=1e-6)


def test_what_older_releases_logged_calls_one_hot_gpu_even_and_hot_layers_uneven() -> None:
    hot_gpu = np.array([[100.0, 900.0]] * 4)
    hot_layer = np.array([[100.0, 100.0], [900.0, 900.0]])
    assert balance_vllm(hot_gpu) == pytest.approx(500 / 900)
    assert balance_vllm_by_layers(hot_gpu) == 1.0
    assert balance_vllm(hot_layer) == 1.0
    assert balance_vllm_by_layers(hot_layer) == pytest.approx(500 / 900)


def test_without_tokens_there_is_no_balance_to_tell() -> None:
    empty = np.zeros((2, 4))
    assert balance_vllm(empty) is None
    assert balance_vllm_by_layers(empty) is None
    assert balance_sglang(empty) == 1.0
    assert np.isnan(measure_excess(empty)).all()


def test_the_averages_look_back_as_far_as_they_can() -> None:
    passes = [0.5] * 20 + [1.0] * 10
    assert average_windows(passes) == {10: 1.0, 100: pytest.approx(20 / 30), 1_000: pytest.approx(20 / 30)}
    assert average_windows([]) == {10: None, 100: None, 1_000: None}


@pytest.mark.parametrize(
    "average, threshold, needed",
    [
        (1.0, 1.0, True),
        (0.95, 0.9, False),
        (0.9, 0.9, True),
        (0.5, 0.9, True),
        (None, 0.1, True),
    ],
)
def test_a_rearrangement_is_passed_over_only_above_the_threshold(
    average: float | None, threshold: float, needed: bool
) -> None:
    assert needs_rearrangement(average, threshold) is needed


def test_copies_of_an_expert_count_together() -> None:
    placement = Placement(np.array([[0, 1, 0, 2]]), 3, 2)
    assert sum_by_expert(placement, np.array([[5, 7, 6, 1]])).tolist() == [[11, 7, 1]]
