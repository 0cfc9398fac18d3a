"""The product's judgement of simulated deployments, poll by poll, from their pages and from their numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.harness.ledger_days import follow_day
from dprankdiag.harness.ledger_worlds import LEDGER_WORLDS, ledger_truths, simulate_ledger
from dprankdiag.model.ledgers import LedgerAnswer
from tests.ledger_runs import Live, Watcher, read_numbers, read_pages


def by_interface(answers: list[LedgerAnswer]) -> dict[str, LedgerAnswer]:
    return {answer.interface: answer for answer in answers}


@pytest.mark.parametrize("name", ["requests", "host", "healthy_almost_nobody", "kv_pressure", "idle_but_one"])
def test_numbers_and_pages_say_the_same(name: str) -> None:
    """The short way of long runs leaves nothing out and adds nothing."""
    ticks = list(simulate_ledger(replace(LEDGER_WORLDS[name], seconds=60.0)))
    for tick in ticks[::12]:
        short, long = by_interface(list(read_numbers(tick))), by_interface(read_pages(tick))
        assert set(short) == set(long)
        for interface, answer in short.items():
            assert answer.ranks == long[interface].ranks
            for field, values in answer.values.items():
                told = long[interface].values.get(field, np.full(len(values), np.nan))
                np.testing.assert_allclose(
                    np.nan_to_num(values), np.nan_to_num(told), rtol=1e-4, atol=1e-3, err_msg=f"{name}: {field}"
                )


@pytest.mark.parametrize("name", ["healthy", "healthy_almost_nobody", "healthy_restart", "healthy_small_counts", "gpu"])
def test_nobody_is_named_where_nothing_shows(name: str) -> None:
    world = LEDGER_WORLDS[name]
    score = follow_day(simulate_ledger(world), ledger_truths(world), Watcher(read_numbers))
    assert score.false == (), score.text()


@pytest.mark.parametrize("name", ["requests_onset", "stale", "host"])
def test_a_fault_is_named_once_and_for_good(name: str) -> None:
    world = LEDGER_WORLDS[name]
    score = follow_day(simulate_ledger(world), ledger_truths(world), Live())
    assert [wait is not None for _, wait in score.waits_s] == [True], score.text()
    assert score.flaps == 0, score.text()
