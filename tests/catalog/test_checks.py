from __future__ import annotations

import re

import pytest

from dprankdiag.catalog.causes import load_causes
from dprankdiag.catalog.checks import Condition, find_checks, load_checks, load_families, load_needs
from dprankdiag.catalog.engine_series import load_series
from dprankdiag.classifiers import BY_LEDGERS
from dprankdiag.model.checkup import LEVELS
from dprankdiag.model.ledgers import Fact

LOCKSTEP: dict[str, Fact] = {
    "engine": "sglang",
    "ranks": 8,
    "keeps_step": True,
    "disaggregation_mode": "null",
    "moe_a2a_backend": "deepep",
    "deepep_mode": "auto",
}


def _find(facts: dict[str, Fact]) -> set[str]:
    return {check.key for check in find_checks(facts)}


def test_nothing_is_found_where_nothing_is_told() -> None:
    assert find_checks({}) == ()


def test_every_check_says_why_and_rests_on_something() -> None:
    for key, row in load_checks().items():
        for text in (row.what, row.why):
            assert text.endswith("."), key
        assert row.source, key
        assert bool(row.todo) or row.level in ("ok", "note"), key


def test_a_check_names_the_switch_that_mends_it() -> None:
    expected = {
        "metrics-off": "--enable-metrics",
        "dp-attention-metrics-off": "SGLANG_ENABLE_METRICS_DP_ATTENTION=1",
        "device-timer-off": "SGLANG_ENABLE_METRICS_DEVICE_TIMER=1",
        "forward-pass-metrics-off": "--enable-forward-pass-metrics",
        "vllm-metrics-off": "--disable-log-stats",
        "vllm-several-servers": "--api-server-count 1",
        "round-robin": "--load-balance-method total_tokens",
    }
    for key, switch in expected.items():
        assert switch in load_checks()[key].todo


def test_findings_come_gravest_first() -> None:
    levels = [check.level for check in find_checks({**LOCKSTEP, "enable_eplb": False, "ep_size": 8})]
    assert levels == sorted(levels, key=LEVELS.index)
    assert len(set(levels)) > 2


def test_deepep_on_auto_is_a_problem_only_without_a_prefill_decode_split() -> None:
    assert "deepep-auto" in _find(LOCKSTEP)
    for change in ({"disaggregation_mode": "decode"}, {"keeps_step": False}, {"deepep_mode": "low_latency"}):
        assert "deepep-auto" not in _find({**LOCKSTEP, **change})


@pytest.mark.parametrize(
    "method, role, ranks, found",
    [
        ("round_robin", "null", 8, "round-robin"),
        ("round_robin", "decode", 8, "round-robin"),
        ("round_robin", "prefill", 8, "prefill-round-robin"),
        ("follow_bootstrap_room", "prefill", 8, "follow-bootstrap-room"),
        ("total_requests", "null", 8, "total-requests"),
        ("total_tokens", "null", 8, "total-tokens"),
        ("round_robin", "null", 1, "one-rank"),
    ],
)
def test_the_balance_method_in_force_is_judged_by_role(method: str, role: str, ranks: int, found: str) -> None:
    methods = {
        "round-robin",
        "prefill-round-robin",
        "follow-bootstrap-room",
        "total-requests",
        "total-tokens",
        "one-rank",
    }
    facts: dict[str, Fact] = {"engine": "sglang", "load_balance_method": method, "ranks": ranks}
    assert _find({**facts, "disaggregation_mode": role}) & methods == {found}


def test_a_fact_that_is_not_known_meets_no_test() -> None:
    for test, value in (("is", None), ("is_not", "x"), ("among", []), ("at_least", 0), ("at_most", 9)):
        assert not Condition("absent", test, value).holds({"other": 1})
    assert Condition("absent", "known", False).holds({})


def test_truth_is_no_number_and_a_number_no_truth() -> None:
    assert not Condition("a", "is", 1).holds({"a": True})
    assert not Condition("a", "is", True).holds({"a": 1})
    assert not Condition("a", "at_least", 1).holds({"a": True})
    assert Condition("a", "at_least", 2).holds({"a": 2})
    assert not Condition("a", "at_least", 2).holds({"a": "3"})


def test_facts_stand_in_the_words() -> None:
    facts: dict[str, Fact] = {"ranks_missing": 1, "ranks": 8, "ranks_seen": 7, "missing_ranks": "rank 5"}
    (check,) = (one for one in find_checks(facts) if one.key == "ranks-missing")
    assert check.what == "7 of 8 DP ranks are seen; missing: rank 5."
    assert not re.search(r"[{}]", check.why + check.todo)


def test_what_shows_a_cause_is_a_cause_and_fields_that_some_series_holds() -> None:
    needs = load_needs()
    assert set(needs) <= set(load_causes())
    told = {row.field for kind in ("sglang", "vllm", "sglang_loads") for row in load_series(kind)}  # type: ignore[arg-type]
    for cause, rows in needs.items():
        for need in rows:
            assert set(need.fields) - told <= {"expert_tokens", "load_stamp_s"}, cause


def test_the_families_looked_for_are_series_of_the_catalogue() -> None:
    for engine in ("sglang", "vllm"):
        known = {name for row in load_series(engine) for name in row.names}  # type: ignore[arg-type]
        assert set(load_families(engine)) <= known


def test_what_is_said_to_be_judged_has_a_judge() -> None:
    assert set(load_needs()) <= {classifier.cause for classifier in BY_LEDGERS}
