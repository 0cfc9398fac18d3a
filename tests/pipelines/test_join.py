"""Several deployments, and several kinds of input, in one diagnosis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dprankdiag.model.diagnosis import Abstention, Diagnosis, TimeWindow
from dprankdiag.pipelines.join import count_from_own_start, join_diagnoses, join_kinds
from dprankdiag.views import text
from tests import builders


def of_engine(name: str, **changes: Any) -> Diagnosis:
    """Make the diagnosis of an engine with one finding on its rank 3."""
    made = builders.diagnosis(headline="rank 3: longer contexts", **changes)
    ranks = tuple(replace(rank, engine=name) for rank in made.ranks)
    return replace(made, ranks=ranks, findings=tuple(replace(item, engine=name) for item in made.findings))


def test_the_headline_says_whose_rank_it_is_and_how_much_else_was_found() -> None:
    joined = join_diagnoses([of_engine("prefill"), of_engine("decode")], ())
    assert joined.headline == "prefill: rank 3: longer contexts (and 1 more)"
    assert join_diagnoses([of_engine("prefill")], ()).headline == "rank 3: longer contexts"


def test_engines_that_are_all_even_are_counted_together() -> None:
    even = [builders.even_diagnosis(), builders.even_diagnosis()]
    steps = even[0].time.steps
    assert f"{2 * steps} steps compared on 16 ranks of 2 engines" in join_diagnoses(even, ()).headline


def test_notes_and_abstentions_name_their_engine_unless_all_have_them() -> None:
    shared = Abstention("uniform.slow", "no reference", (), None)
    silent = Abstention("load.context", "rank 4 was not recorded", (), None)
    one = of_engine("prefill", abstentions=(silent, shared), notes=("both", "rank 4 is missing"))
    other = of_engine("decode", abstentions=(shared,), notes=("both",))
    joined = join_diagnoses([one, other], ())
    assert joined.notes == ("both", "prefill: rank 4 is missing")
    assert [item.reason for item in joined.abstentions] == ["prefill: rank 4 was not recorded", "no reference"]


def test_moments_of_every_engine_count_from_its_own_start() -> None:
    one, other = of_engine("prefill"), of_engine("decode")
    late_ns = 7_000_000_000
    (finding,) = other.findings
    window = TimeWindow(finding.window.start_ns + late_ns, finding.window.end_ns + late_ns)
    time = replace(other.time, start_ns=(other.time.start_ns or 0) + late_ns)
    other = replace(other, time=time, findings=(replace(finding, window=window, onset_ns=window.start_ns),))
    joined = count_from_own_start(join_diagnoses([one, other], ()), [one, other])
    assert {item.window for item in joined.findings} == {finding.window}
    assert {item.onset_ns for item in joined.findings if item.engine == "decode"} == {finding.window.start_ns}


def test_what_a_step_costs_is_not_told_of_several_engines_whose_steps_differ() -> None:
    one = of_engine("prefill")
    assert " a step; replayed" in text.render(one, {}, width=200)
    page = text.render(join_diagnoses([one, of_engine("decode")], ()), {}, width=200)
    assert " a step; replayed" not in page
    assert "What several engines lose does not add up" in page


def test_a_hang_seen_in_dumps_has_no_place_on_the_clock_of_a_trace() -> None:
    trace = builders.diagnosis()
    (finding,) = trace.findings
    hang = replace(
        finding, cause="stall.absent", lost_ns=None, window=TimeWindow(1_724_779_239 * 10**9, 1_724_779_240 * 10**9)
    )
    dumps = replace(trace, findings=(hang,), lost=builders.NOTHING_LOST)
    joined = join_kinds(trace, [dumps], ())
    assert [(item.cause, item.window.end_ns) for item in joined.findings] == [
        ("load.context", finding.window.end_ns),
        ("stall.absent", 0),
    ]
    assert joined.headline.endswith("(and 1 more)")


def test_what_is_known_without_a_price_is_ordered_by_severity() -> None:
    (finding,) = builders.diagnosis().findings
    info = replace(finding, cause="single_point.unknown", lost_ns=None, severity="info")
    hang = replace(finding, cause="stall.absent", lost_ns=None)
    parts = [builders.diagnosis(findings=(item,), lost=builders.NOTHING_LOST) for item in (info, hang)]
    assert [item.severity for item in join_kinds(None, parts, ()).findings] == ["critical", "info"]
