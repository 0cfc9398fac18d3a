"""What the replay of a recording without a fault costs."""

from __future__ import annotations

import statistics
import time

import numpy as np
import pytest

from dprankdiag.model.claims import Claim, Undo
from dprankdiag.simulate.counterfactual import share_losses
from tests.analysis.builders import draw_components, on, run_grid
from tests.bench.table import Figure

pytestmark = pytest.mark.bench

STEPS, RANKS, LAYERS = 1_000, 16, 50
ROUNDS = 5


def test_a_hundred_thousand_meetings_are_replayed_in_well_under_a_second(figures: list[Figure]) -> None:
    parts = draw_components(STEPS, RANKS, factor={"attention": on(3, 2.0, RANKS)}, noise=0.05, layers=LAYERS)
    grid = run_grid(parts)
    undo = Undo("attention", (on(3, 0.5, RANKS),))
    claim = Claim("load.context", (3,), np.ones(STEPS, bool), "one", "steady", "", (), (), (undo,), 1.0)
    spent = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        shares = share_losses([grid], [claim])
        spent.append(time.process_time() - began_s)
    assert shares.lost.sum() > 0
    assert grid.segment.shape == (STEPS, 2 * LAYERS, RANKS)
    how = f"`share_losses` of one fault, {2 * LAYERS * STEPS:,} meetings × {RANKS} ranks; median of {ROUNDS}"
    figure = Figure("CPU, a fault's loss by replay", statistics.median(spent), 1.0, how, unit="s")
    figures.append(figure)
    assert figure.holds, figure.row()
