"""Every kind of skew by itself: what should stand out does, and nothing beside it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.analysis.observations import Observations, order_steps
from dprankdiag.analysis.skews import Skews, exit_calls, exit_sums, measure_skews
from dprankdiag.analysis.standouts import Standout
from dprankdiag.analysis.transfers import find_transfer_shifts
from dprankdiag.classifiers.communication_fabric import CommunicationFabric
from dprankdiag.model.diagnosis import Abstention
from tests.analysis.builders import Array, draw_components, observe_grids, observe_steps, on, on_steps, run_grid

N = 60
ALL_WORK = ("attention", "expert", "probe", "other")
EP = {"family": ("dispatch", "combine") * 3, "operation": ("dispatch", "combine") * 3}
KINDS = ("speed", "attention", "other", "host", "stalls", "rest", "experts", "transfer", "common")


def measure(**factor: Array) -> Skews:
    return measure_skews(observe_steps(N, factor=factor))


def slow_chip(rank: int, factor: float, first: int = 0) -> dict[str, Array]:
    return {name: on_steps(rank, factor, slice(first, N), N, 8) for name in ALL_WORK}


def named(found: tuple[Standout, ...]) -> list[list[int]]:
    return [np.flatnonzero(item.mask).tolist() for item in found]


def stand_out(found: Skews) -> set[str]:
    """Name the kinds of skew in which anything stands out."""
    loud = {name for name in KINDS if getattr(found, name)}
    return loud | {f"exit {kind}" for kind, late in found.exits.items() if late}


def test_what_nobody_asks_for_is_not_measured() -> None:
    found = measure(attention=on(3, 1.5))
    assert named(found.attention) == [[3]]
    assert not vars(found).keys() & set(KINDS).difference({"speed", "attention"})


@pytest.mark.parametrize("seed", range(12))
def test_nothing_stands_out_among_even_ranks(seed: int) -> None:
    assert stand_out(measure_skews(observe_steps(N, seed=seed))) == set()


def test_more_attention_is_attention_alone() -> None:
    found = measure(attention=on(3, 1.5))
    assert stand_out(found) == {"attention"}
    assert named(found.attention) == [[3]]
    assert found.attention[0].levels[3] == pytest.approx(1.5, abs=0.02)


def test_a_chip_slow_at_all_it_does_is_speed_and_no_load() -> None:
    found = measure(**slow_chip(5, 1.2))
    assert stand_out(found) == {"speed"}
    assert named(found.speed) == [[5]]
    assert found.slowness[:, 5] == pytest.approx(np.full(N, 1.2), abs=0.02)


def test_load_on_a_slow_chip_is_what_is_left_when_its_speed_is_taken_out() -> None:
    found = measure(**slow_chip(5, 1.2) | {"attention": on(5, 1.2 * 1.5)})
    assert stand_out(found) == {"speed", "attention"}
    assert found.attention[0].levels[5] == pytest.approx(1.5, abs=0.03)


def test_a_chip_that_slows_down_midway_does_so_from_there() -> None:
    (found,) = measure(**slow_chip(5, 1.2, first=25)).speed
    assert abs(found.first - 25) <= 1


def test_probes_longer_on_one_side_of_the_gather_alone_are_no_measure_of_speed() -> None:
    factor = np.ones((1, 6, 8))
    factor[:, ::2, 5] = 1.5
    found = measure(probe=factor)
    assert found.speed == ()
    assert found.speed_basis == "one side"


def persistent(expert: float) -> Skews:
    """Let rank 2's equal launches take four times as long in every fourth step; no segment lies after the gather."""
    own = on_steps(2, 4.0, slice(3, N, 4), N, 8)
    seen = observe_steps(N, factor={"probe": own, "expert": on_steps(2, expert, slice(3, N, 4), N, 8)})
    grid = replace(seen.grids[0], side=("both",) * len(seen.grids[0].side))
    return measure_skews(replace(seen, grids=(grid,)))


def test_equal_launches_that_grow_while_the_experts_do_not_are_rows_and_no_speed() -> None:
    found = persistent(1.0)
    assert (found.speed, found.speed_basis) == ((), "one side")


def test_equal_launches_and_experts_that_grow_alike_are_speed() -> None:
    found = persistent(3.0)
    assert found.speed_basis == "probes"
    assert [np.flatnonzero(item.mask).tolist() for item in found.speed] == [[2]]


def test_without_probes_a_rank_slow_on_both_sides_is_slow() -> None:
    seen = observe_steps(N, factor={"probe": np.zeros(1), "attention": on(2, 1.3), "expert": on(2, 1.3)})
    found = measure_skews(seen)
    assert found.speed_basis == "expert"
    assert named(found.speed) == [[2]]


def test_without_probes_more_attention_alone_is_no_speed() -> None:
    found = measure_skews(observe_steps(N, factor={"probe": np.zeros(1), "attention": on(2, 1.3)}))
    assert found.speed == ()
    assert named(found.attention) == [[2]]


def test_ranks_of_one_team_stand_out_together() -> None:
    teams = ((0, 1), (2, 3), (4, 5), (6, 7))
    seen = observe_steps(N, factor={"attention": on([2, 3], 1.5)}, teams=teams)
    assert named(measure_skews(seen).attention) == [[2, 3]]


def test_a_host_that_launches_late_is_its_idle_time_and_no_unexplained_rest() -> None:
    found = measure_skews(observe_steps(N, add={"host": 300_000.0 * (on(1, 2.0) - 1)}))
    assert stand_out(found) == {"host"}
    assert named(found.host) == [[1]]


def test_stalls_are_single_steps() -> None:
    late = on_steps(1, 2.0, [9, 30, 47], N, 8) - 1
    found = measure_skews(observe_steps(N, add={"host": 3e6 * late}))
    assert stand_out(found) == {"stalls"}
    assert np.flatnonzero(found.stalls[0].steps).tolist() == [9, 30, 47]


def test_idle_time_without_a_late_launch_is_rest() -> None:
    found = measure_skews(observe_steps(N, add={"rest": 100_000.0 * (on(1, 2.0) - 1)}))
    assert stand_out(found) == {"rest"}


def test_without_launches_idle_time_is_the_hosts_as_a_bound() -> None:
    seen = observe_steps(N, add={"rest": 100_000.0 * (on(1, 2.0) - 1)})
    found = measure_skews(replace(seen, abilities=replace(seen.abilities, has_launches=False)))
    assert stand_out(found) == {"host"}


def test_a_hot_layer_is_told_by_layer_and_rank() -> None:
    factor = np.ones((1, 6, 8))
    factor[:, 3, 4] = 1.6
    found = measure(expert=factor)
    assert stand_out(found) == {"experts"}
    (skew,) = found.experts
    assert np.argwhere(skew.hot[0]).tolist() == [[3, 4]]
    assert skew.levels[0][3, 4] == pytest.approx(1.6, abs=0.03)
    assert np.isnan(skew.levels[0][2]).all()


def test_routing_drawn_anew_in_every_step_is_no_hot_expert() -> None:
    draw = np.exp(0.3 * np.random.default_rng(5).standard_normal((N, 6, 8)))
    assert measure(expert=draw).experts == ()


def test_experts_that_turn_hot_midway_are_hot_from_there() -> None:
    factor = np.ones((N, 6, 8))
    factor[30:, 3, 4] = 2.0
    (skew,) = measure(expert=factor).experts
    assert np.allclose(np.flatnonzero(skew.steps)[[0, -1]], [30, 59], atol=1)


def test_experts_that_turn_hotter_are_hot_once() -> None:
    factor = np.ones((N, 6, 8))
    factor[20:, 3, 4], factor[20:, 5, 6] = 2.0, 1.8
    factor[40:, 3, 4], factor[40:, 5, 6] = 3.2, 3.0
    (skew,) = measure(expert=factor).experts
    assert np.flatnonzero(skew.steps).tolist() == list(range(20, N))


def test_other_experts_that_turn_hot_are_told_apart() -> None:
    factor = np.ones((N, 6, 8))
    factor[:30, 3, 4], factor[30:, 5, 6] = 2.0, 3.0
    ranks = [np.flatnonzero(skew.hot[0].any(axis=0)).tolist() for skew in measure(expert=factor).experts]
    assert ranks == [[4], [6]]


@pytest.mark.parametrize("kind,layout", [("collective", {}), ("ep", EP)])
def test_a_late_exit_is_told_by_the_kind_of_meeting(kind: str, layout: dict[str, tuple[str, ...]]) -> None:
    late = np.zeros((1, 1, 8))
    late[:, :, 6] = 40_000
    seen = observe_steps(N, exit_ns=late, family=layout.get("family", ()), operation=layout.get("operation", ()))
    found = measure_skews(seen)
    assert stand_out(found) == {f"exit {kind}"}
    assert named(found.exits[kind]) == [[6]]
    assert exit_calls(seen, kind) == 6
    sums = exit_sums(seen, kind)
    assert sums is not None
    assert (sums[:, 6] == 240_000).all()


def test_a_kind_of_meeting_that_does_not_occur_has_no_exits() -> None:
    assert exit_sums(observe_steps(N), "ep") is None


def test_transfers_longer_in_a_run_of_steps_are_a_shift() -> None:
    transfer = np.full((N, 6, 1), 16_000)
    transfer[20:40] = 48_000
    transfer = transfer + np.random.default_rng(0).integers(-300, 300, transfer.shape)
    found = measure_skews(observe_steps(N, transfer=transfer))
    assert stand_out(found) == {"transfer"}
    assert np.flatnonzero(found.transfer[0].steps).tolist() == list(range(20, 40))
    assert found.transfer[0].ratio == pytest.approx(3, abs=0.1)


def draw_transfers(steps: int, long: slice, factor: float, seed: int = 0) -> Array:
    random = np.random.default_rng([seed, 5])
    transfer = 16_000 * np.exp(0.03 * random.standard_normal((steps, 6, 1)))
    transfer[long] *= factor
    # One meeting in fifty takes far longer, as real ones do.
    return np.asarray((transfer * np.where(random.random(transfer.shape) < 0.02, 4.0, 1.0)).round())


@pytest.mark.parametrize(
    ("steps", "long"), [(9, slice(4, 9)), (12, slice(4, 8)), (15, slice(5, 10)), (15, slice(0, 5))]
)
def test_transfers_longer_in_a_run_of_few_steps_are_a_shift(steps: int, long: slice) -> None:
    found = measure_skews(observe_steps(steps, transfer=draw_transfers(steps, long, 3.0)))
    assert stand_out(found) == {"transfer"}
    assert np.flatnonzero(found.transfer[0].steps).tolist() == list(range(steps))[long]
    assert found.transfer[0].ratio == pytest.approx(3, abs=0.2)


@pytest.mark.parametrize("steps", [8, 11, 15])
def test_few_steps_of_even_transfers_show_no_shift(steps: int) -> None:
    even = [observe_steps(steps, transfer=draw_transfers(steps, slice(0), 1.0, seed), seed=seed) for seed in range(40)]
    assert [len(find_transfer_shifts(seen, seen.median_step_ns)) for seen in even] == [0] * 40


def test_transfers_that_grow_step_by_step_are_no_shift_of_few_steps() -> None:
    transfer = draw_transfers(12, slice(0), 1.0) * np.linspace(1, 1.5, 12)[:, None, None]
    seen = observe_steps(12, transfer=transfer.round())
    assert find_transfer_shifts(seen, seen.median_step_ns) == []


def test_transfers_long_throughout_shift_nowhere() -> None:
    assert measure_skews(observe_steps(N, transfer=90_000)).transfer == ()


def test_equal_work_slower_on_every_rank_from_some_step_on_is_common() -> None:
    factor = np.ones((N, 1, 1))
    factor[30:] = 1.2
    found = measure(**dict.fromkeys(ALL_WORK, factor))
    assert found.speed == ()
    assert found.common is not None
    assert np.allclose(np.flatnonzero(found.common[0])[[0, -1]], [30, 59], atol=1)
    assert found.common[1] == pytest.approx(1.2, abs=0.01)


def test_equal_work_slower_on_one_rank_is_not_common() -> None:
    assert measure(**slow_chip(5, 1.3, first=30)).common is None


def two_kinds() -> Observations:
    """Steps of two kinds in turn; those of the second are twice as long."""
    parts = draw_components(N)
    short = run_grid({name: values[::2] for name, values in parts.items()})
    long = run_grid({name: 2 * values[1::2] for name, values in parts.items()}, kind="prefill")
    start = np.arange(N) * 10_000_000
    return observe_grids(
        [
            replace(short, start_ns=start[::2], end_ns=start[::2] + 1, number=np.arange(0, N, 2)),
            replace(long, start_ns=start[1::2], end_ns=start[1::2] + 1, number=np.arange(1, N, 2)),
        ]
    )


def test_steps_of_two_kinds_are_put_in_the_order_of_time() -> None:
    seen = two_kinds()
    assert seen.grid_of.tolist() == [0, 1] * (N // 2)
    ordered = order_steps(seen, [np.zeros((N // 2, 1)), np.ones((N // 2, 1))])
    assert ordered[:, 0].tolist() == [0, 1] * (N // 2)


def test_steps_of_two_kinds_are_compared_with_their_own() -> None:
    assert stand_out(measure_skews(two_kinds())) == set()


def test_a_kind_of_step_whose_transfers_take_nothing_makes_those_of_another_no_longer() -> None:
    """Data that came before the last rank looked for them seem to take no time."""
    parts = draw_components(N)
    first = run_grid({name: values[:40] for name, values in parts.items()}, transfer=16_000)
    second = run_grid({name: values[40:] for name, values in parts.items()}, start_ns=int(first.end_ns[-1]))
    early = replace(second, transfer=np.zeros_like(second.transfer))
    seen = observe_grids([first, replace(early, number=np.arange(40, N))])
    assert find_transfer_shifts(seen, seen.median_step_ns) == []


def test_a_kind_of_step_that_falls_mostly_into_the_trouble_does_not_hide_it() -> None:
    """Batches about the border of a graph's size run now as one kind and now as the other."""
    steps = 90
    long = np.isin(np.arange(steps), range(30, 70))
    second = np.isin(np.arange(steps), [*range(5, 12), *range(34, 64, 2), *range(40, 56)])
    transfer = np.where(long, 200_000, 30_000)[:, None, None] + np.random.default_rng(0).integers(
        -300, 300, (steps, 6, 1)
    )
    parts = draw_components(steps)
    start = np.arange(steps) * 10_000_000
    grids = [
        replace(
            run_grid({name: values[mine] for name, values in parts.items()}, transfer=transfer[mine], kind=kind),
            start_ns=start[mine],
            end_ns=start[mine] + 1,
            number=np.flatnonzero(mine),
        )
        for kind, mine in (("decode", ~second), ("verify", second))
    ]
    assert long[second].mean() > 0.5
    seen = observe_grids(grids)
    (found,) = find_transfer_shifts(seen, 1_000_000)
    assert np.array_equal(found.steps, long)


def test_transfers_longer_while_experts_are_hot_follow_the_tokens() -> None:
    factor = np.ones((N, 6, 8))
    factor[30:, [1, 3, 5], [2, 6, 4]] = 2.5
    transfer = np.full((N, 6, 1), 16_000)
    transfer[30:] = 40_000
    transfer = transfer + np.random.default_rng(0).integers(-300, 300, transfer.shape)
    seen = observe_steps(N, factor={"expert": factor}, transfer=transfer)
    skews = measure_skews(seen)
    assert skews.transfer
    (said,) = CommunicationFabric().judge(seen, skews)
    assert isinstance(said, Abstention)
