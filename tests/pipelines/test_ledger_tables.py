"""The table of what each rank told: one row a rank, absent numbers absent."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.model.ledger_results import LEDGER_RANKS
from dprankdiag.pipelines.ledger_tables import tabulate_ledgers
from dprankdiag.pipelines.ledgers import view_whole
from tests.ledgers import build_ledger


def test_there_is_a_row_a_rank_of_every_engine() -> None:
    one = build_ledger({})
    tables = tabulate_ledgers([view_whole(one), view_whole(build_ledger({"ranks": 3, "engine": "vllm"}))])
    table = tables[LEDGER_RANKS.name]
    assert table["rank"].tolist() == [*range(8), *range(3)]
    assert LEDGER_RANKS.check(table) is not None


def test_numbers_that_are_not_told_are_absent_and_never_zero() -> None:
    table = tabulate_ledgers([view_whole(build_ledger({"only": True, "gauges": {"running_requests": 5}}))])
    columns = table[LEDGER_RANKS.name]
    assert columns["running_requests"].tolist() == [5.0] * 8
    for name in set(columns) - {"engine", "rank", "running_requests"}:
        assert np.isnan(columns[name].astype(float)).all(), name


def test_waits_and_ages_are_in_nanoseconds() -> None:
    given = {"gauges": {"load_stamp_s": {"all": 100.0, 2: 90.0}}}
    columns = tabulate_ledgers([view_whole(build_ledger(given))])[LEDGER_RANKS.name]
    assert columns["border_wait_ns"][0] == pytest.approx(700_000)
    assert columns["snapshot_age_ns"][2] == pytest.approx(10e9)


def test_without_ranks_there_is_no_table() -> None:
    assert tabulate_ledgers([view_whole(build_ledger({"ranks": 0}))]) == {}
    assert tabulate_ledgers([]) == {}
