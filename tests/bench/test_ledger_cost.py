"""What a tick of the live ledgers costs, against the parser that it does without."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dprankdiag.harness.fake_engine import FakeEngine
from tests.bench.measure import weigh
from tests.bench.table import Figure
from tests.bench.ticks import RANKS, relabel

pytestmark = pytest.mark.bench

ENGINES = 40
TICKS = 5
ROOT = Path(__file__).resolve().parents[2]


def _run(*arguments: str) -> dict[str, float]:
    program = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv[0] = 'ticks'\n{RUN}"]
    told: dict[str, float] = json.loads(weigh([*program, *arguments]).output)
    return told


RUN = "import runpy; runpy.run_module('tests.bench.ticks', run_name='__main__')"


def test_a_tick_of_forty_engines_costs_little(fixtures: Path, tmp_path: Path, figures: list[Figure]) -> None:
    folder = fixtures / "sglang-0.5.23" / "prefill-on-one-rank"
    page, loads = (folder / "metrics_t1.prom").read_bytes(), (folder / "v1_loads_t1.json").read_bytes()
    pages = [relabel(page, node) for node in range(ENGINES)]
    for node, body in enumerate(pages):
        (tmp_path / f"{node:02}.prom").write_bytes(body)
    bodies = {f"/engine-{node}/metrics": body for node, body in enumerate(pages)}
    bodies |= {f"/engine-{node}/v1/loads": loads for node in range(ENGINES)}
    with FakeEngine(bodies) as server:
        tick = _run("poll", server.url, str(ENGINES), str(TICKS))
    parser = _run("parse", str(tmp_path), "3")
    size = f"{sum(map(len, pages)) / 1e6:.1f} MB"
    assert tick["told"] == 2 * ENGINES * RANKS
    how = f"`/metrics` and `/v1/loads` of {ENGINES} engines, {size}, over HTTP; median of {TICKS} after the first"
    faster = Figure(
        "CPU, pages through prometheus_client alone, against a tick",
        parser["cpu_s"] / tick["cpu_s"],
        3.0,
        "its text parser on the same pages, without HTTP; median of 3 after the first",
        at_least=True,
    )
    for figure in (Figure("CPU, live tick of 320 ranks", tick["cpu_s"], 1.0, how, unit="s"), faster):
        figures.append(figure)
        assert figure.holds, figure.row()
