from __future__ import annotations

import json
from dataclasses import replace

from dprankdiag.model.checkup import Check, Checkup, Interface, Judgeable
from dprankdiag.views.checkup import render_json, render_text

CHECKUP = Checkup(
    target="http://a:30000",
    engine="sglang",
    version="0.5.23",
    model="a\x1b[31mmodel",
    ranks=(0, 1, 2, 3, 4, 6, 7),
    expected_ranks=8,
    missing_ranks=(5,),
    interfaces=(
        Interface("sglang-metrics", "http://a:30000/metrics", "answered", 0.012, (0, 1, 2, 3, 4, 6, 7)),
        Interface("sglang-server-info", "http://a:30000/server_info", "slow", 5.0, None, "no answer in time"),
    ),
    checks=(
        Check("ranks-missing", "problem", "7 of 8 ranks.", "It may be the one.", "Give every node.", "a release"),
        Check("keeps-step", "ok", "All keep step.", "So they wait.", "", "a release"),
    ),
    causes=(
        Judgeable("load.requests", "can", "running requests", None),
        Judgeable("load.context", "needs", "pairs (not told: scheduled_pairs)", "SWITCH=1"),
        Judgeable("single_point.gpu", "cannot", "no number shows it", "nsys profile"),
    ),
    facts={"dp_size": 8},
)


def test_the_page_says_what_it_is_what_is_wrong_and_what_can_be_judged() -> None:
    text = render_text([CHECKUP])
    lines = text.splitlines()
    assert lines[0].startswith("http://a:30000: SGLang 0.5.23, a\\x1b[31mmodel, 7 of 8 DP ranks")
    assert lines[1] == "1 problem | 0 missing | 0 notes | 1 of 3 causes can be judged"
    for part in ("0-4, 6, 7", "no answer in time", "5.00 s", "Give every node.", "SWITCH=1", "nsys profile"):
        assert part in text
    order = [
        text.index(heading) for heading in ("Interfaces", "Problems", "As it should be", "Can be judged", "Needs more")
    ]
    assert order == sorted(order)


def test_levels_without_a_check_have_no_heading() -> None:
    assert "Missing" not in render_text([CHECKUP])


def test_a_target_that_gave_nothing_says_so() -> None:
    silent = replace(
        CHECKUP,
        engine=None,
        interfaces=(Interface("sglang-metrics", "http://a", "unreachable", 0.1, None, "cannot be reached"),),
        checks=(),
        causes=(),
    )
    assert "http://a:30000: nothing answered" in render_text([silent])


def test_versions_are_on_the_page_only_where_they_are_asked_for() -> None:
    assert "Versions" not in render_text([CHECKUP])
    assert "3.11.7" in render_text([CHECKUP], {"Python": "3.11.7"})


def test_the_object_has_all_of_it() -> None:
    document = json.loads(render_json([CHECKUP], {"Python": "3.11.7"}))
    (target,) = document["targets"]
    assert target["missing_ranks"] == [5]
    assert target["is_reached"] is True
    assert [one["status"] for one in target["interfaces"]] == ["answered", "slow"]
    assert document["versions"] == {"Python": "3.11.7"}
