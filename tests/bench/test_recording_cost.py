"""What a recording costs: bytes for each rank and tick, and time against the ticks it keeps."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from dprankdiag.catalog.ledger import load_fields
from dprankdiag.model.ledgers import FloatArray, LedgerAnswer
from dprankdiag.store.recorder import Recorder
from tests.bench.table import Figure

pytestmark = pytest.mark.bench

RANKS, TICKS = 8, 1000
METRICS_FIELDS, LOAD_FIELDS = 36, 15
"""Fields that SGLang 0.5.23 tells of a rank on /metrics and in /v1/loads."""


def _make_answer(interface: str, names: list[str], tick: int, random: np.random.Generator) -> LedgerAnswer:
    """Make an answer whose counters have grown for as long as an engine that has run for a day."""
    fields = load_fields()
    values: dict[str, FloatArray] = {}
    for name in names:
        size = 1e7 + 1e3 * tick if fields[name].kind == "counter" else 100.0
        drawn = size * (1 + 0.1 * random.random(RANKS))
        values[name] = drawn if fields[name].unit in ("s", "ratio") else np.round(drawn)
    return LedgerAnswer(interface, "http://a:30000", "sglang", "m", ranks=tuple(range(RANKS)), values=values)


def test_a_day_of_a_rank_fits_in_a_few_dozen_megabytes(tmp_path: Path, figures: list[Figure]) -> None:
    path, random = tmp_path / "a.dprec", np.random.default_rng(1)
    loads = [name for name in load_fields() if name.startswith("load_")][:LOAD_FIELDS]
    told = [name for name in load_fields() if not name.startswith(("load_", "pass_"))][:METRICS_FIELDS]
    spent_s = 0.0
    with Recorder(path) as recorder:
        for tick in range(TICKS):
            answers = [
                _make_answer(interface, names, tick, random)
                for interface, names in (("sglang-metrics", told), ("sglang-loads", loads))
            ]
            began_s = time.process_time()
            recorder.write(answers, tick * 10**9)
            spent_s += time.process_time() - began_s
    how = f"`record`: {METRICS_FIELDS} numbers of /metrics and {LOAD_FIELDS} of /v1/loads; {RANKS} ranks, {TICKS} ticks"
    each = path.stat().st_size / RANKS / TICKS
    figure = Figure("recording, a rank and tick", each, 512, how, unit="bytes")
    figures.append(figure)
    assert figure.holds, figure.row()
    cost = Figure("CPU of recording, a rank and tick", 1e6 * spent_s / RANKS / TICKS, 1000, how, unit="µs")
    figures.append(cost)
    assert cost.holds, cost.row()
