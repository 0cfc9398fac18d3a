"""Late exits: a link, a receiver queue, a clock that runs ahead, or nothing that can be told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.analysis.exits import LateExit, judge_exits
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import measure_skews
from tests.analysis.builders import Array, draw_components, observe_grids, observe_steps, run_grid

N, LAYERS, RANKS = 60, 3, 8
EP = {"family": ("dispatch", "combine") * LAYERS, "operation": ("dispatch", "combine") * LAYERS}
MIXED = {"family": ("collective", "dispatch") * LAYERS, "operation": ("all_reduce", "dispatch") * LAYERS}


def late(rank: int, ns: float, positions: slice = slice(None)) -> Array:
    exits = np.zeros((N, 2 * LAYERS, RANKS))
    exits[:, positions, rank] = ns
    return exits


def see(exit_ns: Array, layout: dict[str, tuple[str, ...]] | None = None, routing: Array | float = 1.0) -> Observations:
    layout = layout or {}
    return observe_steps(
        N,
        RANKS,
        LAYERS,
        factor={"expert": np.asarray(routing)},
        exit_ns=exit_ns,
        family=layout.get("family", ()),
        operation=layout.get("operation", ()),
    )


def judge(seen: Observations) -> list[LateExit]:
    return judge_exits(seen, measure_skews(seen))


def run_ahead(seen: Observations, rank: int, ns: int) -> Observations:
    """Set one rank's clock ahead: it stamps arrivals and ends late, while nothing really is."""
    (grid,) = seen.grids
    ahead = np.zeros(grid.segment.shape, np.int64)
    ahead[:, :, rank] = ns
    arrival = grid.wait.max(axis=2, keepdims=True) - grid.wait + ahead
    last = arrival.max(axis=2, keepdims=True)
    moved = last - (grid.wait.max(axis=2, keepdims=True))
    return observe_grids(
        [
            replace(
                grid,
                wait=last - arrival,
                transfer=grid.transfer - moved,
                own_transfer=grid.own_transfer - moved + ahead,
                exit=grid.exit + ahead,
                entry=grid.entry + ahead[:, -1],
            )
        ]
    )


def test_ranks_that_leave_together_are_not_late() -> None:
    assert judge(see(late(0, 0))) == []


def test_late_out_of_every_operation_is_a_link() -> None:
    (found,) = judge(see(late(6, 40_000)))
    assert found.verdict == "link"
    assert found.operations == ("all_gather", "reduce_scatter")
    assert found.lateness_ns == pytest.approx(40_000)
    assert np.flatnonzero(found.standout.mask).tolist() == [6]


def test_late_out_of_one_collective_alone_is_no_link() -> None:
    (found,) = judge(see(late(6, 60_000, slice(0, None, 2))))
    assert found.verdict == "late"
    assert found.operations == ("all_gather",)


def test_late_out_of_dispatch_while_other_collectives_end_together_is_a_receiver_queue() -> None:
    (found,) = judge(see(late(6, 60_000, slice(1, None, 2)), MIXED))
    assert found.verdict == "dispatch"


def test_lateness_that_goes_with_the_tokens_received_is_a_receiver_queue() -> None:
    routing = np.exp(0.3 * np.random.default_rng(1).standard_normal((N, 2 * LAYERS, RANKS)))
    exits = late(6, 50_000)
    exits[:, :-1, 6] *= routing[:, 1:, 6]
    exits[:, 1::2, 6] *= routing[:, 1::2, 6]
    (found,) = judge(see(exits, EP, routing))
    assert found.verdict == "dispatch"
    assert found.correlation is not None
    assert found.correlation > 0.5


def follow(part: float, seed: int = 1, steps: slice = slice(None)) -> Observations:
    """Let a rank leave dispatch and combine late, to a part by what it receives; the rest is noise."""
    random = np.random.default_rng(seed)
    tokens, noise = random.standard_normal((2, N, 2 * LAYERS, RANKS))
    exits = np.zeros((N, 2 * LAYERS, RANKS))
    exits[steps, :-1, 6] = 50_000 + 4_000 * (part * tokens[steps, 1:, 6] + np.sqrt(1 - part**2) * noise[steps, 1:, 6])
    exits[steps, -1, 6] = 50_000
    return see(exits, EP, np.exp(0.1 * tokens))


@pytest.mark.parametrize(("part", "verdict"), [(0.4, "dispatch"), (0.05, "late"), (0.0, "late")])
def test_lateness_that_follows_the_tokens_far_beyond_chance_is_a_queue_however_noisy(part: float, verdict: str) -> None:
    (found,) = judge(follow(part))
    assert found.verdict == verdict
    assert found.correlation is not None
    assert found.correlation < 0.6


def test_few_meetings_that_go_together_by_chance_are_no_queue() -> None:
    (found,) = judge(follow(0.75, steps=slice(20, 26)))
    assert found.correlation is not None
    assert found.correlation > 0.5
    assert found.verdict == "late"


def test_a_link_that_is_later_in_steps_of_more_load_is_no_queue() -> None:
    load = np.where(np.arange(N) < N // 2, 1.0, 2.0)[:, None, None]
    (found,) = judge(see(late(6, 40_000) * load, EP, load))
    assert found.verdict == "late"


def test_lateness_below_the_bound_of_the_clocks_is_not_claimed_where_it_cannot_be_told_from_them() -> None:
    exits = late(6, 12_000)
    exits[:, :, 6] += np.random.default_rng(0).integers(-200, 200, exits.shape[:2])
    seen = run_ahead(see(late(0, 0)), 6, 12_000)
    loose = replace(seen, abilities=replace(seen.abilities, clock_bound_ns=50_000))
    assert judge(loose) == []


PAIRS = np.array([0, 0, 1, 1, 2, 2, 3, 3])


def meet_in_pairs(late: tuple[int, ...], ns: int, *, pairs_too: bool) -> Observations:
    """Let pairs of ranks meet before all do; who is late leaves all meetings late, or only those of all."""
    mask = np.isin(np.arange(RANKS), late)
    exits, transfer = np.zeros((N, 2 * LAYERS, RANKS)), np.full((N, 2 * LAYERS, RANKS), 16_000)
    exits[:, 1::2] = np.where(mask, ns, 0)
    # Of a pair that is late as a whole nobody is later than the other.
    transfer[:, 0::2] += np.where(mask & pairs_too, ns, 0)
    transfer = transfer + np.random.default_rng(2).integers(-300, 300, (N, 2 * LAYERS, 1))
    group = np.stack([PAIRS if k % 2 == 0 else np.full(RANKS, 9) for k in range(2 * LAYERS)])
    names = ("all_reduce", "all_gather") * LAYERS
    parts = draw_components(N, RANKS, LAYERS)
    return observe_grids([run_grid(parts, group=group, transfer=transfer, exit_ns=exits, operation=names)])


def test_pairs_late_as_a_whole_are_late_by_the_transfers_of_the_other_pairs() -> None:
    (found,) = judge(meet_in_pairs((6, 7), 40_000, pairs_too=True))
    assert found.verdict == "link"
    assert found.operations == ("all_gather", "all_reduce")
    assert found.lateness_ns == pytest.approx(40_000, rel=0.02)


def test_pairs_whose_own_meetings_end_in_time_have_no_slow_link() -> None:
    (found,) = judge(meet_in_pairs((6, 7), 40_000, pairs_too=False))
    assert found.verdict == "late"
    assert found.operations == ("all_gather",)


def test_a_clock_that_runs_ahead_is_no_late_exit() -> None:
    assert judge(run_ahead(see(late(0, 0)), 6, 60_000)) == []


def test_single_steps_of_late_exits_are_no_clock() -> None:
    exits = np.zeros((N, 2 * LAYERS, RANKS))
    exits[[5, 20, 41], :, 6] = 200_000
    (found,) = judge(see(exits))
    assert found.standout.is_burst
    assert found.verdict == "link"
