"""What a ledger shows of each rank: who works, who is idle, who is gone, and what cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dprankdiag.analysis.ledger_loads import find_load
from dprankdiag.analysis.ledger_presence import find_gone, find_missing
from dprankdiag.analysis.ledger_view import LedgerView, view_ledger
from dprankdiag.analysis.ledger_window import LedgerWindow
from dprankdiag.model.ledgers import Ledger
from tests.ledgers import build_ledger

NAN = float("nan")


def view(given: Mapping[str, Any] | Ledger, expect_ranks: int | None = None) -> LedgerView:
    ledger = given if isinstance(given, Ledger) else build_ledger(given)
    return view_ledger(LedgerWindow(ledger, 0, ledger.n_moments - 1), expect_ranks)


def silence(ledger: Ledger, rank: int, first: int) -> Ledger:
    """Let a rank tell nothing from a moment on."""
    values = {name: table.copy() for name, table in ledger.values.items()}
    for table in values.values():
        table[first:, rank] = NAN
    return replace(ledger, values=values)


def kind_of(given: Mapping[str, Any]) -> str | None:
    found = find_load(view(given))
    return None if found is None else found.kind


def test_even_ranks_have_nothing_that_stands_out() -> None:
    seen = view({})
    assert (seen.reason, seen.missing, find_load(seen)) == (None, (), None)
    assert seen.moving.all()
    assert not seen.frozen.any()
    assert seen.ranks == tuple(range(8))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"ranks": 1}, "only one rank is shown"),
        ({"unlabelled": True, "ranks": 1}, "no rank label"),
        ({"unlabelled": True, "ranks": 0}, "no rank label"),
        ({"ranks": 0}, "no answer tells a number of any rank"),
        ({"only": True, "gauges": {"load_running_requests": 0}}, "no rank has had any work"),
        ({"only": True, "counters": {"decode_tokens": 0}}, "no rank has had any work"),
        ({"only": True, "counters": {"active_steps": 0, "idle_steps": 0}, "moments": 1}, "no rank has had any work"),
    ],
)
def test_what_cannot_be_compared_says_why(given: Mapping[str, Any], reason: str) -> None:
    seen = view(given)
    assert seen.reason is not None
    assert reason in seen.reason
    assert find_load(seen) is None


def test_swinging_counters_are_compared_by_nobody() -> None:
    seen = view(replace(build_ledger({"gauges": {"load_running_requests": {"all": 20, 3: 90}}}), swinging=True))
    assert seen.reason is not None
    assert "several processes answer in turn" in seen.reason
    assert find_load(seen) is None


def test_ranks_are_missing_by_their_numbers_by_the_engines_word_or_the_users() -> None:
    ledger = build_ledger({"ranks": 4})
    assert find_missing(ledger) == ()
    assert find_missing(ledger, 6) == (4, 5)
    assert find_missing(replace(ledger, facts={"num_dp_ranks": 5})) == (4,)
    assert find_missing(replace(ledger, ranks=(0, 1, 3, 4))) == (2,)
    assert find_missing(replace(ledger, ranks=(4, 5, 7, 8))) == (6,)
    assert find_missing(replace(ledger, ranks=(4, 5, 6, 7)), 8) == (0, 1, 2, 3)
    assert find_missing(replace(ledger, facts={"num_dp_ranks": "many"})) == ()


def test_a_rank_that_tells_nothing_at_the_end_is_gone() -> None:
    two = build_ledger({})
    assert find_gone(LedgerWindow(silence(two, 3, 1), 0, 1)) == (3,)
    assert find_gone(LedgerWindow(two, 0, 1)) == ()
    assert view(silence(two, 3, 1)).missing == (3,)
    many = build_ledger({"moments": 12})
    assert find_gone(LedgerWindow(silence(many, 3, 9), 0, 11)) == (3,)
    assert find_gone(LedgerWindow(silence(many, 3, 11), 0, 11)) == (), "one poll may fail"
    assert find_gone(LedgerWindow(silence(many, 3, 0), 0, 11)) == (), "it never told"


def test_a_moment_at_which_nobody_tells_says_nothing_of_any_rank() -> None:
    ledger = build_ledger({})
    for rank in range(8):
        ledger = silence(ledger, rank, 1)
    assert find_gone(LedgerWindow(ledger, 0, 1)) == ()


def test_the_load_of_a_rank_that_is_gone_is_not_even() -> None:
    busy = build_ledger(
        {
            "gauges": {"load_running_requests": {"all": 24, 3: 90}, "load_used_tokens": {"all": 60000, 3: 240000}},
            "counters": {"scheduled_pairs": {"all": 3e7, 3: 1.2e8}},
        }
    )
    found = find_load(view(silence(busy, 3, 1)))
    assert found is not None
    assert (found.kind, list(np.flatnonzero(found.mask))) == ("requests", [3])


def test_a_rank_that_does_not_tell_is_not_among_the_busy_ones() -> None:
    ledger = build_ledger(
        {
            "gauges": {"load_running_requests": {"all": 0, 2: 40}, "load_used_tokens": {"all": 0, 2: 150000}},
            "counters": {
                "active_steps": {"all": 0, 2: 500},
                "idle_steps": {"all": 500, 2: 0},
                "scheduled_pairs": {"all": 0, 2: 7e7},
                "scheduled_tokens": {"all": 0, 2: 20000},
                "decode_tokens": {"all": 0, 2: 20000},
            },
        }
    )
    found = find_load(view(silence(ledger, 5, 1)))
    assert found is not None
    assert (found.kind, list(np.flatnonzero(found.mask))) == ("idle", [2])


def test_nearly_idle_ranks_with_as_little_work_are_not_told_apart() -> None:
    """With few requests every rank is without any in about half of the steps."""
    steps = {str(rank): 260 - 5 * rank for rank in range(8)}
    idle = {rank: 500 - active for rank, active in steps.items()}
    given = {
        "gauges": {"load_running_requests": 1, "load_used_tokens": 2000},
        "counters": {"active_steps": {"all": 0, **steps}, "idle_steps": {"all": 0, **idle}, "admitted_requests": 200},
    }
    assert kind_of(given) is None


def test_gauges_of_a_rank_whose_counters_stand_still_are_left_over() -> None:
    given = {
        "only": True,
        "gauges": {"running_requests": {"all": 30, 6: 44}, "used_tokens": 50000},
        "counters": {"decode_tokens": {"all": 12000, 6: 0}},
    }
    seen = view(given)
    assert list(np.flatnonzero(seen.frozen)) == [6]
    assert seen.running is not None
    assert seen.running.values[6] == 0


def test_gauges_are_not_left_over_because_the_snapshots_stopped() -> None:
    given = {
        "only": True,
        "gauges": {"running_requests": 30, "load_stamp_s": {"all": NAN, 6: 100.0}},
        "counters": {"load_decode_steps": {"all": 500, 6: 0}},
    }
    assert not view(given).frozen.any()


def test_a_rank_that_restarted_is_neither_idle_nor_compared() -> None:
    ledger = build_ledger({"counters": {"prefill_tokens": 20000}})
    restarted = ledger.restarted.copy()
    restarted[1, 2] = True
    values = {name: table.copy() for name, table in ledger.values.items()}
    for name in ("scheduled_tokens", "scheduled_pairs", "decode_tokens", "prefill_tokens", "active_steps"):
        values[name][1, 2] = 1.0
    seen = view(replace(ledger, values=values, restarted=restarted))
    assert seen.moving.all()
    assert not seen.frozen.any()
    assert find_load(seen) is None
    assert seen.work is not None
    assert np.isnan(seen.work.values[2])


@pytest.mark.parametrize(
    ("gauges", "kind"),
    [
        ({"load_running_requests": {"all": 0, 2: 40}, "load_used_tokens": {"all": 0, 2: 150000}}, "requests"),
        ({"load_running_requests": {"all": 24, 2: 25}, "load_used_tokens": {"all": 60000, 2: 600000}}, "context"),
        ({"load_running_requests": {"all": 24, 2: 96}, "load_used_tokens": {"all": 60000, 2: 240000}}, "requests"),
        ({"load_running_requests": {"all": 24, 2: 30}, "load_used_tokens": {"all": 60000, 2: 600000}}, "context"),
        ({"load_running_requests": {"all": 24, 2: None}, "load_used_tokens": {"all": 60000, 2: 600000}}, "unknown"),
        ({"load_running_requests": {"all": 1, 2: 1}, "load_used_tokens": {"all": 2000, 2: 90000}}, None),
    ],
)
def test_one_moment_of_gauges_tells_the_kind_of_load(gauges: Mapping[str, Any], kind: str | None) -> None:
    assert kind_of({"only": True, "moments": 1, "gauges": gauges}) == kind


def test_pools_of_unequal_size_are_compared_by_tokens() -> None:
    """The same share of a pool of a third is a third of the work."""
    given = {
        "only": True,
        "moments": 1,
        "gauges": {
            "running_requests": 24,
            "kv_usage_ratio": {"all": 0.3, 2: 0.9},
            "capacity_tokens": {"all": 300000, 2: 100000},
        },
    }
    assert kind_of(given) is None
    seen = view(given)
    assert seen.held is not None
    assert seen.held.source == "used_tokens"


def test_more_prompts_on_a_rank_are_a_prefill_load_and_hits_alike_no_cache() -> None:
    counters = {"prefill_tokens": {"all": 20000, 1: 400000}, "cached_tokens": {"all": 10000, 1: 200000}}
    assert kind_of({"counters": {**counters, "admitted_requests": 40}}) == "prefill"
    counters = {"prefill_tokens": {"all": 40000, 1: 240000}, "cached_tokens": {"all": 210000, 1: 10000}}
    assert kind_of({"counters": {**counters, "admitted_requests": 60}}) == "cache"


@pytest.mark.parametrize("factor", [0.5, 2.0, 10.0])
def test_seconds_do_not_change_who_is_named(factor: float) -> None:
    given = {
        "gauges": {"load_running_requests": {"all": 24, 3: 90}, "load_used_tokens": {"all": 60000, 3: 240000}},
        "counters": {"scheduled_pairs": {"all": 3e7, 3: 1.2e8}},
    }
    assert kind_of({**given, "seconds": 15.0 * factor}) == kind_of({**given, "seconds": None}) == "requests"
