from __future__ import annotations

from itertools import pairwise

import pytest

from dprankdiag.catalog.engine_series import Kind, by_name, load_series
from dprankdiag.catalog.ledger import load_fields

KINDS: tuple[Kind, ...] = ("sglang", "vllm", "sglang_loads")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_fill_fields_of_the_ledger(kind: Kind) -> None:
    rows = load_series(kind)
    known = load_fields()
    assert {row.field for row in rows} <= set(known)
    assert [row.index for row in rows] == list(range(len(rows)))
    assert all(row.source for row in rows)
    assert all(row.field.startswith("load_") == (kind == "sglang_loads") for row in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_rows_say_the_same(kind: Kind) -> None:
    rows = load_series(kind)
    said = [(row.field, row.parts, sorted(row.labels.items())) for row in rows]
    assert all(said.count(one) == 1 for one in said)


def test_every_field_that_is_not_of_messages_is_told_by_some_engine() -> None:
    told = {row.field for kind in KINDS for row in load_series(kind)}
    untold = {name for name in load_fields() if not name.startswith("pass_")} - told
    assert untold == set()


def test_counters_are_known_with_and_without_their_ending() -> None:
    rows = by_name(load_series("vllm"))
    assert rows["num_preemptions"] == rows["num_preemptions_total"]
    assert "kv_cache_usage_perc_total" not in rows
    assert "iteration_tokens_total_sum_total" not in rows


def test_newer_names_come_first() -> None:
    fields = [row.field for row in load_series("vllm")]
    rows = {row.field: [one for one in load_series("vllm") if one.field == row.field] for row in load_series("vllm")}
    assert fields
    for same in rows.values():
        assert all(not newer.until and older.until for newer, older in pairwise(same))


def test_conditions_are_met_by_all_their_labels() -> None:
    (row,) = [row for row in load_series("sglang") if row.field == "cache_hit_tokens"]
    assert row.takes({"mode": "host_hit", "dp_rank": "0"})
    assert not row.takes({"mode": "input"})
    assert not row.takes({})
