"""What stops the snapshots of all ranks is told by whether their counters go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dprankdiag.classifiers.ledger_stale import LedgerStale
from dprankdiag.model.claims import UntimedClaim
from dprankdiag.pipelines.ledgers import view_whole
from tests.ledgers import BUSY, build_ledger

STILL: Mapping[str, Any] = dict.fromkeys(BUSY["counters"], 0)
UNTOLD: Mapping[str, Any] = dict.fromkeys(BUSY["counters"])


@pytest.mark.parametrize(
    ("counters", "says", "hangs"),
    [
        ({}, "counters tell 500 steps meanwhile, so that what publishes the loads has stopped", False),
        ({**UNTOLD, "decode_tokens": 90}, "what publishes the loads has stopped, or a scheduler hangs since", False),
        (STILL, "counters of their work stand still as well", True),
        (UNTOLD, "counters of work, which /metrics has, are not told", True),
    ],
    ids=["steps go on", "tokens came", "work stands still", "nothing tells"],
)
def test_snapshots_that_all_stop_mean_a_hang_only_if_no_counter_grows(
    counters: Mapping[str, Any], says: str, hangs: bool
) -> None:
    ledger = build_ledger({"counters": {**counters, "load_stamp_s": 0}})
    (claim,) = LedgerStale().judge_ledger(view_whole(ledger))
    assert isinstance(claim, UntimedClaim)
    assert claim.ranks == ()
    assert claim.summary.startswith("no rank has published its load for 15 s: ")
    assert says in claim.summary
    assert ("hung scheduler" in claim.summary) == hangs
    assert ("a single step that takes as long" in claim.summary) == hangs
