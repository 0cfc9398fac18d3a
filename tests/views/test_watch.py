from __future__ import annotations

import json
from typing import Any

import numpy as np

from dprankdiag.model.ledger_results import LEDGER_RANKS
from dprankdiag.model.ledgers import NoData
from dprankdiag.views.watch import render_block, render_line, render_screen
from tests import builders

AT_NS = 1_764_000_000 * 10**9
FAILED = (NoData("sglang-loads", "http://a/v1/loads\x1b[2J", AT_NS, "no answer in time"),)


def _tables(ranks: int = 8, **columns: Any) -> dict[str, Any]:
    table = LEDGER_RANKS.empty()
    for column in LEDGER_RANKS.columns:
        table[column.name] = np.full(ranks, np.nan, "float64")
    table["engine"] = np.array(["default"] * ranks, object)
    table["rank"] = np.arange(ranks, dtype=np.int32)
    return {LEDGER_RANKS.name: LEDGER_RANKS.check(table | {name: np.array(values) for name, values in columns.items()})}


def test_the_screen_begins_with_the_verdict_and_has_a_row_a_rank() -> None:
    diagnosis = builders.diagnosis()
    (finding, *_) = diagnosis.findings
    tables = _tables(running_requests=np.arange(8.0), idle_share_ratio=[0, 0, 1, 0, 0, 0, 0, 0.0])
    lines = render_screen(diagnosis, tables, FAILED, AT_NS).splitlines()
    assert lines[0].startswith(diagnosis.headline[:40])
    assert any(line.startswith("status: findings") for line in lines)
    firsts = {line: line.strip("* ").split(" ")[0] for line in lines}
    rows = {int(first): line for line, first in firsts.items() if first.isdigit()}
    assert set(rows) == set(range(8))
    assert rows[finding.ranks[0]].rstrip().endswith(finding.cause)
    assert rows[2].rstrip().endswith("idle")
    text = "\n".join(lines)
    assert "http://a/v1/loads\\x1b[2J: no answer in time" in text
    assert finding.evidence[0].text.split(" ")[0] in text


def test_of_many_ranks_the_screen_shows_what_fits() -> None:
    text = render_screen(builders.diagnosis(), _tables(64, running_requests=np.arange(64.0)), (), AT_NS, height=24)
    assert "and 52 more" in text
    assert "2025-11-24T16:00:00Z" in text


def test_a_block_is_a_line_and_one_for_each_finding_and_failure() -> None:
    lines = render_block(builders.diagnosis(), FAILED, AT_NS).splitlines()
    assert lines[0].startswith("2025-11-24T16:00:00Z findings: ")
    assert len(lines) == 1 + len(builders.diagnosis().findings) + 1
    assert lines[-1] == "  no data: http://a/v1/loads\\x1b[2J: no answer in time"


def test_a_line_is_the_published_diagnosis() -> None:
    line = render_line(builders.diagnosis())
    assert line.count("\n") == 1
    assert line.isascii()
    assert json.loads(line)["status"] == "findings"
