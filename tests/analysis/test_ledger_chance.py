"""Load that is clearly uneven and may be chance is told, and nothing else is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dprankdiag.analysis.ledger_chance import ChanceLoad, find_chance
from dprankdiag.pipelines.ledgers import diagnose_view
from tests.analysis.test_ledger_view import view

FEW: Mapping[str, Any] = {
    "ranks": 4,
    "gauges": {"load_running_requests": 4, "load_used_tokens": {"all": 34000, 2: 222000}},
    "counters": {
        "scheduled_tokens": 2000,
        "decode_tokens": 2000,
        "scheduled_pairs": {"all": 1.7e7, 2: 1.11e8},
    },
}
"""Sixteen requests, of which one is 25 times as long as another."""

PROMPT: Mapping[str, Any] = {
    "counters": {
        "prefill_tokens": {"all": 8000, 5: 12000},
        "scheduled_tokens": {"all": 20000, 5: 24000},
        "scheduled_pairs": {"all": 3.0e7, 5: 9.0e7},
        "admitted_requests": 2,
    }
}
"""Ranks that decode alike over contexts of a length, and two prompts each, of which those of one rank are longer."""


def find(given: Mapping[str, Any]) -> ChanceLoad:
    found = find_chance(view(given))
    assert found is not None
    return found


def test_a_long_request_among_few_is_told_with_how_few_there_are() -> None:
    found = find(FEW)
    assert (found.kind, found.mask.tolist(), found.requests) == ("context", [False, False, True, False], 4.0)


def test_what_a_long_prompt_makes_is_told_as_prompts() -> None:
    assert find(PROMPT).kind == "prefill"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"counters": {"scheduled_pairs": {"all": 3.0e7, 5: 3.3e7}}},
        {"gauges": {"load_used_tokens": {"all": 60000, 5: 480000}}},
        {
            "gauges": {"load_used_tokens": {"all": 60000, 5: 480000}},
            "counters": {"scheduled_pairs": {"all": 3e7, 5: 2.4e8}},
        },
        {**FEW, "gauges": {"load_running_requests": 1, "load_used_tokens": {"all": 8000, 2: 222000}}},
    ],
    ids=["even", "nearly even", "held and not worked on", "named", "too few to compare"],
)
def test_nothing_is_told_to_be_chance_that_is_even_or_named(given: Mapping[str, Any]) -> None:
    assert find_chance(view(given)) is None


def test_where_nothing_counts_requests_the_page_says_so() -> None:
    gauges = {
        "load_running_requests": None,
        "load_waiting_requests": None,
        "load_used_tokens": {"all": 34000, 2: 70000},
    }
    counters = {"scheduled_pairs": {"all": 3.0e7, 2: 6.0e7}, "scheduled_tokens": None, "decode_tokens": None}
    said = diagnose_view(view({"gauges": gauges, "counters": counters}))
    (told,) = [item for item in said.abstentions if item.cause == "load.unknown"]
    assert told.reason.endswith("(2 ×), of how many requests, nothing tells: chance deals a few as unevenly")


def test_the_page_says_who_has_more_and_what_would_tell_more() -> None:
    said = diagnose_view(view(FEW))
    assert (said.status, said.findings) == ("inconclusive", ())
    assert said.headline.startswith("Load uneven, but not beyond chance; speed not visible: rank 2: ")
    (told,) = [item for item in said.abstentions if item.cause == "load.context"]
    assert "(6.53 ×), with 4 requests a rank: a long request can make as much" in told.reason
    assert told.lacked
    assert told.get_it_with is not None
