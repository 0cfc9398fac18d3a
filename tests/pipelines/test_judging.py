"""A verdict is as sure as it is often the same."""

from __future__ import annotations

import pytest

from dprankdiag.pipelines.judging import FEWEST_DRAWS, judge, weigh
from tests.analysis.builders import observe_steps, on, on_steps

DRAWS = 40


def test_a_clear_fault_comes_back_in_every_draw_and_says_so() -> None:
    seen = observe_steps(40, factor={"attention": on(3, 2.0)})
    (claim,) = weigh(seen, judge(seen)[0], DRAWS)
    assert claim.support == 1.0
    (told,) = [item for item in claim.evidence if item.name == "same_verdict_ratio"]
    assert told.value == 1.0


def test_a_fault_that_few_steps_show_comes_back_less_often() -> None:
    stall = 2_000_000.0 * (on_steps(1, 2.0, [20], 40, 8) - 1)
    seen = observe_steps(40, add={"host": stall})
    (claim,) = weigh(seen, judge(seen)[0], DRAWS)
    assert claim.cause == "single_point.host"
    assert 0.3 <= claim.support <= 0.9


def test_what_begins_within_a_recording_begins_within_its_draws() -> None:
    seen = observe_steps(80, factor={"attention": on_steps(3, 2.0, slice(40, 80), 80, 8)})
    (claim,) = weigh(seen, judge(seen)[0], DRAWS)
    assert (claim.when, claim.support) == ("onset", 1.0)


def test_ranks_at_the_edge_of_what_stands_out_come_and_go() -> None:
    uneven = on(3, 1.5) * on(5, 1.2)
    seen = observe_steps(40, factor={"attention": uneven}, noise=0.3)
    (claim,) = weigh(seen, judge(seen)[0], DRAWS)
    assert claim.ranks == (3,)
    assert 0 < claim.support < 1


def test_nothing_is_drawn_where_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dprankdiag.pipelines.judging.draw_in_order", lambda *asked: pytest.fail("drawn"))
    assert weigh(observe_steps(40), []) == []


def test_the_same_recording_is_as_sure_every_time() -> None:
    seen = observe_steps(40, factor={"attention": on(3, 1.3)}, noise=0.05)
    first, again = (weigh(seen, judge(seen)[0], DRAWS) for _ in range(2))
    assert [claim.support for claim in first] == [claim.support for claim in again]


def test_draws_that_all_agree_are_soon_enough_and_others_go_on() -> None:
    clear, doubtful = (observe_steps(40, factor={"attention": on(3, 1.5)}, noise=it) for it in (0.01, 0.3))
    drawn = [weigh(seen, judge(seen)[0], DRAWS)[0].evidence[-1].samples for seen in (clear, doubtful)]
    assert drawn == [12, DRAWS]


def test_what_costs_more_to_judge_is_drawn_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dprankdiag.pipelines.judging.MOST_EFFORT", 1)
    seen = observe_steps(40, factor={"attention": on(3, 1.5)})
    (claim,) = weigh(seen, judge(seen)[0])
    assert claim.evidence[-1].samples == FEWEST_DRAWS
