"""Thirty healthy days, polled as production is scraped: not a word in all of them.

About half an hour of one core. `DPRANKDIAG_SCORED` names a folder in which days are kept, so that a stopped run goes
on; without it they pass.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.harness.ledger_days import follow_day
from dprankdiag.harness.ledger_worlds import day_world, simulate_ledger
from tests.bench.accuracy import Mark, write_section
from tests.bench.table import Section
from tests.ledger_runs import Live, read_numbers

pytestmark = pytest.mark.bench

DAYS, INTERVAL_S = 30, 15.0
INTRO = """Days of a deployment at one poll every 15 s, judged as `watch` does: a dead night, bursts, lost polls, a
crash, a restart at another size. Nothing is wrong in any of them."""


def test_thirty_healthy_days_pass_without_a_word(tmp_path: Path) -> None:
    folder = Path(os.environ.get("DPRANKDIAG_SCORED", tmp_path)) / "days"
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(2, get_context("spawn")) as workers:
        days = list(workers.map(partial(keep_day, folder), range(1, DAYS + 1)))
    polls, false = sum(day["polls"] for day in days), [line for day in days for line in day["false"]]
    mark = Mark("false verdicts on healthy engines", f"{len(false)} in {DAYS} d", "0", f"{polls:,} polls", not false)
    table = "\n".join(("| what | measured | bar | holds | how |", "|---|---|---|---|---|", mark.row()))
    print("\n" + table)
    write_section(Section("Healthy days", INTRO, (table,)))
    assert false == []


def keep_day(folder: Path, seed: int) -> dict[str, Any]:
    """Follow a day, or take what was kept of it."""
    kept = folder / f"{seed}.json"
    if not kept.exists():
        kept.write_text(json.dumps(follow_one(seed)), "utf-8")
    found: dict[str, Any] = json.loads(kept.read_text("utf-8"))
    return found


def follow_one(seed: int) -> dict[str, Any]:
    """Follow a day with the judge of `watch`."""
    world = replace(day_world(seed), interval_s=INTERVAL_S, slice_s=5.0)
    score = follow_day(simulate_ledger(world), (), Live(read_numbers, 3 * INTERVAL_S))
    false = [f"day {seed}: {it.named[0]} {list(it.named[1])} at {it.start_s:.0f} s" for it in score.false]
    return {"polls": score.polls, "false": false}
