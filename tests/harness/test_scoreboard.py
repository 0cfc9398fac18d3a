"""The figures count what they say they count."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dprankdiag.harness.answers import Outcome
from dprankdiag.harness.faults import load_context, slow_gpu
from dprankdiag.harness.score_tables import describe_board, list_failures, render_board
from dprankdiag.harness.scoreboard import Scoreboard
from tests.harness.outcomes import judge, know, perfect, tell

SLOW = know(slow_gpu(1, 1.5))
LOAD = know(load_context(3, 3.0))
CALM = know(suite="H")
BOTH = know(slow_gpu(1, 1.4), load_context(3, 4.0), suite="C")
PERFECT = Scoreboard(tuple(perfect(facts) for facts in (SLOW, LOAD, CALM, BOTH)))


def board(*outcomes: Outcome) -> Scoreboard:
    return Scoreboard(outcomes)


def test_a_perfect_run_reaches_every_bar_that_few_cases_can_show() -> None:
    assert {figure.what: figure.value for figure in PERFECT.figures() if figure.holds is False} == {}
    assert PERFECT.class_score(0.1) == PERFECT.cause_score(0.1) == 1.0
    assert list_failures(PERFECT) == []


def test_scores_are_means_over_classes_and_causes() -> None:
    wrong = judge(LOAD, tell(LOAD.truths[0], cause="single_point.gpu"))
    told = board(perfect(SLOW), wrong, perfect(CALM))
    assert told.class_score(0.1) == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert told.cause_score(0.1) == pytest.approx((2 / 3 + 0) / 2)


def test_a_kind_of_load_that_cannot_be_known_is_no_right_class() -> None:
    facts = know(load_context(3, 3.0), annotations="steps")
    guessed, careful = (judge(facts, tell(facts.truths[0], cause=it)) for it in ("load.context", "load.unknown"))
    assert board(careful, perfect(CALM)).class_score(0.1) == 1.0
    assert board(guessed, perfect(CALM)).class_score(0.1) == 0.5


def test_worlds_below_the_slowdown_are_left_out_and_calm_ones_are_not() -> None:
    assert len(PERFECT.chosen(("S", "H"), 0.9)) == 1
    assert len(PERFECT.chosen(("S", "H"), 0.0)) == 3


def test_alarms_where_nothing_is_wrong_and_ranks_without_fault_are_counted() -> None:
    told = board(judge(CALM, tell(SLOW.truths[0])), judge(SLOW, tell(SLOW.truths[0], ranks=(1, 2))), perfect(LOAD))
    assert told.false_alarms().hits == 1
    assert told.others_named().hits == 2
    assert told.culprits(1, 1).hits == 1


def test_the_price_is_held_against_the_truth_of_the_same_fault() -> None:
    true = SLOW.truths[0]
    dear = judge(SLOW, tell(true, lost_ratio=1.5 * true.lost_ratio, interval=(0.9, 1.0)))
    figures = {figure.what: figure for figure in board(dear).figures()}
    assert figures["lost time within 1 % of the step or 15 % of the loss"].holds is False
    assert figures["90 % interval holds the truth"].value.startswith("0/1")
    assert board(judge(SLOW, tell(true, lost_ratio=None))).priced() == []


def test_what_stays_unexplained_is_a_share_of_the_total() -> None:
    told = board(judge(SLOW, tell(SLOW.truths[0]), unexplained_ns=SLOW.lost_ns // 5), perfect(LOAD))
    assert (told.unexplained().hits, told.unexplained().count) == (1, 2)


def test_confidence_is_calibrated_if_as_many_are_right_as_it_says() -> None:
    true = SLOW.truths[0]
    sure = [judge(SLOW, tell(true, confidence=0.5)), judge(SLOW, tell(true, ranks=(2,), confidence=0.5))]
    assert board(judge(SLOW, tell(true, ranks=(2,), confidence=1.0))).calibration_error() == 1.0
    assert sum(right for _, right in board(*sure).confidences()) == 1
    assert board(judge(CALM, tell(true, confidence=0.95))).sure_ones().hits == 0


def test_findings_of_one_confidence_are_calibrated_together() -> None:
    true = SLOW.truths[0]
    right, wrong = (judge(SLOW, tell(true, ranks=it, confidence=0.9)) for it in (true.ranks, (2,)))
    assert board(*[right] * 36, *[wrong] * 4).calibration_error() == pytest.approx(0)
    assert board(*[right] * 20, *[wrong] * 20).calibration_error() == pytest.approx(0.4)


def test_chance_alone_shows_as_less_error_the_more_findings_there_are() -> None:
    told = [judge(SLOW, tell(SLOW.truths[0], confidence=it / 50)) for it in range(25, 50)]
    few, many = board(*told).calibration_chance(), board(*told * 20).calibration_chance()
    assert few is not None
    assert many is not None
    assert 0 < many < 0.5 * few < 0.2
    assert Scoreboard(()).calibration_chance() is None


def test_the_smallest_slowdown_is_the_one_from_which_on_all_are_named() -> None:
    small, large = know(slow_gpu(1, 1.06), suite="L"), know(slow_gpu(1, 1.25), suite="L")
    assert small.slowdown_ratio < large.slowdown_ratio
    missed = judge(small, status="healthy")
    assert board(perfect(small), perfect(large)).smallest_named() == pytest.approx(small.slowdown_ratio, rel=0.5)
    assert board(missed, perfect(large)).smallest_named() == pytest.approx(large.slowdown_ratio, rel=0.5)
    assert board(perfect(small), judge(large, status="healthy")).smallest_named() is None


def test_a_verdict_on_renumbered_ranks_is_the_same_with_the_new_numbers() -> None:
    true = SLOW.truths[0]
    moved, stale = (judge(SLOW, tell(true, ranks=ranks)).answer for ranks in ((3,), (1,)))
    before = replace(perfect(SLOW), renamed={"ranks renumbered": {1: 3, 3: 1}})
    kept = board(replace(before, changed={"ranks renumbered": moved}))
    assert kept.by_change()[0][1].hits == 1
    lost = board(replace(before, changed={"ranks renumbered": stale}))
    assert lost.by_change()[0][1].hits == 0
    assert list_failures(lost)[0][0].endswith("ranks renumbered")


def test_after_damage_silence_is_right_and_another_rank_is_not() -> None:
    true = SLOW.truths[0]
    silent, other = judge(SLOW, status="inconclusive").answer, judge(SLOW, tell(true, ranks=(1, 2))).answer
    told = board(
        replace(perfect(SLOW), changed={"labels dropped": silent}),
        replace(perfect(SLOW), changed={"labels dropped": other}),
    )
    assert (told.by_change()[0][1].hits, told.by_change()[0][1].count) == (1, 2)


def test_several_faults_are_counted_one_by_one() -> None:
    first, second = BOTH.truths
    told, right, whole = board(perfect(BOTH), judge(BOTH, tell(first), tell(second, ranks=(0,)))).compound()
    assert (told.hits, told.count) == (3, 4)
    assert (right.hits, right.count) == (3, 4)
    assert (whole.hits, whole.count) == (1, 2)


def test_tables_and_object_tell_the_same_figures() -> None:
    told = board(perfect(SLOW), judge(LOAD, status="healthy"), perfect(CALM))
    text, answer = render_board(told), json.loads(json.dumps(describe_board(told)))
    assert "S case" in text
    assert all(figure["what"] in text for figure in answer["figures"])
    assert [case["right"] for case in answer["cases"]] == [True, False, True]


def test_answers_kept_before_a_rule_was_there_are_still_scored() -> None:
    older = replace(SLOW, simple_rules={"last arriver": (1,)})
    assert [rule for rule, *_ in board(perfect(older)).simple_rules()] == ["dprankdiag", "last arriver"]
    assert "blame by meeting" in [rule for rule, *_ in board(perfect(SLOW)).simple_rules()]
