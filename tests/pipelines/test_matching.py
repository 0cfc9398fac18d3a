"""Findings before and after: which of them are the same."""

from __future__ import annotations

from typing import Any

from dprankdiag.model.diagnosis import Diagnosis, Finding
from dprankdiag.pipelines.matching import match_causes
from tests import builders


def found(*findings: Finding, **changes: Any) -> Diagnosis:
    return builders.diagnosis(findings=findings, abstentions=(), **changes)


def late(*ranks: int, cause: str = "load.context", **changes: Any) -> Finding:
    return builders.finding(cause=cause, ranks=ranks, **changes)


def match(before: Diagnosis, after: Diagnosis) -> list[tuple[str, list[tuple[str, tuple[int, ...]]], Any]]:
    """Say of each pair what became of it, what it was before, and what it is after."""
    return [
        (pair.presence, [(item.cause, item.ranks) for item in pair.before], [(i.cause, i.ranks) for i in pair.after])
        for pair in match_causes(before, after, {})
    ]


def test_the_same_cause_on_the_same_ranks_stayed_whatever_else_comes_first() -> None:
    other = late(1)
    assert match(found(other, late(3)), found(late(3), other)) == [
        ("stayed", [("load.context", (3,))], [("load.context", (3,))]),
        ("stayed", [("load.context", (1,))], [("load.context", (1,))]),
    ]


def test_a_cause_of_one_side_is_new_or_gone() -> None:
    gpu = late(2, cause="single_point.gpu")
    assert match(found(gpu), found(late(3))) == [
        ("new", [], [("load.context", (3,))]),
        ("gone", [("single_point.gpu", (2,))], []),
    ]


def test_a_cause_on_other_ranks_moved() -> None:
    assert match(found(late(3)), found(late(5))) == [
        ("moved", [("load.context", (3,))], [("load.context", (5,))]),
    ]


def test_the_same_ranks_are_matched_before_any_moves() -> None:
    assert match(found(late(3), late(5)), found(late(6), late(3))) == [
        ("moved", [("load.context", (5,))], [("load.context", (6,))]),
        ("stayed", [("load.context", (3,))], [("load.context", (3,))]),
    ]


def test_a_recording_that_tells_more_names_the_same_fault_otherwise() -> None:
    vague = late(3, cause="load.unknown")
    assert match(found(vague), found(late(3))) == [("stayed", [("load.unknown", (3,))], [("load.context", (3,))])]
    unclear = late(3, cause="unclassified.late")
    assert match(found(late(3)), found(unclear))[0][0] == "stayed"


def test_another_cause_of_the_same_class_is_another_fault() -> None:
    assert [item[0] for item in match(found(late(3, cause="load.requests")), found(late(3)))] == ["new", "gone"]


def test_parts_of_one_cause_are_one() -> None:
    parts = (late(3, id="f1"), late(3, id="f2", severity="info"))
    ((presence, before, after),) = match(found(*parts), found(late(3)))
    assert (presence, len(before), len(after)) == ("stayed", 2, 1)


def test_ranks_of_another_engine_are_other_ranks_unless_the_engine_was_renamed() -> None:
    before, after = found(late(3, engine="prefill")), found(late(3, engine="decode"))
    assert [pair.presence for pair in match_causes(before, after, {})] == ["new", "gone"]
    assert [pair.presence for pair in match_causes(before, after, {"prefill": "decode"})] == ["stayed"]


def test_a_cause_that_the_other_side_could_not_judge_says_so() -> None:
    silent = builders.diagnosis(findings=(), abstentions=(builders.abstention(cause="load.context", reason="no rows"),))
    assert [pair.unjudged for pair in match_causes(silent, found(late(3)), {})] == ["no rows"]
    assert [pair.unjudged for pair in match_causes(found(late(3)), silent, {})] == ["no rows"]
    assert [pair.unjudged for pair in match_causes(found(), found(late(3)), {})] == [None]
