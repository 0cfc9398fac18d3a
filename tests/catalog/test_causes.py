import re
from typing import get_args

import pytest

from dprankdiag.catalog import causes as module
from dprankdiag.catalog.causes import Cause, load_causes
from dprankdiag.errors import TableError
from dprankdiag.model.diagnosis import Severity

CAUSES = load_causes()
EXPECTED = {
    "single_point": {"gpu", "host", "link", "unknown"},
    "load": {"requests", "context", "prefill", "cache", "kv_pressure", "speculation", "idle", "unknown"},
    "structural": {"expert", "dispatch", "layout", "graph", "unknown"},
    "communication": {"fabric", "unknown"},
    "ledger": {"stale", "inconsistent"},
    "uniform": {"slow"},
    "stall": {"absent"},
    "unclassified": {"late"},
}


def test_the_catalogue_holds_the_causes_of_the_design_and_no_other() -> None:
    assert set(CAUSES) == {f"{group}.{name}" for group, names in EXPECTED.items() for name in names}


@pytest.mark.parametrize("cause", CAUSES.values(), ids=list(CAUSES))
def test_each_cause_says_one_short_sentence_and_has_a_remedy(cause: Cause) -> None:
    assert cause.says.endswith(".")
    assert ". " not in cause.says
    assert len(cause.says) <= 120
    assert cause.title
    assert not cause.title.endswith(".")
    assert cause.key == f"{cause.cause_class}.{cause.key.split('.')[1]}"
    assert cause.remedies


@pytest.mark.parametrize("cause", CAUSES.values(), ids=list(CAUSES))
def test_each_remedy_is_a_sourced_action_with_a_key_of_its_own(cause: Cause) -> None:
    keys = [remedy.key for remedy in cause.remedies]
    assert len(keys) == len(set(keys))
    for remedy in cause.remedies:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", remedy.key)
        assert remedy.text[0].isupper()
        assert remedy.text.endswith(".")
        assert remedy.source


def test_only_a_cure_removes_the_whole() -> None:
    assert all(remedy.cures for cause in CAUSES.values() for remedy in cause.remedies if remedy.whole)


def test_remedies_of_one_key_are_about_one_thing() -> None:
    shared: dict[str, set[str]] = {}
    for cause in CAUSES.values():
        for remedy in cause.remedies:
            shared.setdefault(remedy.key, set()).add(cause.cause_class)
    assert shared["balance-tokens"] == {"load"}


KNOWN_FLAGS = {
    "--cpuctxsw", "--cuda-graph-trace", "--trace-fork-before-exec",
    "--enable-dp-attention-local-control-broadcast", "--enable-eplb", "--eplb-config",
    "--expert-distribution-recorder-mode",
    "--load-snapshot-publish-interval", "--prefill-decode-interval", "--prefill-schedule-interval",
}  # fmt: skip


def test_remedies_name_no_flag_that_was_not_checked() -> None:
    texts = [remedy.text for cause in CAUSES.values() for remedy in cause.remedies]
    assert {flag for text in texts for flag in re.findall(r"--[a-z][a-z-]+", text)} == KNOWN_FLAGS


def test_severities_without_a_loss_are_those_of_the_design() -> None:
    severities = {key: cause.default_severity for key, cause in CAUSES.items() if cause.default_severity != "info"}
    assert severities == {
        "stall.absent": "critical",
        "ledger.stale": "warning",
        "ledger.inconsistent": "warning",
        "load.kv_pressure": "warning",
    }
    assert set(severities.values()) <= set(get_args(Severity))


def test_only_load_causes_become_warnings_by_their_work_ratio() -> None:
    for cause in CAUSES.values():
        assert cause.warning_work_ratio == (1.5 if cause.cause_class == "load" else None), cause.key


def test_unknown_is_the_second_rung_of_a_class() -> None:
    assert {cause.cause_class for cause in CAUSES.values() if cause.is_unknown} == {
        "single_point",
        "load",
        "structural",
        "communication",
    }


def test_a_caller_cannot_change_the_catalogue() -> None:
    load_causes().clear()
    assert load_causes() == CAUSES


@pytest.mark.parametrize(
    "row",
    [
        {"class": "load"},
        {"class": "structural", "title": "", "says": "", "default_severity": "info", "remedies": []},
        {"class": "load", "title": "", "says": "", "default_severity": "grave", "remedies": []},
        {"class": "load", "title": "", "says": "", "default_severity": "info", "remedies": [{"key": "a"}]},
    ],
)
def test_a_broken_row_is_a_defect_of_ours(monkeypatch: pytest.MonkeyPatch, row: dict[str, object]) -> None:
    module._load_shipped.cache_clear()
    monkeypatch.setattr(module, "read_catalog", lambda name: {"load.context": row})
    with pytest.raises(TableError, match=r"causes\.toml"):
        module.load_causes()
    module._load_shipped.cache_clear()
