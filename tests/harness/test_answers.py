"""An answer is right if cause and ranks are, no higher than the recording carries, and nothing is said beside it."""

from __future__ import annotations

from dprankdiag.harness.answers import fits, read_answer
from dprankdiag.harness.faults import fabric, host_late, load_context, slow_gpu, uniform
from tests.harness.outcomes import judge, know, perfect, tell

SLOW = know(slow_gpu(1, 1.5))
CALM = know()
BOTH = know(slow_gpu(1, 1.4), load_context(3, 4.0))


def test_a_perfect_answer_is_right_in_every_respect() -> None:
    for facts in (SLOW, CALM, BOTH, know(uniform(1.5)), know(fabric(3.0), silent=True)):
        outcome = perfect(facts)
        assert outcome.right_cause
        assert outcome.right_ranks in (True, None)
        assert outcome.right
        assert not outcome.names_others


def test_another_rank_is_a_wrong_culprit_of_the_right_cause() -> None:
    outcome = judge(SLOW, tell(SLOW.truths[0], ranks=(2,)))
    assert outcome.right_cause
    assert outcome.right_ranks is False
    assert outcome.names_others
    assert not outcome.right


def test_a_cause_above_what_the_recording_carries_is_wrong() -> None:
    facts = know(slow_gpu(1, 1.5), graph_mode="graph")
    assert not judge(facts, tell(facts.truths[0], cause="single_point.gpu")).right_cause
    assert judge(facts, tell(facts.truths[0], cause="unclassified.late")).right_cause


def test_the_costliest_alarm_counts_even_if_an_info_finding_stands_before_it() -> None:
    true = SLOW.truths[0]
    outcome = judge(SLOW, tell(true, cause="ledger.stale", severity="info"), tell(true))
    assert outcome.right_cause
    assert len(outcome.answer.alarms) == 1


def test_an_alarm_beside_the_right_one_spoils_the_answer() -> None:
    true = SLOW.truths[0]
    assert not judge(SLOW, tell(true), tell(true, cause="unclassified.late", severity="warning")).right
    assert judge(SLOW, tell(true), tell(true, cause="unclassified.late", severity="info")).right


def test_an_alarm_in_a_healthy_world_is_wrong_and_a_hint_is_not() -> None:
    true = SLOW.truths[0]
    assert not judge(CALM, tell(true)).right
    assert judge(CALM, tell(true, severity="info"), status="healthy").right


def test_uniform_slowness_is_right_as_a_status_without_alarms() -> None:
    facts = know(uniform(1.5))
    assert judge(facts, status="uniform").right
    assert not judge(facts, tell(SLOW.truths[0])).right_cause


def test_where_nothing_can_be_told_any_alarm_is_wrong() -> None:
    facts = know(host_late(2, 500_000), silent=True)
    assert judge(facts, status="inconclusive").right
    assert not judge(facts, tell(facts.truths[0])).right


def test_each_of_several_faults_is_matched_with_its_own_finding() -> None:
    first, second = BOTH.truths
    pairs = list(judge(BOTH, tell(second), tell(first, ranks=(2,)), tell(first)).match())
    assert [fits(*pair) for pair in pairs] == [True, True, False]
    assert pairs[2][0] is None


def test_faults_of_one_cause_in_the_same_steps_are_one_to_be_told() -> None:
    facts = know(slow_gpu(1, 1.5), slow_gpu(3, 1.3))
    (true,) = facts.truths
    assert (true.ranks, true.who) == ((1, 3), "group")
    assert true.lost_ns == facts.lost_ns > 0


def test_a_missed_or_an_invented_fault_spoils_a_compound_answer() -> None:
    first, second = BOTH.truths
    assert not judge(BOTH, tell(first)).right
    assert judge(BOTH, tell(first)).right_ranks is False
    assert not judge(BOTH, tell(first), tell(second), tell(first, cause="single_point.link", ranks=(0,))).right


def test_what_is_not_printed_is_not_known() -> None:
    answer = read_answer({"status": "findings", "findings": [{"cause": "load.context", "severity": "warning"}]}, 0.5)
    assert (answer.findings[0].lost_ratio, answer.findings[0].interval, answer.total_ns) == (None, None, None)
