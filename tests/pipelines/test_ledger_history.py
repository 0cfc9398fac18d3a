"""What each rank told over time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dprankdiag.harness.ledger_worlds import LEDGER_WORLDS, simulate_ledger
from dprankdiag.model.ledger_results import LEDGER_HISTORY
from dprankdiag.model.ledgers import Ledger
from dprankdiag.pipelines.ledger_history import MOST_MOMENTS, tabulate_history
from dprankdiag.pipelines.live import join_live
from tests.ledger_runs import read_numbers


def make_ledgers(seconds: float) -> list[Ledger]:
    world = replace(LEDGER_WORLDS["host"], seconds=seconds, interval_s=1.0)
    answers = [
        replace(answer, where=f"http://engine/{answer.where}")
        for tick in simulate_ledger(world)
        for answer in read_numbers(tick)
    ]
    return join_live(answers)


def test_every_moment_has_a_row_a_rank() -> None:
    (ledger,) = make_ledgers(40.0)
    rows = tabulate_history([ledger])[LEDGER_HISTORY.name]
    assert len(np.unique(rows["at_ns"])) == ledger.n_moments - 1
    assert rows["at_ns"].min() > (ledger.start_ns or 0)
    late, others = rows["rank"] == 6, rows["rank"] != 6
    assert np.nanmean(rows["border_wait_ns"][late]) < 0.2 * np.nanmean(rows["border_wait_ns"][others])


def test_of_a_long_recording_every_so_many_moments_are_kept() -> None:
    (ledger,) = make_ledgers(1300.0)
    rows = tabulate_history([ledger])[LEDGER_HISTORY.name]
    moments = np.unique(rows["at_ns"])
    assert MOST_MOMENTS / 2 < len(moments) <= MOST_MOMENTS
    assert len(set(np.diff(moments).tolist())) <= 2


def test_two_moments_and_ledgers_without_times_have_no_history() -> None:
    (ledger,) = make_ledgers(40.0)
    assert tabulate_history([replace(ledger, start_ns=None)]) == {}
    assert tabulate_history(make_ledgers(3.0)) == {}
