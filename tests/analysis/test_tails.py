"""What the end of a padded step adds to the step that follows."""

from __future__ import annotations

import numpy as np
import pytest

from dprankdiag.analysis.observations import mark_next
from dprankdiag.analysis.tails import shrink_tails
from tests.analysis.builders import Array, draw_components, observe_grids, on_steps, run_grid

N, RANKS = 40, 8
PADDED = np.arange(N) % 4 == 1
AFTER = np.arange(N) % 4 == 2
ROWS = np.where(PADDED, 64.0, 16.0)
FIRST = (np.arange(6) == 0)[None, :, None]


def tails_of(longer: float, kind: str = "decode graph", target: float = 16.0) -> dict[str, Array]:
    grown = 1 + FIRST * (on_steps(range(RANKS), longer, slice(2, N, 4), N, RANKS) - 1)
    seen = observe_grids([run_grid(draw_components(N, RANKS, factor={"probe": grown}), kind=kind)])
    found = shrink_tails(seen, PADDED, ROWS, np.full(N, target))
    return {component: factors[0] for component, factors in found}


def test_the_steps_behind_padded_ones_lose_what_these_end_with() -> None:
    (factor,) = tails_of(2.0).values()
    assert factor[AFTER, 0] == pytest.approx(0.5, abs=0.03)
    assert (factor[~AFTER] == 1.0).all()
    assert (factor[:, 1:] == 1.0).all()


def test_they_keep_what_even_rows_end_with() -> None:
    (factor,) = tails_of(2.0, target=40.0).values()
    assert factor[AFTER, 0] == pytest.approx(0.75, abs=0.03)


def test_nothing_is_taken_where_nothing_is_longer_or_where_rows_are_the_ranks_own() -> None:
    assert tails_of(1.0) == {}
    assert tails_of(2.0, kind="decode") == {}


def test_only_the_very_next_step_follows() -> None:
    grid = run_grid(draw_components(6, RANKS))
    seen = observe_grids([grid.take(np.array([0, 1, 3, 4, 5]))])
    marks = np.array([True, True, False, True, False])
    assert mark_next(seen, marks).tolist() == [False, True, False, False, True]
    assert mark_next(seen, np.stack([marks, ~marks], axis=1))[:, 1].tolist() == [False, False, False, True, False]
