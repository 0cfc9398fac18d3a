"""What it costs to join the digests of a large cell, and that nothing is lost in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import commands
from tests.bench.measure import weigh
from tests.bench.table import Figure

pytestmark = pytest.mark.bench

RANKS, STEPS, LAYERS = 512, 1000, 8


def test_512_ranks_and_1000_steps_are_joined_in_half_a_minute(tmp_path: Path, figures: list[Figure]) -> None:
    size = list(map(str, (RANKS, STEPS, LAYERS)))
    subprocess.run([sys.executable, "-m", "tests.bench.digests", str(tmp_path), *size], check=True)
    bundles = sorted(tmp_path.glob("*.dprank"))
    assert len(bundles) == RANKS // 8
    weight = weigh(commands.analyze(tmp_path))
    told = json.loads(weight.output)
    (finding,) = told["findings"]
    assert (finding["ranks"], finding["severity"]) == ([RANKS * 2 // 3], "critical")
    assert len(told["ranks"]) == RANKS
    assert told["time"]["steps"] == STEPS - 1
    assert told["time"]["matched_ratio"] == 1.0
    how = f"`analyze` of {len(bundles)} bundles, {RANKS} ranks × {STEPS:,} steps × {2 * LAYERS} meetings; once"
    per_step = sum(path.stat().st_size for path in bundles) / RANKS / STEPS
    found = (
        Figure("wall, digests of 64 nodes to verdict", weight.wall_s, 30.0, how, unit="s"),
        Figure("memory, digests of 64 nodes to verdict", weight.peak_bytes / 2**30, 6.0, how, unit="GiB"),
        Figure("digest, a rank and step", per_step, 3000.0, how, unit="bytes"),
    )
    figures.extend(found)
    for figure in found:
        assert figure.holds, figure.row()
