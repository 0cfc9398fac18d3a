"""Rooms are drawn by a gateway at random: which rank gets a prefill is a throw of dice."""

from __future__ import annotations

from math import exp, lgamma, log, sqrt
from random import Random

import numpy as np

from dprankdiag.simulate.routers.sglang import SglangController
from tests.simulate.routers.builders import ask


def chance_of_busiest(n_requests: int, n_ranks: int, at_least: int) -> float:
    """Give the chance that the busiest rank gets this many requests, each thrown to a rank at random.

    Independent Poisson counts given their sum are multinomial, so the chance that all stay below is the n-fold
    convolution of the Poisson weights below, at the sum, over the same without the limit.
    """
    mean = n_requests / n_ranks
    weights = np.array([exp(k * log(mean) - mean - lgamma(k + 1)) for k in range(n_requests + 1)])

    def chance_of_sum(of_one: np.ndarray) -> float:
        total = np.array([1.0])
        for _ in range(n_ranks):
            total = np.convolve(total, of_one)[: n_requests + 1]
        return float(total[n_requests])

    return 1.0 - chance_of_sum(weights[:at_least].copy()) / chance_of_sum(weights)


def throw(seed: int, n_requests: int, n_ranks: int) -> int:
    random = Random(seed)
    router = SglangController(n_ranks, role="prefill", keep=False)
    counts = [0] * n_ranks
    for number in range(n_requests):
        counts[router.place(0, ask(number, room=random.getrandbits(63)))] += 1
    return max(counts)


def test_prefills_by_room_spread_as_dice_do() -> None:
    # 64 requests to 8 ranks: 8 each on average. The busiest has 14 or more (1.75 times the mean) about every fifth
    # time, though nothing is wrong with any rank.
    chance = chance_of_busiest(64, 8, 14)
    throws = 1_500
    seen = sum(throw(seed, 64, 8) >= 14 for seed in range(throws)) / throws
    assert 0.15 < chance < 0.25
    assert abs(seen - chance) < 4 * sqrt(chance * (1 - chance) / throws)


def test_the_chance_of_the_busiest_of_two_ranks_is_that_of_a_coin() -> None:
    # Of four throws of a coin, three or more fall alike in 10 of 16.
    assert abs(chance_of_busiest(4, 2, 3) - 10 / 16) < 1e-12
