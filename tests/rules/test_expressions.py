"""Every expression parses, only the first layer knows engines' names, and no text uses a label that is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import promql_parser
import pytest

from dprankdiag.catalog.causes import load_causes
from dprankdiag.catalog.prometheus_rules import load_rules
from dprankdiag.views.metrics import DiagnosisMetrics
from tests import builders
from tests.conftest import ROOT
from tests.rules.files import RECORDED, Rule, get_name, list_rules, load_groups
from tests.views.results import make_tables

RAW = re.compile(r"(?<![\w:])(?:sglang|vllm)[:_]\w+")
FIELDS = {"record", "alert", "expr", "for", "labels", "annotations"}
"""Fields of a rule that Prometheus has known since 2.0."""


def _list_selectors(node: object) -> Iterator[promql_parser.VectorSelector]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield from _list_selectors(node.vector_selector)
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from _list_selectors(node.lhs)
        yield from _list_selectors(node.rhs)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from _list_selectors(argument)
    elif isinstance(node, (promql_parser.AggregateExpr, promql_parser.ParenExpr, promql_parser.SubqueryExpr)):
        yield from _list_selectors(node.expr)


def _find_lost(expr: str) -> set[str]:
    """Name the labels that aggregation takes from the result, also in the recorded series it is made from."""
    node, lost = promql_parser.parse(expr), set[str]()
    while not isinstance(node, promql_parser.VectorSelector):
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier:
            lost |= set(node.modifier.labels)
        node = _follow(node)
    source = next((rule for rule in list_rules() if rule.get("record") == node.name), None)
    return lost | (_find_lost(source["expr"]) if source else set())


def _follow(node: object) -> object:
    """Go to the operand whose labels an expression keeps: the left one of an operator, the first of a function."""
    if isinstance(node, promql_parser.BinaryExpr):
        return node.rhs if isinstance(node.lhs, promql_parser.NumberLiteral) else node.lhs
    if isinstance(node, promql_parser.Call):
        return node.args[0]
    if isinstance(node, promql_parser.MatrixSelector):
        return node.vector_selector
    assert isinstance(node, (promql_parser.AggregateExpr, promql_parser.ParenExpr))
    return node.expr


@pytest.mark.parametrize("rule", list_rules(), ids=get_name)
def test_every_expression_parses(rule: Rule) -> None:
    assert list(_list_selectors(promql_parser.parse(rule["expr"])))


@pytest.mark.parametrize("rule", list_rules(), ids=get_name)
def test_rules_have_only_fields_that_old_servers_know(rule: Rule) -> None:
    assert set(rule) <= FIELDS


def test_only_the_first_layer_knows_the_names_of_engines() -> None:
    for group in load_groups():
        for rule in group["rules"]:
            if group["name"] != "dprankdiag.ranks":
                assert not RAW.search(rule["expr"]), get_name(rule)


def test_every_engine_series_is_looked_up_under_both_spellings() -> None:
    for rule in list_rules():
        names = {one.name for one in _list_selectors(promql_parser.parse(rule["expr"])) if one.name}
        raw = {name for name in names if RAW.fullmatch(name)}
        assert {re.sub("[:_]", "_", name, count=1) for name in raw if ":" in name} == {
            name for name in raw if ":" not in name
        }, get_name(rule)


def test_every_recorded_series_that_is_read_is_recorded_before() -> None:
    recorded: set[str] = set()
    for rule in list_rules():
        assert set(RECORDED.findall(rule["expr"])) <= recorded, get_name(rule)
        if "record" in rule:
            recorded.add(rule["record"])


def test_every_recorded_series_is_read_somewhere() -> None:
    board = (ROOT / "dashboards" / "grafana" / "dprankdiag.json").read_text("utf-8")
    read = set().union(*(RECORDED.findall(rule["expr"]) for rule in list_rules())) | set(RECORDED.findall(board))
    assert {rule["record"] for rule in list_rules() if "record" in rule} <= read


def test_names_are_level_metric_operation() -> None:
    for rule in list_rules():
        if "record" in rule:
            assert RECORDED.fullmatch(rule["record"])
        else:
            assert re.fullmatch(r"DPRank[A-Z]\w+", rule["alert"])


@pytest.mark.parametrize("rule", [rule for rule in list_rules() if "alert" in rule], ids=get_name)
def test_texts_use_no_label_that_aggregation_took(rule: Rule) -> None:
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert not used & _find_lost(rule["expr"]) - set(rule["labels"])


@pytest.mark.parametrize("rule", [rule for rule in list_rules() if "alert" in rule], ids=get_name)
def test_an_alert_says_what_is_wrong_and_where_to_read_on(rule: Rule) -> None:
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert "{{" not in annotations["summary"]
    assert annotations["summary"][0].isupper() or annotations["summary"].startswith("dprankdiag ")
    assert annotations["summary"].endswith(".")
    assert "{{" in annotations["description"]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["for"]


def test_the_runbook_of_every_alert_exists() -> None:
    causes = load_causes()
    for group in load_rules().groups:
        for rule in group.rules:
            if rule.cause:
                assert rule.cause in causes
                assert (ROOT / "docs" / "causes" / f"{rule.cause}.md").exists()
            elif rule.alert and "{{" not in rule.page:
                page, anchor = rule.page.split("#")
                headings = re.findall(r"^#+ (.+)$", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
                assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_every_alert_and_setting_named_in_the_documentation_exists_and_every_alert_is_named() -> None:
    page = (ROOT / "docs" / "rules.md").read_text("utf-8")
    alerts = {str(rule["alert"]) for rule in list_rules() if "alert" in rule}
    assert set(re.findall(r"`(DPRank\w+)`", page)) == alerts
    assert set(re.findall(r"--set '?(\w+)=", page)) <= set(load_rules().settings) | {"KEY"}
    reasons = {rule["labels"]["reason"] for rule in list_rules() if "reason" in rule.get("labels", {})}
    assert reasons <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_the_alerts_on_our_own_series_read_what_is_exported() -> None:
    metrics = DiagnosisMetrics("prod", ["http://a:1"])
    metrics.show(builders.diagnosis(), make_tables())
    exported = {family.name: family for family in metrics.collect()}
    own = next(group for group in load_groups() if group["name"] == "dprankdiag.watch")
    for rule in own["rules"]:
        (name,) = {one.name for one in _list_selectors(promql_parser.parse(rule["expr"]))}
        labels = {key for sample in exported[name].samples for key in sample.labels}
        assert not labels or set(re.findall(r"\$labels\.(\w+)", str(rule))) <= labels
    assert {family.name for family in exported.values()} >= {"dprankdiag_status", "dprankdiag_finding_active"}
