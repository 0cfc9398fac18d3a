import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from dprankdiag.catalog.prometheus_rules import count_seconds, load_rules
from tests.conftest import ROOT

Run = Callable[..., Result]
COMMITTED = ROOT / "rules" / "dprankdiag.rules.yml"


def test_the_rules_printed_are_the_rules_committed(run: Run) -> None:
    result = run("rules")
    assert result.exit_code == 0
    assert result.stdout == COMMITTED.read_text("utf-8"), "if meant: dprankdiag rules -o rules/dprankdiag.rules.yml"


def test_a_setting_changes_the_rules_and_nothing_of_their_names(run: Run) -> None:
    changed = run("rules", "--set", "window=1m", "--set", "hold=90s", "--set", "skew_ratio=1.25").stdout
    before, after = yaml.safe_load(COMMITTED.read_text("utf-8")), yaml.safe_load(changed)
    assert [rule.get("record") for group in before["groups"] for rule in group["rules"]] == [
        rule.get("record") for group in after["groups"] for rule in group["rules"]
    ]
    assert "[5m]" not in changed
    assert "[1m]" in changed
    assert "per_peers_mean > 1.25" in changed
    assert "for: 90s" in changed
    assert "* 60," in changed


def test_the_selector_reaches_every_engine_series_and_no_other(run: Run) -> None:
    changed = run("rules", "--set", 'selector=job=~"llm-.+",cluster="a"').stdout
    assert changed.count('job=~"llm-.+",cluster="a"}') == len(re.findall(r"(?<![\w:.])(?:sglang|vllm)[:_]\w+", changed))


def test_the_runbooks_lie_where_the_documentation_is_served(run: Run) -> None:
    text = run("rules", "--set", "docs_url=https://wiki.example/dprankdiag/").stdout
    assert 'runbook_url: "https://wiki.example/dprankdiag/causes/load.requests.md"' in text


def test_labels_of_a_target_are_a_setting(run: Run) -> None:
    text = run("rules", "--set", "target_labels=instance, pod, node").stdout
    assert "without (rank, instance, pod, node)" in text
    assert "without (rank, instance, pod)" not in text


@pytest.mark.parametrize(
    "given, said",
    [
        ("windw=5m", "no setting 'windw'; there are window, hold"),
        ("window", "expected KEY=VALUE, got 'window'"),
        ("window=5 minutes", "expected a duration such as 5m, got '5 minutes'"),
        ("skew_ratio=high", "expected a number such as 1.5, got 'high'"),
        ('selector=job="a"} or up{', "expected matchers"),
        ('docs_url=x" evil: "y', "expected text without spaces"),
        ("target_labels=in-stance", "expected names of labels"),
    ],
)
def test_a_setting_that_cannot_be_is_a_usage_error(run: Run, given: str, said: str) -> None:
    result = run("rules", "--set", given)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_the_settings_are_listed_with_default_and_meaning(run: Run) -> None:
    listed = run("rules", "--list").stdout
    for key, setting in load_rules().settings.items():
        assert f"\n{key} " in f"\n{listed}"
        assert setting.meaning in listed
        assert setting.default in listed


def test_every_setting_is_used(run: Run) -> None:
    others = {"duration": "77s", "number": "7.75", "text": "xyz", "selector": 'x="y"', "labels": "xyz"}
    for key, setting in load_rules().settings.items():
        assert run("rules", "--set", f"{key}={others[setting.kind]}").stdout != COMMITTED.read_text("utf-8"), key


def test_a_prometheus_rule_object_holds_the_same_groups(run: Run) -> None:
    result = run("rules", "--format", "kubernetes", "--label", "release=monitoring")
    made = yaml.safe_load(result.stdout)
    assert made["kind"] == "PrometheusRule"
    assert made["apiVersion"] == "monitoring.coreos.com/v1"
    assert made["metadata"] == {"name": "dprankdiag", "labels": {"release": "monitoring"}}
    assert made["spec"] == yaml.safe_load(COMMITTED.read_text("utf-8"))


def test_labels_belong_to_the_object_only(run: Run) -> None:
    result = run("rules", "--label", "release=monitoring")
    assert result.exit_code == 2
    assert "--format kubernetes" in result.stderr


def test_the_rules_are_written_to_a_file(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "mine.yml"
    result = run("rules", "-o", str(target))
    assert (result.exit_code, result.stdout) == (0, "")
    assert target.read_text("utf-8") == COMMITTED.read_text("utf-8")
    assert run("rules", "-o", str(tmp_path / "mine.txt")).exit_code == 2


@pytest.mark.parametrize("text, seconds", [("5m", 300.0), ("1h30m", 5400.0), ("500ms", 0.5), ("1d", 86400.0)])
def test_durations_are_counted_in_seconds(text: str, seconds: float) -> None:
    assert count_seconds(text) == seconds
