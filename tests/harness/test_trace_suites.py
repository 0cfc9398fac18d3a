"""Suites are drawn alike by count and seed, hold what they promise, and can be played."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dprankdiag.harness.cases import Case, learn_facts, set_physics
from dprankdiag.harness.faults import NEEDS_BATCHES, burst, host_late, structural_graph
from dprankdiag.harness.rule_worlds import RULE_WORLDS
from dprankdiag.harness.sampling import KINDS, draw_faulty, list_kinds
from dprankdiag.harness.trace_suites import SUITES, draw_suite, list_named
from dprankdiag.harness.transforms import CAREFUL, INVARIANT
from dprankdiag.harness.world import Physics, World

SMALL = 4_000


@pytest.mark.parametrize("letter", SUITES)
def test_the_same_seed_draws_the_same_cases_under_names_of_their_own(letter: str) -> None:
    first, again = (draw_suite(letter, 12, 3, kernels=SMALL) for _ in range(2))
    assert first == again
    assert len({case.name for case in first}) == len(first)
    assert {case.suite for case in first} == {letter}


@pytest.mark.parametrize("letter", [letter for letter in SUITES if letter != "R"])
def test_another_seed_draws_other_worlds(letter: str) -> None:
    first, other = (draw_suite(letter, 6, seed, kernels=SMALL) for seed in (3, 4))
    assert [case.world for case in first] != [case.world for case in other]


def test_nothing_warrants_an_alarm_in_healthy_worlds_and_a_tenth_are_uniformly_slow() -> None:
    facts = [learn_facts(case, case.world) for case in draw_suite("H", 20, 3, kernels=SMALL)]
    assert all(it.is_calm for it in facts)
    assert Counter(it.expected for it in facts) == {"healthy": 18, "uniform.slow": 2}


def test_single_faults_rotate_act_in_windows_and_befall_hosts() -> None:
    faults = [(world, *world.faults) for world, _ in draw_faulty(200, 3, kernels=SMALL).values()]
    assert {fault.when.kind for _, fault in faults} == {"steady", "onset", "window", "periodic", "burst"}
    rotating = [fault for _, fault in faults if fault.rotating]
    assert rotating
    assert all(len(fault.ranks) > 1 for fault in rotating)
    hosts = [(world, fault) for world, fault in faults if world.files == "node" and len(fault.ranks) == world.node_size]
    assert any(fault.kind == "host_late" for _, fault in hosts)


@pytest.mark.parametrize("physics", ["roofline", "queueing"])
def test_kinds_that_need_batches_are_drawn_where_the_physics_knows_them(physics: Physics) -> None:
    drawn = [(world, *world.faults) for world, _ in draw_faulty(130, 3, kernels=SMALL, physics=physics).values()]
    assert Counter(fault.kind for _, fault in drawn) == dict.fromkeys(list_kinds(physics), 10)
    assert set(list_kinds(physics)) == {*KINDS, *NEEDS_BATCHES}
    for world, fault in drawn:
        assert world.physics == physics
        if fault.kind == "load_idle":
            assert fault.activity(world.steps, world.ranks, np.random.default_rng(1)).any(axis=1).mean() >= 0.5
        if fault.kind == "structural_graph":
            assert world.graph
    pairs = draw_suite("C", 60, 3, kernels=SMALL, physics=physics)
    assert any(fault.kind == "load_prefill" for case in pairs for fault in case.world.faults)


def test_the_fixed_physics_draws_what_it_knows() -> None:
    assert list_kinds("fixed") == KINDS
    assert not set(KINDS).intersection(NEEDS_BATCHES)


def test_a_fault_that_costs_nothing_is_no_truth() -> None:
    hidden = World(seed=3, ranks=4, steps=10, layers=2, overlap=True, host_gap_ns=0, faults=(host_late(1, 100),))
    facts = learn_facts(Case("hidden", hidden, "S"), hidden)
    assert (facts.truths, facts.expected, facts.is_calm) == ((), "healthy", True)


def test_lost_graphs_cost_what_they_do() -> None:
    world = World(seed=3, physics="queueing", faults=(structural_graph(1, when=burst(0.3)),))
    assert Case("case", world, "S", (0.5,)).sized_world() == world


def test_compound_worlds_hold_pairs_of_causes_and_up_to_three_culprits() -> None:
    cases = draw_suite("C", 24, 3, kernels=SMALL)
    assert {len(case.world.faults) for case in cases} == {2, 3}
    assert sum(len({fault.cause for fault in case.world.faults}) > 1 for case in cases) >= 8
    facts = [learn_facts(case, case.world) for case in cases[:8]]
    assert {len(it.truths) for it in facts} == {1, 2}
    assert all(true.lost_ns >= 0 for it in facts for true in it.truths)


@pytest.mark.parametrize("letter,changes", [("T1", INVARIANT), ("T2", CAREFUL)])
def test_recordings_to_be_changed_have_one_clear_fault(letter: str, changes: dict[str, object]) -> None:
    for case in draw_suite(letter, 9, 3, kernels=SMALL):
        assert case.changes == tuple(changes)
        assert case.slowdowns[0] >= 0.1
        assert letter == "T1" or case.world.files == "rank"


def test_every_rule_that_a_recording_can_show_has_a_world() -> None:
    assert {case.rule for case in RULE_WORLDS} == {*range(1, 17), 20, 21}
    for case in RULE_WORLDS:
        facts = learn_facts(case, case.world)
        assert facts.silent == case.silent
        assert facts.is_calm or facts.slowdown_ratio > 0.05


def test_named_worlds_are_cases_without_a_suite() -> None:
    assert {case.suite for case in list_named()} == {""}


def test_an_unknown_physics_is_refused() -> None:
    with pytest.raises(ValueError, match="physics"):
        set_physics(World(), "alchemy")
