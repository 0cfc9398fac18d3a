"""Sampled worlds are spread over all that may vary, and as slow as they were meant to be."""

from __future__ import annotations

from collections import Counter

import pytest

from dprankdiag.harness.faults import slow_gpu
from dprankdiag.harness.sampling import KINDS, fit_slowdown, sample_faulty, sample_healthy
from dprankdiag.harness.worlds import World, truth


def test_every_kind_of_fault_gets_its_even_share() -> None:
    worlds = sample_faulty(2 * len(KINDS), seed=4, kernels=4_000)
    assert set(Counter(world.faults[0].kind for world in worlds.values()).values()) == {2}


def test_the_same_seed_samples_the_same_worlds() -> None:
    first, again, other = (sample_healthy(6, seed) for seed in (4, 4, 5))
    assert first == again != other


def test_healthy_worlds_have_no_fault_and_can_be_played() -> None:
    for world in sample_healthy(8, seed=1, kernels=4_000).values():
        assert not world.faults
        assert truth(world).healthy


@pytest.mark.parametrize("slowdown", [0.05, 0.2, 1.0])
def test_a_fault_is_sized_to_the_slowdown_asked_for(slowdown: float) -> None:
    world = World(seed=2, steps=10, layers=3, faults=(slow_gpu(1, 1.2),))
    assert truth(fit_slowdown(world, slowdown)).slowdown_ratio == pytest.approx(slowdown, rel=0.06)
