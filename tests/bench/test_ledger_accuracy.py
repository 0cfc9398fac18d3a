"""How right verdicts on ledgers are: on two scrapes of drawn deployments, and poll by poll through hours and onsets.

Four quarters of an hour of a healthy day are followed: night, morning, peak and evening. `DPRANKDIAG_DAYS` says how
many whole days to follow in their place; one takes about an hour.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from dprankdiag.harness.ledger_days import DayScore, follow_day
from dprankdiag.harness.ledger_sampling import sample_ledger, sample_onset
from dprankdiag.harness.ledger_score import LedgerBoard, score_ledgers
from dprankdiag.harness.ledger_world import LedgerWorld, Restart
from dprankdiag.harness.ledger_worlds import LEDGER_WORLDS, day_world, ledger_truths, simulate_ledger
from tests.bench.accuracy import Mark, write_section
from tests.bench.table import Section
from tests.ledger_runs import Watcher, read_numbers

pytestmark = pytest.mark.bench

DRAWN, ONSETS = 120, 56
QUARTERS = (3.0, 9.0, 15.0, 21.0)
EXPECTED_MARKS = 9
CLEAR_GROWTH = 0.1
SOON_S = 10.0
INTRO = """Requests with sessions, a router, KV pools, steps in lockstep or alone, waits at step borders, gauges and
snapshots of some age."""


@pytest.fixture(scope="module")
def marks() -> Iterator[list[Mark]]:
    """What was measured; a whole run renews the page, and every run prints its part."""
    measured: list[Mark] = []
    yield measured
    print("\n" + "\n".join(mark.row() for mark in measured))
    if len(measured) == EXPECTED_MARKS:
        write_section(Section("Running engines", INTRO, (tabulate(measured),)))


def tabulate(marks: list[Mark]) -> str:
    """Write the table of the page."""
    return "\n".join(("| what | measured | bar | holds | how |", "|---|---|---|---|---|", *(it.row() for it in marks)))


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> LedgerBoard:
    worlds = {f"drawn-{seed}": sample_ledger(seed) for seed in range(DRAWN)} | LEDGER_WORLDS
    folder = tmp_path_factory.mktemp("ledgers")
    judged = score_ledgers(folder, worlds, (sys.executable, "-m", "dprankdiag"))
    print("\n" + judged.text())
    return judged


def test_two_scrapes_name_what_they_show(board: LedgerBoard, marks: list[Mark]) -> None:
    how = f"two scrapes 15 s apart of {DRAWN} drawn and {len(LEDGER_WORLDS)} named deployments"
    right = board.rights(CLEAR_GROWTH)
    marks += [
        Mark("class, macro-F1, steps 10 % longer", f"{board.class_score(CLEAR_GROWTH):.3f}", "≥ 0.98", how,
             board.class_score(CLEAR_GROWTH) >= 0.98),
        Mark("cause and ranks right, steps 10 % longer", str(right), "–", how, None),
        Mark("alarms where nothing shows", str(board.false_alarms()), "0", how, not board.false_alarms().hits),
        Mark("a rank without fault blamed", str(board.others_named()), "0", how, not board.others_named().hits),
    ]  # fmt: skip
    assert all(mark.holds is not False for mark in marks)


def test_healthy_hours_pass_without_a_word(marks: list[Mark]) -> None:
    days = int(os.environ.get("DPRANKDIAG_DAYS", "0"))
    worlds = [day_world(seed) for seed in range(1, days + 1)] or [_cut_day(hour) for hour in QUARTERS]
    scores = [follow_day(simulate_ledger(world), (), Watcher(read_numbers)) for world in worlds]
    print("\n" + "\n".join(score.text() for score in scores))
    found = sum(len(score.false) for score in scores)
    span = f"{days} d" if days else f"{len(QUARTERS)} × 15 min"
    how = "at one poll a second: a dead night, bursts, a crash and a restart at another size, lost polls"
    marks.append(Mark("false verdicts on healthy engines", f"{found} in {span}", "0", how, found == 0))
    assert found == 0


def _cut_day(hour: float) -> LedgerWorld:
    """Cut a quarter of an hour out of a healthy day, with a crash and a restart at another size in it."""
    restarts = (Restart(300.0, 45.0), Restart(600.0, 60.0, ranks=16))
    return replace(day_world(1), start_hour=hour, seconds=900.0, restarts=restarts)


def test_onsets_are_told_soon_and_for_good(marks: list[Mark]) -> None:
    scores = [_follow_onset(seed) for seed in range(ONSETS)]
    waits = [(true.cause, wait) for score in scores for true, wait in score.waits_s]
    print("\n" + "\n".join(score.text() for score in scores))
    named = sorted(wait for _, wait in waits if wait is not None)
    within = sum(wait <= SOON_S for wait in named)
    flaps, false = sum(score.flaps for score in scores), sum(len(score.false) for score in scores)
    how = f"{ONSETS} onsets of seven kinds at one poll a second, from when the fault shows"
    middle = f"{named[len(named) // 2]:.0f} s" if named else "–"
    marks += [
        Mark(f"named within {SOON_S:.0f} s", f"{within}/{len(waits)}", "≥ 95 %", how, within >= 0.95 * len(waits)),
        Mark("onset to verdict, median", middle, "–", how, None),
        Mark("verdicts that went away too early", str(flaps), "0", how, flaps == 0),
        Mark("false verdicts around onsets", str(false), "0", how, false == 0),
    ]
    assert all(mark.holds is not False for mark in marks[-4:])


def _follow_onset(seed: int) -> DayScore:
    world = sample_onset(seed)
    return follow_day(simulate_ledger(world), ledger_truths(world), Watcher(read_numbers))
