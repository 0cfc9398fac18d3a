"""What-ifs as text, Markdown and JSON."""

from __future__ import annotations

import json

from dprankdiag.model.whatif import CostFit, Figure, Unpriced
from dprankdiag.pipelines.whatif import conclude
from dprankdiag.views.whatif import render
from tests.pipelines.whatifs import option, result

FIT = CostFit("times", 40, 0.004, {"step_ns": Figure(5e6, (4e6, 6e6)), "context_token_ns": Figure(8.7, (8.0, 9.0))})
TOLD = conclude(
    result(
        option("policy.total_tokens", 0.2, 0.15, 0.25),
        option("policy.round_robin", 0.0, -0.001, 0.001, is_current=True),
        option("policy.odd", 0.0, -0.001, 0.001),
        fit=FIT,
        abstentions=(Unpriced("gateway.cache_aware", "no prefixes", ("prefix",), "log block ids"),),
        notes=("one GPU a rank is assumed",),
    )
)


def test_the_page_begins_with_what_helps_and_how_to_set_it() -> None:
    page = render(TOLD, "text")
    assert page.startswith("As policy.total_tokens would save 20 % of the requests' time")
    assert "policy.total_tokens: saves 20 % (15 % to 25 %)" in page
    assert "set --set policy.total_tokens" in page
    assert "no gain: policy.odd, policy.round_robin" in page


def test_the_page_says_what_it_rests_on_and_what_it_cannot_tell() -> None:
    page = render(TOLD, "text")
    assert "missed by 0.4 % (median)" in page
    assert "context token: 8.7 ns (8 ns to 9 ns)" in page
    assert "gateway.cache_aware: no prefixes; log block ids" in page


def test_no_line_is_wider_than_the_page() -> None:
    assert max(len(line) for line in render(TOLD, "text", width=80).splitlines()) <= 80


def test_bounds_without_a_middle_are_shown_as_bounds() -> None:
    page = render(conclude(result(option("policy.a", None, 0.01, 0.3, reasons=("0 % or 30 %",)))), "text")
    assert "policy.a: between 1.0 % and 30 %" in page
    assert "0 % or 30 %" in page


def test_the_json_holds_whole_nanoseconds_and_nulls() -> None:
    told = json.loads(render(TOLD, "json"))
    assert (told["schema_version"], told["tool"]["name"], told["verdict"]) == (1, "dprankdiag", "better")
    first = told["options"][0]
    assert first["gain_ratio"] == {"value": 0.2, "interval": [0.15, 0.25]}
    assert first["served"]["step_p50_ns"] == {"value": 20_000_000, "interval": [19_000_000, 21_000_000]}
    assert first["served"]["gpu_hours_day"] == {"value": None, "interval": None}
    assert told["fit"]["terms"]["context_token_ns"]["value"] == 8.7
    assert '"value": 20000000,' in render(TOLD, "json")


def test_markdown_lets_nothing_become_markup() -> None:
    page = render(conclude(result(option("policy.a", 0.2, 0.1, 0.3, title="<b>|x"))), "markdown")
    assert "\\<b\\>\\|x" in page
    assert "| `policy.a` |" in page
