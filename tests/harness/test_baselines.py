"""Simple rules name what their authors mean them to, and fail where they are known to."""

from __future__ import annotations

from dataclasses import replace

from dprankdiag.harness.baselines import name_by_simple_rules
from dprankdiag.harness.faults import load_context, slow_gpu
from dprankdiag.harness.timeline import play
from dprankdiag.harness.world import World

EVEN = World(seed=2, steps=12, layers=4, chip_spread=0.0, load_spread=0.0)
LATE = replace(EVEN, faults=(load_context(3, 4.0),))


def named(world: World) -> dict[str, tuple[int, ...]]:
    return name_by_simple_rules(play(world))


def test_one_late_rank_is_found_by_the_matrix_and_by_who_comes_last() -> None:
    found = named(LATE)
    assert found["wait matrix, 3 × the mean"] == (3,)
    assert found["last arriver"] == (3,)


def test_the_longest_collective_belongs_to_one_who_waits() -> None:
    assert named(LATE)["longest collective"] not in ((), (3,))


def test_the_matrix_never_names_three_of_eight() -> None:
    assert named(replace(EVEN, faults=(load_context((1, 4, 6), 6.0),)))["wait matrix, 3 × the mean"] == ()


def test_a_score_needs_a_third_more_time() -> None:
    assert named(replace(EVEN, faults=(slow_gpu(5, 1.5),)))["kernel score < 0.75"] == (5,)
    assert named(replace(EVEN, faults=(slow_gpu(5, 1.25),)))["kernel score < 0.75"] == ()


def test_blame_by_meeting_finds_one_late_rank_and_several() -> None:
    assert named(LATE)["blame by meeting"] == (3,)
    assert named(replace(EVEN, faults=(slow_gpu((1, 6), 1.5),)))["blame by meeting"] == (1, 6)


def test_blame_by_meeting_falls_on_whoever_inherited_lateness_too() -> None:
    found = named(replace(EVEN, attention_tp=2, faults=(load_context(4, 6.0),)))
    assert set(found["blame by meeting"]) == {4, 5}
    found = named(replace(EVEN, attention_tp=4, ranks=8, faults=(slow_gpu(6, 1.6),)))
    assert set(found["blame by meeting"]) > {6}


def test_in_an_even_deployment_nothing_stands_out() -> None:
    assert set(named(EVEN).values()) == {()}


def test_meetings_of_a_group_have_their_own_last_arriver() -> None:
    found = named(replace(EVEN, attention_tp=2, faults=(slow_gpu(6, 1.5),)))
    assert found["last arriver"] == (6,)
