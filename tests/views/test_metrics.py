"""A diagnosis as metrics: labels that stand still, nothing that is gone, and no more than a server can bear."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.ledger_results import LEDGER_RANKS
from dprankdiag.views import metrics as views
from dprankdiag.views.metrics import DiagnosisMetrics
from tests import builders

AT_NS = 1_764_000_000 * 10**9


def make_tables(ranks: int = 8, engine: str = "default", **columns: Any) -> dict[str, Any]:
    table = LEDGER_RANKS.empty()
    for column in LEDGER_RANKS.columns:
        table[column.name] = np.full(ranks, np.nan, "float64")
    table["engine"] = np.array([engine] * ranks, object)
    table["rank"] = np.arange(ranks, dtype=np.int32)
    return {LEDGER_RANKS.name: LEDGER_RANKS.check(table | {name: np.array(values) for name, values in columns.items()})}


def collect(metrics: DiagnosisMetrics) -> dict[str, dict[tuple[str, ...], float]]:
    """Give family → values of labels but the deployment, in the order of the family → value."""
    told = {}
    for family in metrics.collect():
        assert all(sample.labels["deployment"] == "prod" for sample in family.samples)
        told[family.name.removeprefix("dprankdiag_")] = {
            tuple(value for name, value in sample.labels.items() if name != "deployment"): sample.value
            for sample in family.samples
        }
    return told


def show(diagnosis: Diagnosis, tables: dict[str, Any] | None = None) -> dict[str, dict[tuple[str, ...], float]]:
    metrics = DiagnosisMetrics("prod")
    metrics.show(diagnosis, tables or {}, AT_NS)
    return collect(metrics)


def of_engine(engine: str, **changes: Any) -> Diagnosis:
    ranks = tuple(replace(rank, engine=engine) for rank in builders.diagnosis().ranks)
    return builders.diagnosis(ranks=ranks, findings=(builders.finding(engine=engine),), **changes)


def test_each_rank_of_a_finding_is_named_once() -> None:
    told = show(builders.diagnosis(), make_tables(2, snapshot_age_ns=[0, 2e9]))
    assert told["finding_active"] == {("default", "3", "load.context"): 1.0}
    assert told["finding_severity"] == {("default", "3", "load.context"): 3.0}
    assert told["lost_ratio"] == {("default", "load.context"): 0.21}
    assert told["status"] == {("findings",): 1, ("uniform",): 0, ("healthy",): 0, ("inconclusive",): 0}
    assert told["ledger_age_seconds"] == {("default", "0"): 0.0, ("default", "1"): 2.0}
    assert told["ranks"] == {("default",): 8}
    assert told["tick_timestamp_seconds"] == {(): 1_764_000_000.0}
    assert told["verdict_timestamp_seconds"] == {("default",): 1_764_000_000.0}


def test_a_finding_that_grows_worse_is_the_same_series() -> None:
    worse, better = (
        show(builders.diagnosis(findings=(builders.finding(severity=severity),)))["finding_severity"]
        for severity in ("critical", "info")
    )
    assert worse.keys() == better.keys()
    assert (*worse.values(), *better.values()) == (3.0, 1.0)


def test_two_findings_of_one_cause_add_up_and_make_one_series() -> None:
    findings = (builders.finding(), builders.finding(ranks=(3, 5), severity="warning", lost_ratio=0.04))
    told = show(builders.diagnosis(findings=findings))
    assert told["finding_severity"] == {("default", "3", "load.context"): 3.0, ("default", "5", "load.context"): 2.0}
    assert told["lost_ratio"] == {("default", "load.context"): 0.25}


def test_a_number_that_is_not_known_has_no_sample() -> None:
    told = show(builders.diagnosis(findings=(builders.finding(lost_ratio=None),)), make_tables(2))
    assert told["lost_ratio"] == {}
    assert told["ledger_age_seconds"] == {}


def test_what_is_gone_from_the_diagnosis_is_gone_from_the_page() -> None:
    metrics = DiagnosisMetrics("prod")
    assert list(metrics.collect()) == []
    for diagnosis, count in ((builders.diagnosis(), 1), (builders.even_diagnosis(), 0)):
        metrics.show(diagnosis, {})
        assert len(collect(metrics)["finding_active"]) == count


def test_a_verdict_outlives_a_lost_answer_and_not_its_source() -> None:
    now = [0.0]
    metrics = DiagnosisMetrics("prod", hold_s=30.0, now=lambda: now[0])
    metrics.show(of_engine("a"), {})
    silence = builders.undecided_diagnosis(ranks=(), findings=())
    for at_s, active in ((10.0, {("a", "3", "load.context")}), (29.0, {("a", "3", "load.context")}), (31.0, set())):
        now[0] = at_s
        metrics.show(silence, {})
        told = collect(metrics)
        assert set(told["finding_active"]) == active
        assert told["status"][("inconclusive",)] == 1.0
    assert told["ranks"] == {}


def test_a_loop_that_is_stuck_leaves_no_verdict_behind() -> None:
    now = [0.0]
    metrics = DiagnosisMetrics("prod", hold_s=30.0, now=lambda: now[0])
    metrics.show(builders.diagnosis(), {}, AT_NS)
    now[0] = 31.0
    told = collect(metrics)
    assert told["status"] == told["finding_active"] == {}
    assert told["tick_timestamp_seconds"] == {(): 1_764_000_000.0}


def test_targets_are_up_unless_they_are_silent() -> None:
    metrics = DiagnosisMetrics("prod", ["http://a:1", "http://a:2"])
    metrics.show(builders.diagnosis(), {}, silent=["http://a:2"])
    assert collect(metrics)["target_up"] == {("http://a:1",): 1.0, ("http://a:2",): 0.0}


def test_engines_that_come_and_go_do_not_grow_the_page() -> None:
    metrics = DiagnosisMetrics("prod")
    for number in range(views.MOST_ENGINES + 5):
        metrics.show(of_engine(f"e{number:03}" + "x" * 500), {})
    told = collect(metrics)
    assert len(told["ranks"]) == views.MOST_ENGINES
    assert told["dropped_samples"] == {(): 5.0}
    assert all(len(engine) <= views.MOST_LABEL for (engine,) in told["ranks"])


def test_a_family_holds_no_more_than_a_server_can_bear() -> None:
    ranks = views.MOST_SAMPLES + 7
    told = show(builders.diagnosis(), make_tables(ranks, snapshot_age_ns=np.zeros(ranks)))
    assert len(told["ledger_age_seconds"]) == views.MOST_SAMPLES
    assert told["dropped_samples"] == {(): 7.0}


@settings(max_examples=60, deadline=None)
@given(
    st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(['"} 1\nup 1\n', "\\", "a\nb", '",rank="9'])
)
def test_no_name_of_an_engine_becomes_a_label_or_a_line_of_the_page(name: str) -> None:
    registry = CollectorRegistry()
    metrics = DiagnosisMetrics("prod", [name])
    registry.register(metrics)  # type: ignore[arg-type]
    metrics.show(of_engine(name), {}, AT_NS)
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    samples = [sample for family in families for sample in family.samples]
    assert all(sample.name.startswith("dprankdiag_") for sample in samples)
    assert {sample.labels["engine"] for sample in samples if "engine" in sample.labels} == {name}
    assert {sample.labels["target"] for sample in samples if "target" in sample.labels} == {name}
    assert {sample.labels["rank"] for sample in samples if "rank" in sample.labels} == {"3"}
