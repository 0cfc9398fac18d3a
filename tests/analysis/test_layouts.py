"""Ranks that own more at every load are told from ranks that are loaded more, where the recording can tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.analysis.layouts import Layout, find_decode, find_load_levels, measure_layouts
from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import measure_skews
from tests.analysis.builders import Array, announce, observe_steps, on

N, LOADED = 60, 2.5
LOAD = np.where(np.arange(N) < N // 2, 1.0, LOADED)
ATTENTION = LOAD[:, None, None]


def tell(seen: Observations, load: Array = LOAD, held: Array | float = 1.0) -> Observations:
    """Annotate 10 requests and 10,000 KV tokens a rank at load 1; `held` says who holds more tokens."""
    requests = 10 * np.tile(load[:, None], (1, seen.n_ranks))
    return announce(seen, requests, 1_000 * requests * held)


def find(seen: Observations) -> list[Layout]:
    return list(measure_layouts(seen, measure_skews(seen)))


def test_a_constant_share_of_attention_over_even_tokens_is_owned() -> None:
    (found,) = find(tell(observe_steps(N, factor={"attention": ATTENTION * on(3, 1.5)})))
    assert (found.side, np.flatnonzero(found.mask).tolist(), found.doubt) == ("pre", [3], "")
    assert found.low_ratio == pytest.approx(1.5, rel=0.02)
    assert found.high_ratio == pytest.approx(1.5, rel=0.02)
    assert found.load_ratio == pytest.approx(LOADED)
    assert found.steps.all()


def test_a_share_that_falls_as_the_load_grows_is_that_of_requests_that_stay() -> None:
    added = on(3, 31.0) * 1_000 - 1_000
    assert not find(tell(observe_steps(N, factor={"attention": ATTENTION}, add={"attention": added})))


def test_tokens_as_uneven_as_the_work_explain_it() -> None:
    seen = observe_steps(N, factor={"attention": ATTENTION * on(3, 1.5)})
    assert not find(tell(seen, held=on(3, 1.5)[0, 0]))


def test_a_share_that_comes_with_a_later_step_is_not_owned() -> None:
    late = np.where((np.arange(N) >= 35)[:, None, None], on(3, 1.5), 1.0)
    assert not find(tell(observe_steps(N, factor={"attention": ATTENTION * late})))


@pytest.mark.parametrize(
    ("probe", "rows", "owned"), [(1.3, 1.0, True), (1.0, 1.0, False), (1.3, 1.5, False), (1.3, None, False)]
)
def test_without_annotations_longer_projections_at_as_many_rows_tell(
    probe: float, rows: float | None, owned: bool
) -> None:
    before = np.where((np.arange(6) % 2 == 0)[None, :, None], on(3, probe), 1.0)
    seen = observe_steps(N, factor={"attention": ATTENTION * on(3, 1.5), "probe": before})
    ratio = None if rows is None else on(3, rows)[0, 0]
    assert bool(find(replace(seen, row_ratio=ratio))) is owned


def test_the_same_experts_longer_in_every_layer_at_every_load_are_owned() -> None:
    (found,) = find(tell(observe_steps(N, factor={"expert": on(2, 1.3)})))
    assert (found.side, np.flatnonzero(found.mask).tolist(), found.doubt) == ("post", [2], "")
    assert found.high_ratio == pytest.approx(1.3, rel=0.02)


def test_experts_whose_time_is_that_of_their_tokens_may_as_well_be_hot() -> None:
    assert not find(tell(observe_steps(N, factor={"expert": ATTENTION * on(2, 1.3)})))


def test_experts_whose_share_grows_with_the_tokens_are_hot() -> None:
    grows = np.where(LOAD[:, None, None] > 1, on(2, 1.6), on(2, 1.2))
    assert not find(tell(observe_steps(N, factor={"expert": grows})))


@pytest.mark.parametrize("layers", [(1.3, 1.3, 1.8), (1.3, 1.3, 1.0)])
def test_experts_that_are_longer_by_another_factor_in_another_layer_are_hot(layers: tuple[float, ...]) -> None:
    by_layer = np.repeat(np.array(layers), 2)[None, :, None]
    factor = np.where(on(2, 0.0) == 0, by_layer, 1.0)
    found = find(tell(observe_steps(N, factor={"expert": factor})))
    assert not found


def test_experts_longer_on_another_rank_in_one_layer_are_hot() -> None:
    factor = np.where((np.arange(6) == 1)[None, :, None], on(5, 1.3), on(2, 1.3))
    assert not find(tell(observe_steps(N, factor={"expert": factor})))


def test_at_one_load_it_is_doubted_and_said_so() -> None:
    before = find(tell(observe_steps(N, factor={"attention": on(3, 1.5)}), np.ones(N)))
    after = find(tell(observe_steps(N, factor={"expert": on(3, 1.5)}), np.ones(N)))
    assert ["less than 2 ×" in item.doubt for item in (*before, *after)] == [True, True]


def test_a_slow_chip_owns_nothing() -> None:
    slow = {name: on(3, 1.3) for name in ("expert", "probe", "other")}
    assert not find(tell(observe_steps(N, factor={**slow, "attention": ATTENTION * on(3, 1.3)})))


@pytest.mark.parametrize(("ratio", "few", "split"), [(2.5, 30, True), (1.8, 30, False), (2.5, 5, False)])
def test_load_levels_need_a_factor_of_two_and_enough_steps(ratio: float, few: int, split: bool) -> None:
    total = np.where(np.arange(N) < few, 1.0, ratio)
    levels = find_load_levels(total, np.ones(N, bool))
    assert (levels is not None) is split
    if levels is not None:
        assert levels.ratio == pytest.approx(ratio)
        assert not (levels.low & levels.high).any()


def test_steps_with_prompts_are_no_decode_steps() -> None:
    seen = tell(observe_steps(N))
    prompts = np.where(np.arange(N) % 5 == 0, 500.0, 0.0)
    batches = (replace(seen.batches[0], prefill_tokens=prompts), *seen.batches[1:])
    assert np.array_equal(find_decode(replace(seen, batches=batches)), prompts == 0)
    runs = np.zeros((N, seen.n_ranks), bool)
    runs[7, 2] = True
    assert np.flatnonzero(~find_decode(replace(seen, batches=(), prefill=runs))).tolist() == [7]


@pytest.mark.parametrize("side", ["pre", "post"])
def test_steps_in_which_the_ranks_meet_on_one_side_only_are_compared_there(side: str) -> None:
    seen = tell(observe_steps(N, factor={"attention": ATTENTION * on(3, 1.5), "expert": ATTENTION * on(3, 1.5)}))
    sided = replace(seen, grids=tuple(replace(grid, side=(side,) * len(grid.side)) for grid in seen.grids))
    assert [np.flatnonzero(layout.mask).tolist() for layout in find(sided)[:1]] == [[3]]


PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7))
LONGER_PROJECTIONS = np.where((np.arange(6) % 2 == 0)[None, :, None], on(3, 1.3), 1.0)


def test_a_rank_that_has_more_attention_than_the_one_it_shares_requests_with_owns_it() -> None:
    heavier = {"attention": ATTENTION * on(3, 1.5), "probe": LONGER_PROJECTIONS}
    (found,) = find(tell(observe_steps(N, factor=heavier, teams=PAIRS)))
    assert (found.side, np.flatnonzero(found.mask).tolist(), found.doubt) == ("pre", [3], "")
    assert found.low_ratio == pytest.approx(1.5, rel=0.02)


def test_a_pair_that_holds_more_tokens_hides_no_member_that_owns_more() -> None:
    heavier = {"attention": ATTENTION * on((2, 3), 1.2) * on(3, 1.5), "probe": LONGER_PROJECTIONS}
    seen = tell(observe_steps(N, factor=heavier, teams=PAIRS), held=on((2, 3), 1.2)[0, 0])
    assert [np.flatnonzero(layout.mask).tolist() for layout in find(seen)] == [[3]]


def test_a_member_whose_projections_take_no_longer_is_not_said_to_own_more() -> None:
    assert not find(tell(observe_steps(N, factor={"attention": ATTENTION * on(3, 1.5)}, teams=PAIRS)))


def test_a_member_with_more_attention_at_one_load_is_doubted_and_said_so() -> None:
    heavier = {"attention": on(3, 1.5), "probe": LONGER_PROJECTIONS}
    (found,) = find(tell(observe_steps(N, factor=heavier, teams=PAIRS), np.ones(N)))
    assert "less than 2 ×" in found.doubt


def test_few_steps_at_each_load_are_enough_where_the_share_is_clear() -> None:
    load = np.where(np.arange(11) < 6, 1.0, LOADED)
    (found,) = find(tell(observe_steps(11, factor={"attention": load[:, None, None] * on(3, 1.5)}), load))
    assert found.load_ratio == pytest.approx(LOADED)


def test_few_steps_do_not_tell_what_is_owned_from_a_request_that_stays() -> None:
    load = np.where(np.arange(11) < 6, 1.0, LOADED)
    added = {"attention": on(3, 31.0) * 1_000 - 1_000}
    assert not find(tell(observe_steps(11, factor={"attention": load[:, None, None]}, add=added), load))
