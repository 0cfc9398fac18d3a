"""A record of ledgers as a file: read back as it was, refused in words where it is something else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.dispatches import (
    KIND,
    SCHEMA_VERSION,
    Belief,
    Dispatch,
    LedgerRecord,
    LedgerRun,
    LedgerTotals,
    Line,
    RankLoad,
    Track,
)
from dprankdiag.store.ledger_record import is_ledger_record, load_ledgers, pack_ledgers, parse_ledgers, save_ledgers

BELIEF = Belief(2, "policy", 7, None, 34_000_000, -1, None, 0, 1.0)
DISPATCH = Dispatch(3_000_000_000, 64, None, 0, 2, None, BELIEF, RankLoad(7, 1, 34_765, 4_000, 8))
TOTALS = LedgerTotals("controller", "requests", 1, 0, 34_000_000, 34_000_000, 1, 1, None, None, 1, 1, 1.0)
TRACK = Track("controller", 0, 2, "requests", Line((3_000_000_000,), (None,)), Line((0, 5), (0, 8)), (3_000_000_000,))
RECORD = LedgerRecord(
    KIND, SCHEMA_VERSION, "one", "", "", "", (LedgerRun("now", "controller", 0.12, (TOTALS,), (DISPATCH,), (TRACK,)),)
)

FIELDS = {
    LedgerRecord: "kind schema_version name title why cure runs",
    LedgerRun: "name router waiting_ratio totals dispatches tracks",
    LedgerTotals: (
        "ledger compares choices demanded median_age_ns worst_age_ns median_requests_error worst_requests_error "
        "median_tokens_error worst_tokens_error judged otherwise regret"
    ),
    Dispatch: "time_ns request role worker rank gateway router scheduler",
    Belief: "chosen reason requests tokens age_ns requests_error tokens_error better regret",
    RankLoad: "running waiting tokens uncached_tokens requests",
    Track: "ledger worker choice measure believed true chosen_ns",
    Line: "time_ns value",
}
"""What is published under schema version 1; new fields may come, these stay."""


def test_a_record_is_read_back_as_it_was(tmp_path: Path) -> None:
    save_ledgers(tmp_path / "one.json", RECORD)
    assert is_ledger_record(tmp_path / "one.json")
    assert load_ledgers(tmp_path / "one.json") == RECORD


def test_what_is_not_known_is_null_and_moments_are_whole_numbers() -> None:
    (run,) = json.loads(pack_ledgers(RECORD))["runs"]
    (dispatch,) = run["dispatches"]
    assert dispatch["gateway"] is None
    assert dispatch["router"]["tokens"] is None
    assert run["tracks"][0]["believed"]["value"] == [None]
    assert isinstance(dispatch["time_ns"], int)


@pytest.mark.parametrize("value, fields", FIELDS.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_published_fields_stay_while_the_version_does(value: Any, fields: str) -> None:
    assert SCHEMA_VERSION == 1
    assert [field.name for field in dataclasses.fields(value)][: len(fields.split())] == fields.split()


@pytest.mark.parametrize(
    "change, words",
    [
        ({"schema_version": 2}, "schema version 2, expected 1"),
        ({"runs": [{}]}, "missing required field"),
        ({"runs": None}, "not a record of ledgers"),
    ],
)
def test_another_document_is_refused_in_words(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_ledgers(json.dumps(json.loads(pack_ledgers(RECORD)) | change).encode())


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff"], ids=["empty", "cut", "deep", "no text"])
def test_a_damaged_file_is_refused(content: bytes) -> None:
    with pytest.raises(DamagedInput, match="not JSON"):
        parse_ledgers(content)


def test_other_files_are_no_records(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"schema_version": 1}')
    assert not is_ledger_record(tmp_path / "other.json")
    assert not is_ledger_record(tmp_path)
    assert not is_ledger_record(tmp_path / "absent.json")
    with pytest.raises(InputError, match="cannot be read"):
        load_ledgers(tmp_path / "absent.json")
