"""A comparison as people and programs read it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest

from dprankdiag.model.comparison import Comparison, StepGain
from dprankdiag.views.comparison import render
from tests import builders
from tests.views.schema_check import list_errors

SCHEMA = json.loads((resources.files("dprankdiag.views") / "schema" / "comparison.schema.json").read_text())
(ENGINE,) = builders.comparison().engines
CASES = {
    "better": builders.comparison(),
    "not comparable": builders.incomparable(),
    "open interval": builders.comparison(
        engines=(
            replace(ENGINE, step_ns=builders.change(1e6, 2e6, interval=(float("-inf"), float("inf")), chance=1.0)),
        )
    ),
    "open bet": builders.comparison(
        bets=(
            builders.bet(
                predicted=StepGain(),
                measured=StepGain(0.1, (float("-inf"), float("inf"))),
                verdict="cannot_tell",
                reason="record more",
            ),
        )
    ),
    "renamed": builders.comparison(
        causes=(builders.cause_change(presence="stayed", earlier_cause="load.unknown", unjudged="no rows"),)
    ),
}


def document(found: Comparison) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(render(found, "json"))
    return parsed


@pytest.mark.parametrize("name", CASES)
def test_the_document_fits_the_shipped_schema(name: str) -> None:
    assert list(list_errors(document(CASES[name]), SCHEMA, SCHEMA)) == []


def test_the_schema_notices_a_missing_key_and_a_wrong_value() -> None:
    broken = document(builders.comparison())
    del broken["headline"]
    broken["verdict"] = "fine"
    broken["causes"][0]["presence"] = "lost"
    assert len(list(list_errors(broken, SCHEMA, SCHEMA))) == 3


def test_times_are_whole_and_what_bounds_nothing_is_null() -> None:
    step = document(CASES["open interval"])["engines"][0]["step_ns"]
    assert (step["before"], step["difference"], step["interval"], step["chance"]) == (1000000, 1000000, None, 1.0)
    assert isinstance(step["before"], int)


def test_a_cause_carries_the_direction_that_was_tested() -> None:
    by_share = builders.cause_change(
        lost_ns=builders.change(1e6, 2e6, chance=None, direction=None), lost_ratio=builders.change(0.1, 0.2)
    )
    assert document(builders.comparison(causes=(by_share,)))["causes"][0]["direction"] == "worse"


@pytest.mark.parametrize("format_name", ["text", "markdown"])
def test_the_verdict_comes_first(format_name: str) -> None:
    first = render(builders.comparison(), format_name, width=200).splitlines()[0]
    assert first.removeprefix("# ").startswith("Better: steps take 6.30 ms (21 %) less")


def test_the_page_says_what_the_step_consists_of_and_the_parts_add_up() -> None:
    page = render(builders.comparison(), "text", width=120)
    parts = page.split("consists of\n")[1].split("\n\n")[0]
    assert re.search(r"load\.context +6\.30 ms +0 s +-6\.30 ms\n", parts)
    assert re.search(r"step +30\.0 ms +23\.7 ms +-6\.30 ms$", parts)


def test_several_kinds_have_a_line_for_all_and_several_engines_have_names() -> None:
    (kind,) = ENGINE.kinds
    prefill = replace(kind, kind="prefill")
    two = (replace(ENGINE, kinds=(kind, prefill)), replace(ENGINE, engine="decoders"))
    page = render(builders.comparison(engines=two), "text", width=120)
    assert "all, in one mix" in page
    assert "Mean step of decoders 0-7" in page


def test_what_was_not_tested_is_not_judged() -> None:
    untested = replace(ENGINE.kinds[0], step_ns=builders.change(1e6, 2e6, chance=None, direction=None))
    assert "not judged" in render(builders.comparison(engines=(replace(ENGINE, kinds=(untested,)),)), "text")


def test_no_cause_on_either_side_is_said() -> None:
    assert "neither before nor after" in render(builders.comparison(causes=()), "text")


@pytest.mark.parametrize("format_name", ["text", "markdown", "json"])
def test_foreign_text_steers_neither_terminal_nor_page(format_name: str) -> None:
    side = replace(builders.comparison().after, paths=("\x1b[31mrun|<script>.sqlite",))
    page = render(builders.comparison(after=side), format_name)
    assert "\x1b" not in page
    if format_name == "markdown":
        assert "<script>" not in page.replace("\\<", "")
        assert "run\\|\\<script\\>" in page


@pytest.mark.parametrize("format_name", ["text", "markdown"])
def test_a_bet_tells_what_was_predicted_what_was_gained_and_whether_it_was_kept(format_name: str) -> None:
    page = render(builders.comparison(), format_name, width=120)
    assert "Bets: predicted gain against measured gain" in page
    assert re.search(r"balance-tokens .*21 % \(19 % to 23 %\) .*20 % \(18 % to 22 %\).* kept", page)
    assert "--tried" not in page


def test_where_nobody_says_what_was_tried_the_page_says_what_it_took_for_it() -> None:
    page = render(builders.comparison(bets=(builders.bet(is_stated=False),)), "text", width=120)
    assert "say which was with --tried" in page


def test_an_open_bet_bounds_nothing_and_gives_its_reason() -> None:
    (bet,) = document(CASES["open bet"])["bets"]
    assert (bet["measured"], bet["predicted"]) == ({"ratio": 0.1, "interval": None}, {"ratio": None, "interval": None})
    assert "balance-tokens: record more" in render(CASES["open bet"], "text", width=120)
